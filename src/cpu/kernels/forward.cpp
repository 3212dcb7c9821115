// Forward attention with online softmax (Milakov and Gimelshein 2018; Dao 2023, FlashAttention-2,
// section 3.1): o and lse of a tile of query rows in one pass over its keys.
//
// Task: one tile of rows of one (batch, key head), against one split of the keys. Keys and values
// are loaded once a tile of rows, converted to f32 (f64), K transposed; then each strip of rows
// computes S = Q K^T in L1, its softmax, and O += P V. Tiles of keys that no row of a strip sees
// are skipped. Few rows (decode): K stays row-major and S is made of dot products. With splits,
// partial o and lse go to the workspace and MergeSplits combines them through their lse.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "cpu/kernels/dropout-inl.h"
#include "cpu/kernels/gemm-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

// One strip against one tile of keys: scores, running maximum and sum, O += P V.
template <class T>
void AttendStrip(const Call& call, const Config& config, const Entry& entry, const Scratch<T>& x,
                 const KeySpan& span, std::int64_t row0, std::int64_t count) {
  const std::int64_t qk = padded<T>(call.problem.dim_qk);
  const std::int64_t vo = padded<T>(call.problem.dim_vo);
  const std::int64_t cols = span.cols;
  const TileRow* rows = x.rows + row0;
  if (config.few_rows != 0) {
    DotRows(x.q + row0 * qk, qk, count, x.k + span.first * qk, qk, cols, qk, x.s, cols);
  } else {
    Gemm<T>({x.q + row0 * qk, qk, 1, x.k_t + span.first, config.tile_kv, x.s, cols, count, cols,
             call.problem.dim_qk, false});
  }
  if (call.problem.dropout) DropoutFactors(call, entry, rows, count, span.j0, cols, x.factors);

  const hn::ScalableTag<T> d;
  for (std::int64_t r = 0; r < count; ++r) {
    T* s = x.s + r * cols;
    ScoreRow<T>(call, entry, rows[r], span, s, nullptr, x.temp);
    T& row_max = x.row_max[row0 + r];
    T& row_sum = x.row_sum[row0 + r];
    const T tile_max = RowMax(s, cols);
    const T largest = tile_max > row_max ? tile_max : row_max;
    // Nothing visible yet: exp(-inf - 0) = 0 hides all, and a NaN stays one.
    const T shift = largest == -kInfinity<T> ? T(0) : largest;
    if (!(largest == row_max)) {
      const T rescale = hn::GetLane(ExpKeepNan(d, hn::Set(d, row_max - shift)));
      row_sum *= rescale;
      ScaleRow(x.acc_a + (row0 + r) * vo, rescale, vo);
      row_max = largest;
    }
    row_sum += ExpRow(s, shift, cols);
    if (call.problem.dropout) MultiplyRow(s, x.factors + r * cols, cols);
  }
  Gemm<T>({x.s, cols, 1, x.v + span.first * vo, vo, x.acc_a + row0 * vo, vo, count, vo, span.keys,
           true});
}

// Keys and values [j0, j0 + keys) of a key head.
template <class T>
void LoadKeys(const Call& call, const Config& config, const Entry& entry, std::int64_t head,
              const Scratch<T>& x, std::int64_t j0, std::int64_t keys) {
  const Problem& p = call.problem;
  const std::int64_t tile = config.tile_kv;
  const std::int64_t qk = padded<T>(p.dim_qk);
  if (config.few_rows != 0) {
    LoadKeyTile(call, call.k, entry, head, j0, keys, tile, p.dim_qk, qk, x.k);
  } else {
    LoadKeyTileTransposed(call, call.k, entry, head, j0, keys, tile, p.dim_qk, qk, x.temp, x.k_t);
  }
  LoadKeyTile(call, call.v, entry, head, j0, keys, tile, p.dim_vo, padded<T>(p.dim_vo), x.v);
  for (std::int64_t j = 0; p.page_size > 0 && j < keys; ++j) {
    x.missing[j] = has_page(call, entry.b, j0 + j) ? 0 : 1;
  }
}

