// The backward of small problems in f32 arithmetic: a task computes dq, dk and dv of several
// (batch, key head) pairs, each at once, and the row sums that they need. In f32, rows are read and
// written in the caller's memory, and only q and dout are transposed, into L1. 16-bit rows are
// converted in L1.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/small_backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
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

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Transposed scores of one query head, [keys x ld]. In: products S^T and dP^T. Out: P^T in s, and
// scale times the gradient of the scores in dp.
struct SmallGradients {
  float* s;
  float* dp;
  std::int64_t ld;
  std::int64_t keys;
  float scale;
  const float* lse;    // [ld]
  const float* delta;  // [ld]
  const SmallRanges* ranges;
};

template <bool kHidden>
HWY_NOINLINE void MakeGradients(const SmallGradients& x) {
  const hn::ScalableTag<float> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const auto scale = hn::Set(d, x.scale);
  for (std::int64_t i = 0; i < x.ld; i += kLanes) {
    const auto lse = hn::Load(d, x.lse + i);
    const auto delta = hn::Load(d, x.delta + i);
    float* HWY_RESTRICT s = x.s + i;
    float* HWY_RESTRICT dp = x.dp + i;
    for (std::int64_t j = 0; j < x.keys; ++j, s += x.ld, dp += x.ld) {
      auto p = ExpKeepNan(d, hn::MulSub(hn::Load(d, s), scale, lse));
      if constexpr (kHidden) p = hn::IfThenElseZero(Sees(d, *x.ranges, i, j), p);
      const auto grad = hn::Mul(hn::Mul(p, scale), hn::Sub(hn::Load(d, dp), delta));
      hn::Store(p, d, s);
      // A hidden pair has no gradient even where dP is not finite.
      hn::Store(hn::IfThenZeroElse(hn::Eq(p, hn::Zero(d)), grad), d, dp);
    }
  }
}

// out[r] = dot(a row r, b row r). Writes up to kRowsAtOnce - 1 further values.
void DotEachRow(const SmallRows& a, const SmallRows& b, float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  for (std::int64_t r = 0; r < a.count; r += kRowsAtOnce) {
    V sums[kRowsAtOnce];
    for (int n = 0; n < kRowsAtOnce; ++n) {
      const float* of_a = a.row(std::min(r + n, a.count - 1));
      const float* of_b = b.row(std::min(r + n, a.count - 1));
      sums[n] = hn::Zero(d);
      for (std::int64_t c = 0; c < a.dim; c += kLanes) {
        sums[n] = hn::MulAdd(hn::LoadU(d, of_a + c), hn::LoadU(d, of_b + c), sums[n]);
      }
    }
    ReduceRows<Sum>(d, sums, out + r);
  }
}

// lse and delta of a head's queries. A query with lse = -inf sees no key and has no gradient,
// whatever its dout and dlse contain: its lse becomes +inf, so that P is 0. Returns whether there
// is one.
bool LoadRowSums(const Call& call, const Entry& entry, std::int64_t head, const SmallRows& dout,
                 const SmallScratch& x) {
  if (!call.delta.given()) {
    DotEachRow(dout, ReadRows(QueriesOfHead(call, call.o, entry, head, call.problem.dim_vo), x.o),
               x.delta);
  }
  const auto load = [&](const core::StridedTensor& stats, std::int64_t i) {
    return *reinterpret_cast<const float*>(stat_address(stats, entry.b, entry.first_q, i, head));
  };
  bool empty = false;
  for (std::int64_t i = 0; i < dout.count; ++i) {
    x.lse[i] = load(call.lse, i);
    if (call.delta.given()) x.delta[i] = load(call.delta, i);
    if (!call.delta.given() && call.dlse.given()) x.delta[i] -= load(call.dlse, i);
    if (x.lse[i] != -kInfinity) continue;
    empty = true;
    x.lse[i] = kInfinity;
    x.delta[i] = 0.0F;
  }
  return empty;
}

// Copies rows, with zeros where lse is +inf. They may be copied already.
void CopySeeing(SmallRows& rows, const float* lse, float* copy) {
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* to = copy + i * rows.dim;
    if (lse[i] == kInfinity) {
      std::fill_n(to, rows.dim, 0.0F);
    } else if (rows.first != copy) {
      std::copy_n(rows.row(i), rows.dim, to);
    }
  }
  rows.first = copy;
  rows.stride = rows.dim;
}

// Rows of a key head. `*_out`: first is null if the gradient is not wanted.
struct SmallHeadKeys {
  SmallRows k, v, dk, dv;
  CallerRows dk_out, dv_out;
};

