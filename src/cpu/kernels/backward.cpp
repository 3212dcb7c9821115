// Backward attention (Dao 2023, FlashAttention-2, section 3.1.2), P recomputed from lse. Every
// output tile has one owner that loops over all that reaches it, in a fixed order: no atomics, no
// quadratic memory, the same bits for any number of threads.
//   keys:    dk, dv of a tile of keys; loops over the strips of rows of its group of query heads
//   queries: dq of a tile of rows; loops over tiles of keys
//   bias:    dbias of a tile of the bias; loops over what the bias broadcasts
// S and dP are computed once for each owner: 7 products where dk, dv and dq in one loop would take
// 5, the price of O(1) extra memory a thread (a shared dq in f32 alone is 16 MiB at len 65536, dim
// 64).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
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
T LoadStat(const core::StridedTensor& stats, const Entry& entry, const TileRow& row) {
  return *reinterpret_cast<const T*>(stat_address(stats, entry.b, entry.first_q, row.i, row.head));
}

// Rows [row0, row0 + count) of a key head's group with their q, dout, lse and delta. A row whose
// lse is -inf sees nothing: it gives and takes no gradient, whatever its dout and dlse hold.
template <class T>
void LoadRows(const Call& call, const Entry& entry, const RowSums<T>& sums, std::int64_t head_kv,
              std::int64_t row0, std::int64_t count, const Scratch<T>& x) {
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  make_rows(call, entry, head_kv, row0, count, x.rows);
  for (std::int64_t r = 0; r < count; ++r) {
    TileRow& row = x.rows[r];
    const char* q = nullptr;
    const char* dout = nullptr;
    x.row_max[r] = T(0);
    x.row_sum[r] = T(0);
    if (!row.keys.empty()) {
      const T lse = LoadStat<T>(call.lse, entry, row);
      if (lse == -std::numeric_limits<T>::infinity()) {
        row.keys = {0, 0};
      } else {
        x.row_max[r] = lse;
        x.row_sum[r] = sums.delta_of(call, entry, row.head, row.i);
        q = row_address(call, call.q, entry.b, entry.first_q, row.i, row.head);
        dout = row_address(call, call.dout, entry.b, entry.first_q, row.i, row.head);
      }
    }
    LoadRow(call.q.dtype, q, p.dim_qk, qk, x.q + r * qk);
    LoadRow(call.dout.dtype, dout, p.dim_vo, vo, x.dout + r * vo);
  }
}

// For a strip against a tile of keys (K^T and V^T loaded): x.s = drop * P, x.dp = gradient of the
// raw product (of the score itself where `of_score`).
template <class T>
void GradientStrip(const Call& call, const Config& config, const Entry& entry, const Scratch<T>& x,
                   const KeySpan& span, std::int64_t row0, std::int64_t count, bool of_score) {
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  const std::int64_t cols = span.cols;
  const std::int64_t tile = config.tile_kv;
  Gemm<T>(
      {x.q + row0 * qk, qk, 1, x.k_t + span.first, tile, x.s, cols, count, cols, p.dim_qk, false});
  Gemm<T>({x.dout + row0 * vo, vo, 1, x.v_t + span.first, tile, x.dp, cols, count, cols, p.dim_vo,
           false});
  if (p.dropout) DropoutFactors(call, entry, x.rows + row0, count, span.j0, cols, x.factors);

  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  for (std::int64_t r = 0; r < count; ++r) {
    T* s = x.s + r * cols;
    T* dp = x.dp + r * cols;
    ScoreRow<T>(call, entry, x.rows[row0 + r], span, s, x.tanh, x.temp);
    const auto lse = hn::Set(d, x.row_max[row0 + r]);
    const auto delta = hn::Set(d, x.row_sum[row0 + r]);
    for (std::int64_t c = 0; c < cols; c += kLanes) {
      const auto prob = ExpKeepNan(d, hn::Sub(hn::Load(d, s + c), lse));
      auto dropped = prob;
      auto grad = hn::Load(d, dp + c);
      if (p.dropout) {
        const auto factor = hn::Load(d, x.factors + r * cols + c);
        dropped = hn::Mul(prob, factor);
        grad = hn::Mul(grad, factor);
      }
      grad = hn::Mul(prob, hn::Sub(grad, delta));
      // A hidden pair has no gradient even where dP is not finite.
      grad = hn::IfThenZeroElse(hn::Eq(prob, hn::Zero(d)), grad);
      if (p.softcap && !of_score) {
        const auto t = hn::Load(d, x.tanh + c);
        grad = hn::Mul(grad, hn::NegMulAdd(t, t, hn::Set(d, T(1))));
      }
      hn::Store(dropped, d, s + c);
      hn::Store(grad, d, dp + c);
    }
  }
}