// A finished row: o and lse to the tensors, with the sink where this is the whole row.
template <class T>
void FinishRow(const Call& call, const Entry& entry, const TileRow& row, T row_max, T row_sum,
               T* acc) {
  const Problem& p = call.problem;
  T lse = -kInfinity<T>;
  T inverse = T(0);
  if (row.i < entry.len_q) {
    const T sink = call.sinks != nullptr
                       ? *reinterpret_cast<const T*>(call.sinks + row.head * call.sinks_stride)
                       : -kInfinity<T>;
    const T largest = sink > row_max ? sink : row_max;
    const T shift = largest == -kInfinity<T> ? T(0) : largest;
    const T in_keys = row_sum * std::exp(row_max - shift);
    const T total = in_keys + std::exp(sink - shift);
    lse = total == T(0) ? -kInfinity<T> : shift + std::log(total);
    inverse = total == T(0) ? T(0) : std::exp(row_max - shift) / total;
  }
  const std::int64_t vo = padded<T>(p.dim_vo);
  ScaleRow(acc, inverse, vo);
  const std::uint32_t replaced =
      StoreRow(p.out_type(), row_address(call, call.o, entry.b, entry.first_q, row.i, row.head),
               acc, p.dim_vo, false, p.nonfinite_zero);
  count_nonfinite(call, replaced);
  if (call.lse.given()) {
    *reinterpret_cast<T*>(stat_address(call.lse, entry.b, entry.first_q, row.i, row.head)) = lse;
  }
}

template <class T>
void ForwardTask(const Call& call, const Config& config, const Partials<T>& partials, char* memory,
                 std::int64_t task) {
  const Problem& p = call.problem;
  const std::int64_t tiles = row_tiles(p, config);
  const std::int64_t split = task % config.splits;
  // Causal work grows with the row: the longest tiles start first.
  const std::int64_t tile = tiles - 1 - task / config.splits % tiles;
  const std::int64_t head_kv = task / (config.splits * tiles) % p.heads_kv;
  const Entry entry = entry_of(call, task / (config.splits * tiles * p.heads_kv));
  const std::int64_t row0 = tile * config.tile_rows;
  const std::int64_t count =
      std::min(config.tile_rows, call.numbers.heads_per_kv * entry.rows_q - row0);
  if (count <= 0) return;

  Arena arena(memory);
  const Scratch<T> x = make_scratch<T>(arena, Phase::forward, p, config);
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  const core::KeyRange seen = make_rows(call, entry, head_kv, row0, count, x.rows);
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = x.rows[r];
    const char* source = row.keys.empty()
                             ? nullptr
                             : row_address(call, call.q, entry.b, entry.first_q, row.i, row.head);
    LoadRow(call.q.dtype, source, p.dim_qk, qk, x.q + r * qk);
  }
  std::fill_n(x.acc_a, count * vo, T(0));
  std::fill_n(x.row_max, count, -kInfinity<T>);
  std::fill_n(x.row_sum, count, T(0));

  const std::int64_t split_begin = split * config.split_keys;
  const std::int64_t end = std::min(seen.end, split_begin + config.split_keys);
  std::int64_t j0 = split_begin;
  if (seen.begin > j0) j0 += (seen.begin - j0) / config.tile_kv * config.tile_kv;
  for (; j0 < end; j0 += config.tile_kv) {
    // A tile of keys takes one row about a microsecond, 192 rows about a hundred.
    if ((count > 16 || j0 / config.tile_kv % 32 == 31) && core::interrupted(call.interrupt)) {
      return;
    }
    const std::int64_t keys = std::min(config.tile_kv, end - j0);
    bool loaded = false;
    for (std::int64_t strip = 0; strip < count; strip += config.strip_rows) {
      const std::int64_t rows = std::min(config.strip_rows, count - strip);
      KeySpan span = SeenSpan<T>(x.rows + strip, rows, j0, keys);
      if (span.keys == 0) continue;
      if (!loaded) {
        LoadKeys(call, config, entry, head_kv, x, j0, keys);
        loaded = true;
      }
      if (p.page_size > 0) span.missing = x.missing + span.first;
      AttendStrip(call, config, entry, x, span, strip, rows);
    }
  }

  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = x.rows[r];
    T* acc = x.acc_a + r * vo;
    if (config.splits == 1) {
      FinishRow(call, entry, row, x.row_max[r], x.row_sum[r], acc);
    } else {
      const std::int64_t at = partials.index(call, entry, row.head, row.i) + split;
      std::copy_n(acc, vo, partials.o + at * vo);
      partials.row_max[at] = x.row_max[r];
      partials.row_sum[at] = x.row_sum[r];
    }
  }
}