// Adds one query head to dk and dv (the first one writes them) and computes its dq.
void BackwardHead(const Call& call, const Entry& entry, const SmallRanges& ranges,
                  const SmallHeadKeys& keys, std::int64_t head, const SmallScratch& x,
                  SmallAhead& ahead) {
  const Problem& p = call.problem;
  SmallRows q = ReadRows(QueriesOfHead(call, call.q, entry, head, p.dim_qk), x.q);
  SmallRows dout = ReadRows(QueriesOfHead(call, call.dout, entry, head, p.dim_vo), x.dout);
  const auto& [k, v, dk, dv, dk_out, dv_out] = keys;
  const bool add = head % call.numbers.heads_per_kv != 0;
  const bool empty = LoadRowSums(call, entry, head, dout, x);
  if (empty) CopySeeing(q, x.lse, x.q);
  if (empty) CopySeeing(dout, x.lse, x.dout);
  const std::int64_t ld = round_up(q.count, hn::MaxLanes(hn::ScalableTag<float>()));
  TransposeSmall(q, x.q_t, ld);
  TransposeSmall(dout, x.dout_t, ld);
  MultiplySmall<false>({k.first, k.stride, x.q_t, ld, x.s, ld, k.count, ld, k.dim}, ahead);
  MultiplySmall<false>({v.first, v.stride, x.dout_t, ld, x.dp, ld, v.count, ld, v.dim}, ahead);
  const SmallGradients gradients{
      x.s, x.dp, ld, k.count, static_cast<float>(call.numbers.scale), x.lse, x.delta, &ranges};
  if (ranges.hidden) {
    MakeGradients<true>(gradients);
  } else {
    MakeGradients<false>(gradients);
  }
  if (p.dv) {
    MultiplySmall<false>({x.s, ld, dout.first, dout.stride, dv.first, dv.stride, dv.count, dv.dim,
                          dout.count, nullptr, add},
                         ahead);
  }
  if (p.dk) {
    MultiplySmall<false>(
        {x.dp, ld, q.first, q.stride, dk.first, dk.stride, dk.count, dk.dim, q.count, nullptr, add},
        ahead);
  }
  if (!p.dq) return;
  const CallerRows out = QueriesOfHead(call, call.dq, entry, head, p.dim_qk);
  const SmallRows dq = RowsToWrite(out, x.o);
  MultiplySmall<true>({x.dp, ld, k.first, k.stride, dq.first, dq.stride, dq.count, dq.dim, k.count},
                      ahead);
  RoundRows(dq, out);
  for (std::int64_t i = 0; empty && i < q.count; ++i) {
    if (x.lse[i] == kInfinity) ClearRows(out, i, i + 1);
  }
}

void BackwardPair(const Call& call, const Entry& entry, const SmallRanges& ranges,
                  std::int64_t head_kv, const SmallScratch& x, SmallAhead& ahead) {
  const Problem& p = call.problem;
  SmallHeadKeys keys;
  if (p.dk) keys.dk_out = KeysOfHead(call, call.dk, entry, head_kv, p.dim_qk);
  if (p.dv) keys.dv_out = KeysOfHead(call, call.dv, entry, head_kv, p.dim_vo);
  keys.dk = RowsToWrite(keys.dk_out, x.dk);
  keys.dv = RowsToWrite(keys.dv_out, x.dv);
  if (entry.len_q > 0) {
    keys.k = ReadRows(KeysOfHead(call, call.k, entry, head_kv, p.dim_qk), x.k);
    keys.v = ReadRows(KeysOfHead(call, call.v, entry, head_kv, p.dim_vo), x.v);
  }
  const std::int64_t heads = call.numbers.heads_per_kv;
  for (std::int64_t head = head_kv * heads; head < (head_kv + 1) * heads; ++head) {
    if (entry.len_q > 0) BackwardHead(call, entry, ranges, keys, head, x, ahead);
    if (p.dq) {
      ClearRows(QueriesOfHead(call, call.dq, entry, head, p.dim_qk), entry.len_q, entry.rows_q);
    }
  }
  const std::int64_t written = entry.len_q > 0 ? entry.len_kv : 0;
  if (p.dk && written > 0) RoundRows(keys.dk, keys.dk_out);
  if (p.dv && written > 0) RoundRows(keys.dv, keys.dv_out);
  if (p.dk) ClearRows(keys.dk_out, written, entry.rows_kv);
  if (p.dv) ClearRows(keys.dv_out, written, entry.rows_kv);
}

// Calls of SmallAhead::step() for a pair of the largest lengths.
std::int64_t StepsOfPair(const Problem& p) {
  std::int64_t steps =
      StepsOfProduct(p.len_kv, p.len_q, p.dim_qk) + StepsOfProduct(p.len_kv, p.len_q, p.dim_vo);
  if (p.dv) steps += StepsOfProduct(p.len_kv, p.dim_vo, p.len_q);
  if (p.dk) steps += StepsOfProduct(p.len_kv, p.dim_qk, p.len_q);
  if (p.dq) steps += StepsOfProduct(p.len_q, p.dim_qk, p.len_kv);
  return p.heads_q / p.heads_kv * steps;
}

}  // namespace

void SmallBackwardTask(const Call& call, const Config& config, const RowSums<float>&, char* memory,
                       std::int64_t task) {
  const Problem& p = call.problem;
  Arena arena(memory);
  const SmallScratch x = make_small_scratch(arena, Pass::backward, p);
  const std::int64_t steps = StepsOfPair(p);
  const auto add = [&](SmallAhead& ahead, const Entry& entry, std::int64_t head,
                       std::int64_t heads) {
    AddQueriesAhead(call, call.dout, entry, head, heads, p.dim_vo, ahead);
    if (!p.delta) AddQueriesAhead(call, call.o, entry, head, heads, p.dim_vo, ahead);
    AddQueriesAhead(call, call.q, entry, head, heads, p.dim_qk, ahead);
    AddKeysAhead(call, call.k, entry, head, heads, p.dim_qk, ahead);
    AddKeysAhead(call, call.v, entry, head, heads, p.dim_vo, ahead);
    if (p.dv) AddKeysAhead(call, call.dv, entry, head, heads, p.dim_vo, ahead);
    if (p.dk) AddKeysAhead(call, call.dk, entry, head, heads, p.dim_qk, ahead);
    if (p.dq) AddQueriesAhead(call, call.dq, entry, head, heads, p.dim_qk, ahead);
    ahead.spread_lines(steps * heads);
  };
  EachSmallPair(call, config, task, add,
                [&](const Entry& entry, const SmallRanges& ranges, std::int64_t head,
                    SmallAhead& ahead) { BackwardPair(call, entry, ranges, head, x, ahead); });
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(SmallBackwardTask);

BackwardKernels<float>::Task small_backward_kernel() {
  return HWY_DYNAMIC_DISPATCH(SmallBackwardTask);
}
}  // namespace attn::cpu
#endif
