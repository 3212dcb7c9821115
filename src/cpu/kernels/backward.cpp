// Backward attention (Dao 2023, FlashAttention-2, section 3.1.2), P recomputed from lse. Each
// output tile has one owner, or several that add in a fixed order. So there are no atomic sums and
// no quadratic memory, and results have the same bits for any number of threads.
//   row_sums: delta and the key ranges of strips; resets the counters of the keys tasks
//   keys:     dk and dv of a block of keys, and dq with them: backward_keys.cpp
//   queries:  dq alone, for a tile of rows; loops over tiles of keys
//   bias:     dbias of a tile of the bias, if the keys task does not compute it; loops over the
//             dimensions that the bias broadcasts
//   sinks:    dsink of a head
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/kernels/gradient-inl.h"
#include "cpu/kernels/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {

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
  std::fill_n(x.dq, count * qk, T(0));
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
      if (span.keys == 0 || !MaskLeavesAny(call, x.rows + strip, rows, span)) continue;
      if (!loaded) {
        LoadTransposed(call, config, entry, head_kv, x, j0, keys);
        LoadKeyTile(call, call.k, entry, head_kv, j0, keys, config.tile_kv, p.dim_qk, qk, x.k);
        loaded = true;
      }
      GradientStrip(call, config, entry, x, span, strip, rows, false);
      Gemm<T>({x.dp, span.cols, 1, x.k + span.first * qk, qk, x.dq + strip * qk, qk, rows, qk,
               span.keys, true});
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = x.rows[r];
    StoreGradient(call, call.dq,
                  row_address(call, call.dq, entry.b, entry.first_q, row.i, row.head),
                  x.dq + r * qk, static_cast<T>(call.numbers.scale), p.dim_qk, row.i < entry.len_q);
  }
}

// Adds a strip's score gradients to the tile of dbias, [tile_rows or 1][tile_kv or 1].
template <class T>
void ReduceStrip(const Problem& p, const Config& config, const Scratch<T>& x, const KeySpan& span,
                 std::int64_t row0, std::int64_t count) {
  for (std::int64_t r = 0; r < count; ++r) {
    const T* grad = x.dp + r * span.cols;
    T* out = x.dbias + (p.bias.q ? row0 + r : 0) * config.tile_kv;
    if (p.bias.kv) {
      for (std::int64_t c = 0; c < span.keys; ++c) out[span.first + c] += grad[c];
    } else {
      T sum = T(0);
      for (std::int64_t c = 0; c < span.keys; ++c) sum += grad[c];
      out[0] += sum;
    }
  }
}

// Adds one (batch, head)'s contribution to a bias tile: queries against keys.
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
        if (span.keys == 0 || !MaskLeavesAny(call, x.rows + strip, rows, span)) continue;
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
  const std::int64_t bias_entry = task / (grid.kv_tiles * grid.q_tiles * grid.heads);
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
  std::fill_n(x.dbias, rows * config.tile_kv, T(0));
  const std::int64_t sharers = p.bias.sharers(p.batch);
  const std::int64_t first = bias_entry * sharers;
  for (std::int64_t b = first; b < first + sharers; ++b) {
    const Entry entry = entry_of(call, b);
    for (std::int64_t h = bias_head; h < (p.bias.head ? bias_head + 1 : p.heads_q); ++h) {
      BiasPart(call, config, sums, entry, h, queries, keys, x);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    char* address = pair_address(call.dbias, first, bias_head, queries.begin + r, keys.begin);
    count_nonfinite(call, StoreRow(call.dbias.dtype, address, x.dbias + r * config.tile_kv, cols,
                                   p.accumulate, p.nonfinite_zero));
  }
}

// Resets the counters by which tasks of backward_qkv share sums: those of a (batch, key head), and
// entry n of the counters in task order.
template <class T>
void ResetCounters(const Call& call, const Config& config, const RowSums<T>& sums,
                   const Entry& entry, std::int64_t head_kv, std::int64_t n) {
  const Problem& p = call.problem;
  const std::int64_t tasks = key_tasks(p, config);
  if (sums.dq.next_block != nullptr) {
    const std::int64_t rows = call.numbers.heads_per_kv * entry.rows_q;
    std::fill_n(sums.next_blocks_of(call, entry, head_kv, config.strip_rows),
                divide_up(rows, config.strip_rows), 0);
    sums.dq.tasks_left[n] = tasks;
  }
  if (sums.dkv.heads_done != nullptr && n % config.dkv_terms == 0) {
    const std::int64_t first = n / config.dkv_terms * tasks;
    std::fill_n(sums.dkv.heads_done + first * config.blocks_of_task, tasks * config.blocks_of_task,
                0);
    std::fill_n(sums.dkv.tasks_left + first, tasks, config.dkv_terms);
  }
  if (sums.dbias.strips_done != nullptr) {
    std::fill_n(sums.dbias.strips_done + n * key_blocks(p, config), key_blocks(p, config), 0);
  }
}