// Task: the rows of one (batch, query head).
template <class T>
void MergeSplits(const Call& call, const Config& config, const Partials<T>& partials, char* memory,
                 std::int64_t task) {
  const Problem& p = call.problem;
  const std::int64_t vo = padded<T>(p.dim_vo);
  const Entry entry = entry_of(call, task / p.heads_q);
  TileRow row;
  row.head = task % p.heads_q;
  T* acc = reinterpret_cast<T*>(memory);
  const hn::ScalableTag<T> d;
  for (row.i = 0; row.i < entry.rows_q; ++row.i) {
    if (row.i % 64 == 63 && core::interrupted(call.interrupt)) return;
    const std::int64_t first = partials.index(call, entry, row.head, row.i);
    T row_max = -kInfinity<T>;
    for (std::int64_t n = 0; n < config.splits; ++n) {
      row_max = partials.row_max[first + n] > row_max ? partials.row_max[first + n] : row_max;
    }
    const T shift = row_max == -kInfinity<T> ? T(0) : row_max;
    T row_sum = T(0);
    std::fill_n(acc, vo, T(0));
    for (std::int64_t n = 0; n < config.splits; ++n) {
      const T weight = std::exp(partials.row_max[first + n] - shift);
      row_sum += weight * partials.row_sum[first + n];
      const T* o = partials.o + (first + n) * vo;
      for (std::int64_t c = 0; c < vo; c += static_cast<std::int64_t>(hn::MaxLanes(d))) {
        hn::Store(hn::MulAdd(hn::Set(d, weight), hn::Load(d, o + c), hn::Load(d, acc + c)), d,
                  acc + c);
      }
    }
    FinishRow(call, entry, row, row_max, row_sum, acc);
  }
}

}  // namespace

void ForwardTaskF32(const Call& call, const Config& config, const Partials<float>& partials,
                    char* memory, std::int64_t task) {
  ForwardTask<float>(call, config, partials, memory, task);
}
void ForwardTaskF64(const Call& call, const Config& config, const Partials<double>& partials,
                    char* memory, std::int64_t task) {
  ForwardTask<double>(call, config, partials, memory, task);
}
void MergeSplitsF32(const Call& call, const Config& config, const Partials<float>& partials,
                    char* memory, std::int64_t task) {
  MergeSplits<float>(call, config, partials, memory, task);
}
void MergeSplitsF64(const Call& call, const Config& config, const Partials<double>& partials,
                    char* memory, std::int64_t task) {
  MergeSplits<double>(call, config, partials, memory, task);
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(ForwardTaskF32);
HWY_EXPORT(ForwardTaskF64);
HWY_EXPORT(MergeSplitsF32);
HWY_EXPORT(MergeSplitsF64);

template <>
ForwardKernels<float> forward_kernels() {
  return {HWY_DYNAMIC_DISPATCH(ForwardTaskF32), HWY_DYNAMIC_DISPATCH(MergeSplitsF32)};
}
template <>
ForwardKernels<double> forward_kernels() {
  return {HWY_DYNAMIC_DISPATCH(ForwardTaskF64), HWY_DYNAMIC_DISPATCH(MergeSplitsF64)};
}
}  // namespace attn::cpu
#endif