// K^T and V^T of keys [j0, j0 + keys) of a key head.
template <class T>
void LoadTransposed(const Call& call, const Config& config, const Entry& entry,
                    std::int64_t head_kv, const Scratch<T>& x, std::int64_t j0, std::int64_t keys) {
  const Problem& p = call.problem;
  LoadKeyTileTransposed(call, call.k, entry, head_kv, j0, keys, config.tile_kv, p.dim_qk,
                        padded<T>(p.dim_qk), x.temp, x.k_t);
  LoadKeyTileTransposed(call, call.v, entry, head_kv, j0, keys, config.tile_kv, p.dim_vo,
                        padded<T>(p.dim_vo), x.temp, x.v_t);
}

// A row of dq, dk or dv: scaled, then written or added, non-finite values counted. Padding gets
// zeros, or is left alone when accumulating.
template <class T>
void StoreGradient(const Call& call, const StridedTensor& rows, char* address, T* values, T factor,
                   std::int64_t dim, bool inside) {
  const bool accumulate = call.problem.accumulate && !rows.workspace;
  const bool zero_nonfinite = call.problem.nonfinite_zero && !rows.workspace;
  if (!inside && accumulate) return;
  ScaleRow(values, inside ? factor : T(0), padded<T>(dim));
  count_nonfinite(call, StoreRow(rows.dtype, address, values, dim, accumulate, zero_nonfinite));
}

template <class T>
void KeysTask(const Call& call, const Config& config, const RowSums<T>& sums, char* memory,
              std::int64_t task) {
  const Problem& p = call.problem;
  const std::int64_t tiles = key_tiles(p, config);
  const std::int64_t head_kv = task / tiles % p.heads_kv;
  const Entry entry = entry_of(call, task / (tiles * p.heads_kv));
  const std::int64_t j0 = task % tiles * config.tile_kv;
  const std::int64_t owned = std::min(config.tile_kv, entry.rows_kv - j0);
  if (owned <= 0) return;
  const std::int64_t keys = std::clamp<std::int64_t>(entry.len_kv - j0, 0, owned);

  Arena arena(memory);
  const Scratch<T> x = make_scratch<T>(arena, Phase::backward_kv, p, config);
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  const std::int64_t cols = config.tile_kv;
  std::fill_n(x.acc_a, cols * qk, T(0));
  std::fill_n(x.acc_b, cols * vo, T(0));

  bool loaded = false;
  const std::int64_t all_rows = call.numbers.heads_per_kv * entry.rows_q;
  const core::KeyRange* strip_keys = sums.strips_of(call, entry, head_kv, config.strip_rows);
  for (std::int64_t strip = 0; strip * config.strip_rows < all_rows; ++strip) {
    if (!(strip_keys[strip].begin < j0 + keys && strip_keys[strip].end > j0)) continue;
    if (core::interrupted(call.interrupt)) return;
    const std::int64_t row0 = strip * config.strip_rows;
    const std::int64_t count = std::min(config.strip_rows, all_rows - row0);
    LoadRows(call, entry, sums, head_kv, row0, count, x);
    const KeySpan span = SeenSpan<T>(x.rows, count, j0, keys);
    if (span.keys == 0) continue;
    if (!loaded) {
      LoadTransposed(call, config, entry, head_kv, x, j0, keys);
      loaded = true;
    }
    GradientStrip(call, config, entry, x, span, 0, count, false);
    T* dv = x.acc_b + span.first * vo;
    T* dk = x.acc_a + span.first * qk;
    if (p.dv) Gemm<T>({x.s, 1, span.cols, x.dout, vo, dv, vo, span.keys, vo, count, true});
    if (p.dk) Gemm<T>({x.dp, 1, span.cols, x.q, qk, dk, qk, span.keys, qk, count, true});
  }

  for (std::int64_t j = 0; j < owned; ++j) {
    const bool inside = j < keys;
    if (p.dk) {
      StoreGradient(call, call.dk,
                    row_address(call, call.dk, entry.b, entry.first_kv, j0 + j, head_kv),
                    x.acc_a + j * qk, static_cast<T>(call.numbers.scale), p.dim_qk, inside);
    }
    if (p.dv) {
      StoreGradient(call, call.dv,
                    row_address(call, call.dv, entry.b, entry.first_kv, j0 + j, head_kv),
                    x.acc_b + j * vo, T(1), p.dim_vo, inside);
    }
  }
}

