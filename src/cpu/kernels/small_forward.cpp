// The forward of small problems in f32 arithmetic: a task computes several (batch, key head) pairs,
// each at once. In f32, K, V and o are read and written in the caller's memory, and only q is
// transposed, into L1. 16-bit rows are converted in L1. All keys are one tile, so there is no
// online softmax.
//
// Next to the kernel of larger problems, which copies q, K and V into tiles and takes its softmax
// row by row, this takes half of the time (docs/kernels/cpu_small.md).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/small_forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/math-inl.h"
#include "cpu/kernels/small-inl.h"
#include "cpu/kernels/small_copies-inl.h"
#include "cpu/kernels/small_pairs.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// S^T [keys x ld], products of one query head. Queries past the last are computed and not used.
struct SmallScores {
  float* s;
  std::int64_t ld;
  std::int64_t keys;
  float scale;  // scale * s are the scores
  const SmallRanges* ranges;
  const float* largest;  // [ld] the largest product of each query; null if they are not raw
};

// Four running maxima: a single one would be a chain of dependent instructions.
constexpr std::int64_t kMaxima = 4;

// Turns products of queries [i, i + lanes) into scores, -inf if hidden, and returns the largest.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LargestOfKeys(D d, const SmallScores& x, std::int64_t i) {
  V largest[kMaxima];
  const V nothing = hn::Set(d, kNothing);
  for (V& value : largest) value = nothing;
  float* s = x.s + i;
  std::int64_t j = 0;
  const auto take = [&](V& to) {
    V value = hn::Mul(hn::Load(d, s), hn::Set(d, x.scale));
    value = hn::IfThenElse(Sees(d, *x.ranges, i, j), value, nothing);
    hn::Store(value, d, s);
    to = hn::Max(to, value);
    s += x.ld;
    ++j;
  };
  while (j + kMaxima <= x.keys) {
    for (V& value : largest) take(value);
  }
  while (j < x.keys) take(largest[0]);
  return hn::Max(hn::Max(largest[0], largest[1]), hn::Max(largest[2], largest[3]));
}

// s = exp(score - maximum). inverse = 1 / sum, or 0 where no key is visible. lse: null if it is not
// wanted. A score is a product times `scale`. kRaw: all keys are visible and scale > 0, so that the
// largest product is that of the largest score.
template <bool kRaw>
HWY_NOINLINE void SmallSoftmax(const SmallScores& x, float* HWY_RESTRICT inverse, float* lse) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const V nothing = hn::Set(d, kNothing);
  const V scale = hn::Set(d, kRaw ? x.scale : 1.0F);
  for (std::int64_t i = 0; i < x.ld; i += kLanes) {
    V largest;
    if constexpr (kRaw) largest = hn::Mul(scale, hn::Load(d, x.largest + i));
    if constexpr (!kRaw) largest = LargestOfKeys(d, x, i);
    const V shift = hn::IfThenZeroElse(hn::Eq(largest, nothing), largest);
    V sum = hn::Zero(d);
    float* s = x.s + i;
    for (std::int64_t j = 0; j < x.keys; ++j, s += x.ld) {
      const V p = ExpKeepNan<true>(d, hn::MulSub(hn::Load(d, s), scale, shift));
      sum = hn::Add(sum, p);
      hn::Store(p, d, s);
    }
    const auto none = hn::Eq(sum, hn::Zero(d));
    hn::Store(hn::IfThenZeroElse(none, hn::Div(hn::Set(d, 1.0F), sum)), d, inverse + i);
    if (lse == nullptr) continue;
    // Highway's logarithm of a NaN is a number.
    V log = hn::Add(shift, hn::Log(d, sum));
    log = hn::IfThenElse(hn::Eq(sum, sum), log, sum);
    hn::Store(hn::IfThenElse(none, nothing, log), d, lse + i);
  }
}

// Writes lse of queries [0, count).
void StoreLse(const Call& call, const Entry& entry, std::int64_t head, std::int64_t count,
              const float* HWY_RESTRICT lse) {
  char* to = stat_address(call.lse, entry.b, entry.first_q, 0, head);
  const std::int64_t stride = call.lse.stride_row;
  const hn::ScalableTag<float> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  std::int64_t i = 0;
  if (stride == sizeof(float)) {
    for (; i + kLanes <= count; i += kLanes) {
      hn::StoreU(hn::Load(d, lse + i), d, reinterpret_cast<float*>(to) + i);
    }
  }
  for (; i < count; ++i) *reinterpret_cast<float*>(to + i * stride) = lse[i];
}