// Stores dq of the strips that see no key: no task of backward_qkv visits them.
template <class T>
void StoreDqWithoutKeys(const Call& call, const Config& config, const RowSums<T>& sums,
                        const Entry& entry, std::int64_t head_kv, T* zeros) {
  const Problem& p = call.problem;
  const std::int64_t all_rows = call.numbers.heads_per_kv * entry.rows_q;
  const std::int64_t strips = divide_up(all_rows, config.strip_rows);
  const core::KeyRange* strip_keys = sums.strips_of(call, entry, head_kv, config.strip_rows);
  std::fill_n(zeros, padded<T>(p.dim_qk), T(0));
  for (std::int64_t strip = 0; strip < strips; ++strip) {
    if (!strip_keys[strip].empty()) continue;
    const std::int64_t begin = strip * config.strip_rows;
    RowPlace place(call, entry, head_kv, begin);
    for (std::int64_t r = begin; r < std::min(begin + config.strip_rows, all_rows); ++r) {
      StoreGradient(call, call.dq,
                    row_address(call, call.dq, entry.b, entry.first_q, place.i, place.head), zeros,
                    T(0), p.dim_qk, place.i < entry.len_q);
      place.next(entry);
    }
  }
}

// delta = dot(dout, o) - dlse, and the range of keys that each strip of rows may see.
template <class T>
void RowSumsTask(const Call& call, const Config& config, const RowSums<T>& sums, char* memory,
                 std::int64_t task) {
  const Problem& p = call.problem;
  const std::int64_t head_kv = task % p.heads_kv;
  const Entry entry = entry_of(call, task / p.heads_kv);
  Arena arena(memory);
  const RowSumsScratch<T> x = make_row_sums_scratch<T>(arena, p);
  core::KeyRange* strip_keys = sums.strips_of(call, entry, head_kv, config.strip_rows);
  std::fill_n(strip_keys, divide_up(call.numbers.heads_per_kv * entry.rows_q, config.strip_rows),
              core::KeyRange{entry.len_kv, 0});

  const std::int64_t all_rows = call.numbers.heads_per_kv * entry.rows_q;
  RowPlace place(call, entry, head_kv, 0);
  RowPlace ahead(call, entry, head_kv, kRowsAhead);
  std::int64_t strip = 0;
  for (std::int64_t r = 0; r < all_rows; ++r, place.next(entry), ahead.next(entry)) {
    if (r % 64 == 63 && core::interrupted(call.interrupt)) return;
    if (r + kRowsAhead < all_rows && !call.delta.given() && sums.delta != nullptr) {
      for (const StridedTensor* rows : {&call.dout, &call.o}) {
        PrefetchRow(row_address(call, *rows, entry.b, entry.first_q, ahead.i, ahead.head),
                    p.dim_vo * core::element_size(rows->dtype));
      }
    }
    if (r == (strip + 1) * config.strip_rows) ++strip;
    const TileRow row = row_at(call, entry, place);
    if (row.i < entry.len_q && !row.keys.empty()) {
      core::KeyRange& keys = strip_keys[strip];
      keys.begin = std::min(keys.begin, row.keys.begin);
      keys.end = std::max(keys.end, row.keys.end);
    }
    if (sums.delta == nullptr) continue;
    T& delta = sums.delta_of(call, entry, row.head, row.i);
    delta = T(0);
    if (row.i >= entry.len_q) continue;
    if (LoadStat<T>(call.lse, entry, row) == -std::numeric_limits<T>::infinity()) continue;
    if (call.delta.given()) {
      delta = LoadStat<T>(call.delta, entry, row);
      continue;
    }
    delta = DeltaOf(call, entry, row, x.dout, x.o);
  }
  ResetCounters(call, config, sums, entry, head_kv, task);
  if (dq_with_keys(p)) StoreDqWithoutKeys(call, config, sums, entry, head_kv, x.zeros);
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
HWY_EXPORT(QueriesTaskF32);
HWY_EXPORT(QueriesTaskF64);
HWY_EXPORT(BiasTaskF32);
HWY_EXPORT(BiasTaskF64);
HWY_EXPORT(SinksTaskF32);
HWY_EXPORT(SinksTaskF64);

template <>
BackwardKernels<float> backward_kernels() {
  return {HWY_DYNAMIC_DISPATCH(RowSumsTaskF32),
          keys_bf16_kernel(),
          keys_kernel<float>(),
          HWY_DYNAMIC_DISPATCH(QueriesTaskF32),
          HWY_DYNAMIC_DISPATCH(BiasTaskF32),
          HWY_DYNAMIC_DISPATCH(SinksTaskF32)};
}
template <>
BackwardKernels<double> backward_kernels() {
  return {HWY_DYNAMIC_DISPATCH(RowSumsTaskF64),
          nullptr,
          keys_kernel<double>(),
          HWY_DYNAMIC_DISPATCH(QueriesTaskF64),
          HWY_DYNAMIC_DISPATCH(BiasTaskF64),
          HWY_DYNAMIC_DISPATCH(SinksTaskF64)};
}
}  // namespace attn::cpu
#endif