template <class T>
void QueriesTask(const Call& call, const Config& config, const RowSums<T>& sums, char* memory,
                 std::int64_t task) {
  const Problem& p = call.problem;
  const std::int64_t tiles = row_tiles(p, config);
  const std::int64_t tile = tiles - 1 - task % tiles;  // causal: the longest first
  const std::int64_t head_kv = task / tiles % p.heads_kv;
  const Entry entry = entry_of(call, task / (tiles * p.heads_kv));
  const std::int64_t row0 = tile * config.tile_rows;
  const std::int64_t count =
      std::min(config.tile_rows, call.numbers.heads_per_kv * entry.rows_q - row0);
  if (count <= 0) return;

  Arena arena(memory);
  const Scratch<T> x = make_scratch<T>(arena, Phase::backward_q, p, config);
  const std::int64_t qk = padded<T>(p.dim_qk);
  LoadRows(call, entry, sums, head_kv, row0, count, x);
  std::fill_n(x.acc_a, count * qk, T(0));
  core::KeyRange seen{entry.len_kv, 0};
  for (std::int64_t r = 0; r < count; ++r) {
    if (x.rows[r].keys.empty()) continue;
    seen.begin = std::min(seen.begin, x.rows[r].keys.begin);
    seen.end = std::max(seen.end, x.rows[r].keys.end);
  }

  const std::int64_t first = seen.begin / config.tile_kv * config.tile_kv;
  for (std::int64_t j0 = first; j0 < seen.end; j0 += config.tile_kv) {
    if (core::interrupted(call.interrupt)) return;
    const std::int64_t keys = std::min(config.tile_kv, seen.end - j0);
    bool loaded = false;
    for (std::int64_t strip = 0; strip < count; strip += config.strip_rows) {
      const std::int64_t rows = std::min(config.strip_rows, count - strip);
      const KeySpan span = SeenSpan<T>(x.rows + strip, rows, j0, keys);
      if (span.keys == 0) continue;
      if (!loaded) {
        LoadTransposed(call, config, entry, head_kv, x, j0, keys);
        LoadKeyTile(call, call.k, entry, head_kv, j0, keys, config.tile_kv, p.dim_qk, qk, x.k);
        loaded = true;
      }
      GradientStrip(call, config, entry, x, span, strip, rows, false);
      Gemm<T>({x.dp, span.cols, 1, x.k + span.first * qk, qk, x.acc_a + strip * qk, qk, rows, qk,
               span.keys, true});
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = x.rows[r];
    StoreGradient(
        call, call.dq, row_address(call, call.dq, entry.b, entry.first_q, row.i, row.head),
        x.acc_a + r * qk, static_cast<T>(call.numbers.scale), p.dim_qk, row.i < entry.len_q);
  }
}

// Adds a strip's score gradients to the tile of dbias they reach: [tile_rows or 1][tile_kv or 1].
template <class T>
void ReduceStrip(const Problem& p, const Config& config, const Scratch<T>& x, const KeySpan& span,
                 std::int64_t row0, std::int64_t count) {
  for (std::int64_t r = 0; r < count; ++r) {
    const T* grad = x.dp + r * span.cols;
    T* out = x.acc_a + (p.bias.q ? row0 + r : 0) * config.tile_kv;
    if (p.bias.kv) {
      for (std::int64_t c = 0; c < span.keys; ++c) out[span.first + c] += grad[c];
    } else {
      T sum = T(0);
      for (std::int64_t c = 0; c < span.keys; ++c) sum += grad[c];
      out[0] += sum;
    }
  }
}

// One (batch, head)'s part of a bias tile: queries [i0, i1) against keys [j_begin, j_end).
template <class T>
void BiasPart(const Call& call, const Config& config, const RowSums<T>& sums, const Entry& entry,
              std::int64_t head, core::KeyRange queries, core::KeyRange keys, const Scratch<T>& x) {
  const std::int64_t head_kv = head / call.numbers.heads_per_kv;
  const std::int64_t base = head % call.numbers.heads_per_kv * entry.rows_q;
  queries.end = std::min(queries.end, entry.len_q);
  keys.end = std::min(keys.end, entry.len_kv);
  for (std::int64_t i0 = queries.begin; i0 < queries.end; i0 += config.tile_rows) {
    if (core::interrupted(call.interrupt)) return;
    const std::int64_t count = std::min(config.tile_rows, queries.end - i0);
    LoadRows(call, entry, sums, head_kv, base + i0, count, x);
    for (std::int64_t j0 = keys.begin; j0 < keys.end; j0 += config.tile_kv) {
      if (core::interrupted(call.interrupt)) return;
      const std::int64_t count_kv = std::min(config.tile_kv, keys.end - j0);
      bool loaded = false;
      for (std::int64_t strip = 0; strip < count; strip += config.strip_rows) {
        const std::int64_t rows = std::min(config.strip_rows, count - strip);
        const KeySpan span = SeenSpan<T>(x.rows + strip, rows, j0, count_kv);
        if (span.keys == 0) continue;
        if (!loaded) {
          LoadTransposed(call, config, entry, head_kv, x, j0, count_kv);
          loaded = true;
        }
        GradientStrip(call, config, entry, x, span, strip, rows, true);
        ReduceStrip(call.problem, config, x, span, strip, rows);
      }
    }
  }
}

template <class T>
void BiasTask(const Call& call, const Config& config, const RowSums<T>& sums, char* memory,
              std::int64_t task) {
  const Problem& p = call.problem;
  const BiasGrid grid = bias_grid(p, config);
  const std::int64_t kv_tile = task % grid.kv_tiles;
  const std::int64_t q_tile = task / grid.kv_tiles % grid.q_tiles;
  const std::int64_t bias_head = task / (grid.kv_tiles * grid.q_tiles) % grid.heads;
  const std::int64_t bias_batch = task / (grid.kv_tiles * grid.q_tiles * grid.heads);
  core::KeyRange queries{0, p.len_q};
  core::KeyRange keys{0, p.len_kv};
  if (p.bias.q)
    queries = {q_tile * config.tile_rows, std::min(p.len_q, (q_tile + 1) * config.tile_rows)};
  if (p.bias.kv)
    keys = {kv_tile * config.tile_kv, std::min(p.len_kv, (kv_tile + 1) * config.tile_kv)};

  Arena arena(memory);
  const Scratch<T> x = make_scratch<T>(arena, Phase::backward_bias, p, config);
  const std::int64_t rows = p.bias.q ? queries.end - queries.begin : 1;
  const std::int64_t cols = p.bias.kv ? keys.end - keys.begin : 1;
  std::fill_n(x.acc_a, rows * config.tile_kv, T(0));
  for (std::int64_t b = bias_batch; b < (p.bias.batch ? bias_batch + 1 : p.batch); ++b) {
    const Entry entry = entry_of(call, b);
    for (std::int64_t h = bias_head; h < (p.bias.head ? bias_head + 1 : p.heads_q); ++h) {
      BiasPart(call, config, sums, entry, h, queries, keys, x);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    char* address = pair_address(call.dbias, bias_batch, bias_head, queries.begin + r, keys.begin);
    count_nonfinite(call, StoreRow(call.dbias.dtype, address, x.acc_a + r * config.tile_kv, cols,
                                   p.accumulate, p.nonfinite_zero));
  }
}

// delta = dot(dout, o) - dlse, and the keys that each strip of rows may see.
template <class T>
void RowSumsTask(const Call& call, const Config& config, const RowSums<T>& sums, char* memory,
                 std::int64_t task) {
  const Problem& p = call.problem;
  const std::int64_t head_kv = task % p.heads_kv;
  const Entry entry = entry_of(call, task / p.heads_kv);
  const std::int64_t vo = padded<T>(p.dim_vo);
  T* dout = reinterpret_cast<T*>(memory);
  T* o = dout + vo;
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  core::KeyRange* strip_keys = sums.strips_of(call, entry, head_kv, config.strip_rows);
  std::fill_n(strip_keys, divide_up(call.numbers.heads_per_kv * entry.rows_q, config.strip_rows),
              core::KeyRange{entry.len_kv, 0});

  for (std::int64_t r = 0; r < call.numbers.heads_per_kv * entry.rows_q; ++r) {
    if (r % 64 == 63 && core::interrupted(call.interrupt)) return;
    TileRow row;
    make_rows(call, entry, head_kv, r, 1, &row);
    T& delta = sums.delta_of(call, entry, row.head, row.i);
    delta = T(0);
    if (row.i >= entry.len_q) continue;
    if (!row.keys.empty()) {
      core::KeyRange& keys = strip_keys[r / config.strip_rows];
      keys.begin = std::min(keys.begin, row.keys.begin);
      keys.end = std::max(keys.end, row.keys.end);
    }
    if (LoadStat<T>(call.lse, entry, row) == -std::numeric_limits<T>::infinity()) continue;
    if (call.delta.given()) {
      delta = LoadStat<T>(call.delta, entry, row);
      continue;
    }
    LoadRow(call.dout.dtype, row_address(call, call.dout, entry.b, entry.first_q, row.i, row.head),
            p.dim_vo, vo, dout);
    LoadRow(call.o.dtype, row_address(call, call.o, entry.b, entry.first_q, row.i, row.head),
            p.dim_vo, vo, o);
    auto sum = hn::Zero(d);
    for (std::int64_t c = 0; c < vo; c += kLanes) {
      sum = hn::MulAdd(hn::Load(d, dout + c), hn::Load(d, o + c), sum);
    }
    delta = hn::GetLane(hn::SumOfLanes(d, sum));
    if (call.dlse.given()) delta -= LoadStat<T>(call.dlse, entry, row);
  }
}

// dsink_h = -sum exp(sink_h - lse) * delta, summed in f64.
template <class T>
void SinksTask(const Call& call, const Config&, const RowSums<T>& sums, char*, std::int64_t head) {
  const Problem& p = call.problem;
  const T sink = *reinterpret_cast<const T*>(call.sinks + head * call.sinks_stride);
  double sum = 0.0;
  for (std::int64_t b = 0; b < p.batch && sink != -std::numeric_limits<T>::infinity(); ++b) {
    const Entry entry = entry_of(call, b);
    for (std::int64_t i = 0; i < entry.len_q; ++i) {
      TileRow row;
      row.head = head;
      row.i = i;
      const double lse = static_cast<double>(LoadStat<T>(call.lse, entry, row));
      if (lse == -std::numeric_limits<double>::infinity()) continue;
      sum -= std::exp(static_cast<double>(sink) - lse) *
             static_cast<double>(sums.delta_of(call, entry, head, i));
    }
  }
  const bool replaced = StoreElement(p.statistics_type(), call.dsink + head * call.dsink_stride,
                                     static_cast<T>(sum), p.accumulate, p.nonfinite_zero);
  count_nonfinite(call, replaced ? 1 : 0);
}

}  // namespace

#define ATTN_DEFINE_TASK(name)                                                                     \
  void name##F32(const Call& call, const Config& config, const RowSums<float>& sums, char* memory, \
                 std::int64_t task) {                                                              \
    name<float>(call, config, sums, memory, task);                                                 \
  }                                                                                                \
  void name##F64(const Call& call, const Config& config, const RowSums<double>& sums,              \
                 char* memory, std::int64_t task) {                                                \
    name<double>(call, config, sums, memory, task);                                                \
  }