// Writes o = 0 and lse = -inf of query i.
void StoreEmpty(const Call& call, const Entry& entry, std::int64_t head, std::int64_t i) {
  ClearRows(QueriesOfHead(call, call.o, entry, head, call.problem.dim_vo), i, i + 1);
  if (!call.lse.given()) return;
  *reinterpret_cast<float*>(stat_address(call.lse, entry.b, entry.first_q, i, head)) = kNothing;
}

// All keys of a sequence against one query head.
void ForwardHead(const Call& call, const Entry& entry, const SmallRanges& ranges,
                 const SmallRows& k, const SmallRows& v, std::int64_t head, const SmallScratch& x,
                 SmallAhead& ahead) {
  const Problem& p = call.problem;
  const SmallRows q = ReadRows(QueriesOfHead(call, call.q, entry, head, p.dim_qk), x.q);
  const CallerRows out = QueriesOfHead(call, call.o, entry, head, p.dim_vo);
  const SmallRows o = RowsToWrite(out, x.o);
  const auto scale = static_cast<float>(call.numbers.scale);
  const bool raw = !ranges.hidden && scale > 0.0F;
  const std::int64_t ld = round_up(q.count, hn::MaxLanes(hn::ScalableTag<float>()));
  TransposeSmall(q, x.q_t, ld);
  SmallProduct scores{k.first, k.stride, x.q_t, ld, x.s, ld, k.count, ld, k.dim};
  if (raw) {
    std::fill_n(x.largest, ld, kNothing);
    scores.largest = x.largest;
  }
  MultiplySmall<false>(scores, ahead);
  const auto softmax = raw ? SmallSoftmax<true> : SmallSoftmax<false>;
  softmax({x.s, ld, k.count, scale, &ranges, x.largest}, x.inverse,
          call.lse.given() ? x.lse : nullptr);
  MultiplySmall<true>(
      {x.s, ld, v.first, v.stride, o.first, o.stride, o.count, v.dim, v.count, x.inverse}, ahead);
  RoundRows(o, out);
  if (call.lse.given()) StoreLse(call, entry, head, q.count, x.lse);
}

void ForwardPair(const Call& call, const Entry& entry, const SmallRanges& ranges,
                 std::int64_t head_kv, const SmallScratch& x, SmallAhead& ahead) {
  const Problem& p = call.problem;
  const std::int64_t heads = call.numbers.heads_per_kv;
  SmallRows k;
  SmallRows v;
  if (entry.len_q > 0) {
    k = ReadRows(KeysOfHead(call, call.k, entry, head_kv, p.dim_qk), x.k);
    v = ReadRows(KeysOfHead(call, call.v, entry, head_kv, p.dim_vo), x.v);
  }
  for (std::int64_t head = head_kv * heads; head < (head_kv + 1) * heads; ++head) {
    if (entry.len_q > 0) ForwardHead(call, entry, ranges, k, v, head, x, ahead);
    // Values that are not finite reach rows that see no key, as 0 * inf.
    for (std::int64_t i = 0; ranges.empty && i < entry.len_q; ++i) {
      if (ranges.begin[i] >= ranges.end[i]) StoreEmpty(call, entry, head, i);
    }
    for (std::int64_t i = entry.len_q; i < entry.rows_q; ++i) StoreEmpty(call, entry, head, i);
  }
}

// Calls of SmallAhead::step() for a pair of the largest lengths.
std::int64_t StepsOfPair(const Problem& p) {
  return p.heads_q / p.heads_kv *
         (StepsOfProduct(p.len_kv, p.len_q, p.dim_qk) +
          StepsOfProduct(p.len_q, p.dim_vo, p.len_kv));
}

}  // namespace

void SmallForwardTask(const Call& call, const Config& config, const ForwardShared<float>&,
                      char* memory, std::int64_t task) {
  const Problem& p = call.problem;
  Arena arena(memory);
  const SmallScratch x = make_small_scratch(arena, Pass::forward, p);
  const std::int64_t steps = StepsOfPair(p);
  const auto add = [&](SmallAhead& ahead, const Entry& entry, std::int64_t head,
                       std::int64_t heads) {
    AddForwardAhead(call, entry, head, heads, ahead);
    ahead.spread_lines(steps * heads);
  };
  EachSmallPair(call, config, task, add,
                [&](const Entry& entry, const SmallRanges& ranges, std::int64_t head,
                    SmallAhead& ahead) { ForwardPair(call, entry, ranges, head, x, ahead); });
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(SmallForwardTask);

ForwardKernels<float>::Task small_forward_kernel() {
  return HWY_DYNAMIC_DISPATCH(SmallForwardTask);
}
}  // namespace attn::cpu
#endif