ATTN_DEFINE_TASK(RowSumsTask)
ATTN_DEFINE_TASK(KeysTask)
ATTN_DEFINE_TASK(QueriesTask)
ATTN_DEFINE_TASK(BiasTask)
ATTN_DEFINE_TASK(SinksTask)
#undef ATTN_DEFINE_TASK

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(RowSumsTaskF32);
HWY_EXPORT(RowSumsTaskF64);
HWY_EXPORT(KeysTaskF32);
HWY_EXPORT(KeysTaskF64);
HWY_EXPORT(QueriesTaskF32);
HWY_EXPORT(QueriesTaskF64);
HWY_EXPORT(BiasTaskF32);
HWY_EXPORT(BiasTaskF64);
HWY_EXPORT(SinksTaskF32);
HWY_EXPORT(SinksTaskF64);

template <>
BackwardKernels<float> backward_kernels() {
  return {HWY_DYNAMIC_DISPATCH(RowSumsTaskF32), HWY_DYNAMIC_DISPATCH(KeysTaskF32),
          HWY_DYNAMIC_DISPATCH(QueriesTaskF32), HWY_DYNAMIC_DISPATCH(BiasTaskF32),
          HWY_DYNAMIC_DISPATCH(SinksTaskF32)};
}
template <>
BackwardKernels<double> backward_kernels() {
  return {HWY_DYNAMIC_DISPATCH(RowSumsTaskF64), HWY_DYNAMIC_DISPATCH(KeysTaskF64),
          HWY_DYNAMIC_DISPATCH(QueriesTaskF64), HWY_DYNAMIC_DISPATCH(BiasTaskF64),
          HWY_DYNAMIC_DISPATCH(SinksTaskF64)};
}
}  // namespace attn::cpu
#endif
