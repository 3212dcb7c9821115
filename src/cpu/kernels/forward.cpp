// Forward attention with online softmax (Milakov and Gimelshein 2018; Dao 2023, FlashAttention-2,
// section 3.1): computes o and lse of a tile of query rows in one pass over its keys.
//
// A task is one tile of rows of one (batch, key head) against one split of the keys. Each tile of
// keys and values is loaded once for the tile of rows. Then each strip of rows computes S = Q K^T
// in L1, its softmax, and O += P V. Tiles of keys that no row of a strip sees are skipped. The
// engine defines how tiles are stored and multiplied: FloatOps or Bf16Ops in tile_ops/. With
// splits, partial o, maxima and sums go to the workspace, and MergeSplits combines them.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/forward.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cpu/kernels/finish_rows-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/pair_ahead.hpp"
#include "cpu/kernels/tile_ops/bf16_ops-inl.h"
#include "cpu/kernels/tile_ops/float_ops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {

// Loads the tile's rows and clears their state. Returns the range of keys that any row sees.
template <class Ops>
core::KeyRange LoadRows(const Call& call, const Entry& entry, std::int64_t head_kv,
                        std::int64_t row0, std::int64_t count, Ops& ops) {
  using T = typename Ops::T;
  const Scratch<T>& x = ops.state();
  const core::KeyRange seen = make_rows(call, entry, head_kv, row0, count, x.rows);
  const float descale = call.q.descale(entry.b, head_kv);
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = x.rows[r];
    if (r + kRowsAhead < count) {
      const TileRow& ahead = x.rows[r + kRowsAhead];
      PrefetchRow(row_address(call, call.q, entry.b, entry.first_q, ahead.i, ahead.head),
                  call.problem.dim_qk * core::element_size(call.q.dtype));
    }
    ops.LoadQuery(r,
                  row.keys.empty()
                      ? nullptr
                      : row_address(call, call.q, entry.b, entry.first_q, row.i, row.head),
                  descale);
  }
  const std::int64_t o_rows = ops.o_rows(count);
  for (std::int64_t r = count; r < o_rows; ++r) ops.LoadQuery(r, nullptr);
  if constexpr (!Ops::kStoresFirst) std::fill_n(x.o, o_rows * padded<T>(call.problem.dim_vo), T(0));
  std::fill_n(x.row_max, count, -kInfinity<T>);
  std::fill_n(x.row_sum, count, T(0));
  return seen;
}

// Prefetches all keys and values of a short sequence before its queries are loaded. Its loops over
// rows are too short for a prefetch a few rows ahead.
inline void PrefetchShort(const Call& call, const Config& config, const Entry& entry,
                          std::int64_t head_kv) {
  if (config.pack_keys || entry.len_kv > config.tile_kv) return;
  for (const StridedTensor* rows : {&call.k, &call.v}) {
    const std::int64_t dim = rows == &call.k ? call.problem.dim_qk : call.problem.dim_vo;
    for (std::int64_t j = 0; j < entry.len_kv; ++j) {
      PrefetchRow(row_address(call, *rows, entry.b, entry.first_kv, j, head_kv),
                  dim * core::element_size(rows->dtype));
    }
  }
}

// What is prefetched while this pair is computed.
inline void FindPairAhead(const Call& call, const Config& config, const Entry& entry,
                          std::int64_t head_kv, std::int64_t pair, PairAhead& ahead) {
  const Problem& p = call.problem;
  const std::int64_t next = next_pair(p, config, pair);
  if (next >= 0) {
    const Entry of_next = entry_of(call, next / p.heads_kv);
    const std::int64_t head = next % p.heads_kv;
    ahead.add_keys(call.k, of_next, head, p.dim_qk);
    ahead.add_keys(call.v, of_next, head, p.dim_vo);
    ahead.add_queries(call, call.q, of_next, head, p.dim_qk);
  }
  ahead.add_queries(call, call.o, entry, head_kv, p.dim_vo);
}

// For each strip of a tile of rows.
struct StripRanges {
  StripKeys strips[kMostStrips];
};
inline void FindRanges(const Call& call, const Config& config, const TileRow* rows,
                       std::int64_t count, StripRanges& to) {
  for (std::int64_t n = 0; n * config.strip_rows < count; ++n) {
    const std::int64_t row = n * config.strip_rows;
    to.strips[n] = FindStripKeys(call, rows + row, std::min(config.strip_rows, count - row));
  }
}

// Processes all strips of the tile's rows against keys [j0, j0 + keys).
template <class Ops>
void AttendTile(const Call& call, const Config& config, const Entry& entry, std::int64_t head_kv,
                std::int64_t count, const StripRanges& ranges, std::int64_t j0, std::int64_t keys,
                Ops& ops) {
  const auto& x = ops.state();
  const std::int64_t mask_words = MaskWordsBefore(call, j0);
  bool loaded = false;
  for (std::int64_t strip = 0; strip < count; strip += config.strip_rows) {
    const StripKeys& strip_keys = ranges.strips[strip / config.strip_rows];
    const std::int64_t rows = std::min(config.strip_rows, count - strip);
    KeySpan span = SpanOfStrip(strip_keys, Ops::kSpanStep, j0, keys, mask_words,
                               [&] { return Ops::SpanOf(x.rows + strip, rows, j0, keys); });
    if (span.keys == 0) continue;
    NextScores next{config.strip_rows, j0, keys};
    if (strip + config.strip_rows >= count) {
      next = {-strip, j0 + config.tile_kv,
              std::min(config.tile_kv, entry.len_kv - j0 - config.tile_kv)};
    }
    if (!ops.Sees(entry, span, next, strip, rows)) continue;
    const bool paged = call.problem.page_size > 0;
    if (!loaded) {
      ops.LoadKeys(entry, head_kv, j0, keys);
      if (paged) FindMissing(call, entry, j0, keys, x.missing);
      loaded = true;
    }
    if (paged) {
      span.missing = x.missing + span.first;
      span.mask_bits = nullptr;
    }
    ops.AttendStrip(entry, span, next, strip, rows);
  }
}

// Stores the rows of a tile after the last key of the split.
template <class Ops>
void FinishRows(const Call& call, const Config& config, const Partials<typename Ops::T>& partials,
                const Entry& entry, std::int64_t split, std::int64_t count, Ops& ops) {
  using T = typename Ops::T;
  const Problem& p = call.problem;
  const auto& x = ops.state();
  const std::int64_t vo = padded<T>(p.dim_vo);
  if constexpr (Ops::kStoresFirst) {
    ops.ClearUnseen(count);
    if (config.splits == 1 && FinishRounded(call, entry, count, ops.engine(), ops.o_scale(), x)) {
      return;
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = x.rows[r];
    T* o = x.o + r * vo;
    if (r + kRowsAhead < count) {
      const TileRow& ahead = x.rows[r + kRowsAhead];
      PrefetchRow<true>(row_address(call, call.o, entry.b, entry.first_q, ahead.i, ahead.head),
                        p.dim_vo * core::element_size(p.out_type()));
    }
    ops.OrderO(o);
    if (ops.o_scale() != T(1)) ScaleRow(o, ops.o_scale(), vo);
    if (config.splits == 1) {
      FinishRow(call, entry, row, x.row_max[r], x.row_sum[r], o);
    } else {
      const std::int64_t at = partials.index(call, entry, row.head, row.i) + split;
      std::copy_n(o, vo, partials.o + at * vo);
      partials.row_max[at] = x.row_max[r];
      partials.row_sum[at] = x.row_sum[r];
    }
  }
}

// The rows [row0, row0 + count) of a key head, strip by strip. Each strip takes all of its keys at
// once (Config::span_keys).
template <class Ops>
void AttendSpans(const Call& call, const Config& config,
                 const ForwardShared<typename Ops::T>& shared, const Entry& entry,
                 std::int64_t head_kv, std::int64_t row0, std::int64_t count, Ops& ops) {
  const std::int64_t end = row0 + count;
  while (row0 < end) {
    if (core::interrupted(call.interrupt)) return;
    // A strip of two heads would see the keys between their windows.
    const std::int64_t of_head = entry.rows_q - row0 % entry.rows_q;
    const std::int64_t rows = std::min({config.strip_rows, end - row0, of_head});
    const core::KeyRange seen = LoadRows(call, entry, head_kv, row0, rows, ops);
    if (!seen.empty()) {
      KeySpan span = Ops::SpanOf(ops.state().rows, rows, 0, entry.len_kv);
      ops.LoadSpan(entry, head_kv, span);
      ops.PrefetchNext(entry, head_kv, rows);
      ops.AttendStrip(entry, span, {config.strip_rows, span.j0, span.keys}, 0, rows);
    }
    FinishRows(call, config, shared.partials, entry, 0, rows, ops);
    row0 += rows;
  }
}

template <class Ops>
void ForwardTask(const Call& call, const Config& config,
                 const ForwardShared<typename Ops::T>& shared, char* memory, std::int64_t task) {
  using T = typename Ops::T;
  const Problem& p = call.problem;
  const std::int64_t tiles = row_tiles(p, config);
  const std::int64_t split = task % config.splits;
  // Causal work grows with the row: the longest tiles start first.
  std::int64_t tile = tiles - 1 - task / config.splits % tiles;
  std::int64_t head_kv = task / (config.splits * tiles) % p.heads_kv;
  if (config.heads_in_turn) {
    head_kv = task % p.heads_kv;
    tile = task / p.heads_kv % tiles;
    if (p.causal && config.span_keys == 0) tile = tiles - 1 - tile;
  }
  const Entry entry = entry_of(call, task / (config.splits * tiles * p.heads_kv));
  const std::int64_t row0 = tile * config.tile_rows;
  const std::int64_t count =
      std::min(config.tile_rows, call.numbers.heads_per_kv * entry.rows_q - row0);
  if (count <= 0) return;

  if (task % config.pairs_of_task == 0) PrefetchShort(call, config, entry, head_kv);
  Ops ops(call, config, shared.packed, memory);
  PairAhead pair_ahead;
  if (config.pairs_of_task > 1) {
    FindPairAhead(call, config, entry, head_kv, task, pair_ahead);
    ops.SetPairAhead(&pair_ahead, count);
  }
  if constexpr (Ops::kStoresFirst) {
    if (config.span_keys > 0) {
      return AttendSpans(call, config, shared, entry, head_kv, row0, count, ops);
    }
  }
  const Scratch<T>& x = ops.state();
  const core::KeyRange seen = LoadRows(call, entry, head_kv, row0, count, ops);
  StripRanges ranges;
  FindRanges(call, config, x.rows, count, ranges);
  const std::int64_t split_begin = split * config.split_keys;
  const std::int64_t end = std::min(seen.end, split_begin + config.split_keys);
  std::int64_t j0 = split_begin;
  if (seen.begin > j0) j0 += (seen.begin - j0) / config.tile_kv * config.tile_kv;
  for (; j0 < end; j0 += config.tile_kv) {
    if (core::interrupted(call.interrupt)) return;
    AttendTile(call, config, entry, head_kv, count, ranges, j0, std::min(config.tile_kv, end - j0),
               ops);
  }
  FinishRows(call, config, shared.partials, entry, split, count, ops);
}

// A tile of keys of all heads of a task, in the order of memory (Config::heads_together).
template <class T>
void AttendHeads(const Call& call, const Config& config, const Entry& entry, std::int64_t head,
                 std::int64_t count, std::int64_t j0, std::int64_t keys, FloatOps<T>& ops) {
  const std::int64_t heads = config.heads_of_task;
  const std::int64_t mask_words = MaskWordsBefore(call, j0);
  const NextScores next{0, j0 + config.tile_kv,
                        std::min(config.tile_kv, entry.len_kv - j0 - config.tile_kv)};
  const auto& x = ops.state();
  if (call.problem.page_size > 0) FindMissing(call, entry, j0, keys, x.missing);
  for (std::int64_t n = 0; n < heads; ++n) {
    ops.SelectHead(n);
    KeySpan span =
        SpanOfStrip(FindStripKeys(call, x.rows, count), FloatOps<T>::kSpanStep, j0, keys,
                    mask_words, [&] { return FloatOps<T>::SpanOf(x.rows, count, j0, keys); });
    if (span.keys > 0 && !ops.Sees(entry, span, next, 0, count)) span = {};
    if (span.keys > 0) ops.LoadKeys(entry, head + n, j0, keys);
    if (call.problem.page_size > 0) {
      span.missing = x.missing + span.first;
      span.mask_bits = nullptr;
    }
    ops.BeginTile(span, next, count);
  }
  const auto each = [&](const auto& step) {
    for (std::int64_t n = 0; n < heads; ++n) {
      ops.SelectHead(n);
      step();
    }
  };
  for (std::int64_t j = 0; j < config.tile_kv; j += kKeysAtOnce) each([&] { ops.DotKeys(j); });
  each([&] { ops.SoftmaxOfTile(entry); });
  for (std::int64_t j = 0; j < keys; j += kKeysOfValues) each([&] { ops.AddKeys(j); });
}

// A task with gemv: all rows of config.heads_of_task key heads against one split of the keys.
template <class T>
void HeadsTask(const Call& call, const Config& config, const ForwardShared<T>& shared, char* memory,
               std::int64_t task) {
  const std::int64_t heads = config.heads_of_task;
  const std::int64_t groups = call.problem.heads_kv / heads;
  const std::int64_t split = task % config.splits;
  const std::int64_t head = task / config.splits % groups * heads;
  const Entry entry = entry_of(call, task / (config.splits * groups));
  const std::int64_t count = call.numbers.heads_per_kv * entry.rows_q;
  if (count <= 0) return;

  FloatOps<T> ops(call, config, shared.packed, memory);
  const std::int64_t split_begin = split * config.split_keys;
  core::KeyRange keys{entry.len_kv, 0};
  for (std::int64_t n = 0; n < heads; ++n) {
    ops.SelectHead(n);
    const core::KeyRange seen = LoadRows(call, entry, head + n, 0, count, ops);
    ops.PackQueries(count);
    keys.begin = std::min(keys.begin, seen.begin);
    keys.end = std::max(keys.end, seen.end);
  }
  // Only full tiles of the split are skipped, so that the bits do not depend on the other heads.
  const std::int64_t skipped = std::max<std::int64_t>(keys.begin - split_begin, 0);
  keys.begin = split_begin + skipped / config.tile_kv * config.tile_kv;
  keys.end = std::min(keys.end, split_begin + config.split_keys);
  RowsAhead ahead(call, entry, head, heads, keys);
  if (!config.heads_together) ahead.Step(heads * config.tile_kv);
  ops.SetAhead(&ahead);
  ops.StartProducts(count);
  StripRanges ranges;
  for (std::int64_t j0 = keys.begin; j0 < keys.end; j0 += config.tile_kv) {
    if (j0 / config.tile_kv % 4 == 3 && core::interrupted(call.interrupt)) return;
    if (config.heads_together) {
      AttendHeads(call, config, entry, head, count, j0, std::min(config.tile_kv, keys.end - j0),
                  ops);
      continue;
    }
    ahead.Restart(j0 + config.tile_kv);
    for (std::int64_t n = 0; n < heads; ++n) {
      ops.SelectHead(n);
      FindRanges(call, config, ops.state().rows, count, ranges);
      AttendTile(call, config, entry, head + n, count, ranges, j0,
                 std::min(config.tile_kv, keys.end - j0), ops);
    }
  }
  for (std::int64_t n = 0; n < heads; ++n) {
    ops.SelectHead(n);
    FinishRows(call, config, shared.partials, entry, split, count, ops);
  }
}

// A task packs one tile of keys of one (batch, key head) for the tasks above. pack(entry, head, j0,
// keys).
template <class Pack>
void PackKeysTask(const Call& call, const Config& config, std::int64_t task, Pack&& pack) {
  const std::int64_t tiles = key_tiles(call.problem, config);
  const std::int64_t heads = call.problem.heads_kv;
  const std::int64_t j0 = task % tiles * config.tile_kv;
  const Entry entry = entry_of(call, task / (tiles * heads));
  const std::int64_t keys = std::min(config.tile_kv, entry.len_kv - j0);
  if (keys > 0 && !core::interrupted(call.interrupt)) pack(entry, task / tiles % heads, j0, keys);
}

template <class T>
void PackKeys(const Call& call, const Config& config, const ForwardShared<T>& shared, char* memory,
              std::int64_t task) {
  T* k_t =
      static_cast<T*>(shared.packed.k) + task * config.tile_kv * padded<T>(call.problem.dim_qk);
  T* v = static_cast<T*>(shared.packed.v) + task * config.tile_kv * padded<T>(call.problem.dim_vo);
  PackKeysTask(call, config, task,
               [&](const Entry& entry, std::int64_t head, std::int64_t j0, std::int64_t keys) {
                 ConvertTile(call, config, entry, head, j0, keys, reinterpret_cast<T*>(memory), k_t,
                             v);
               });
}

// The same for a bf16 engine.
template <class T>
void PackKeysOfEngine(const Call& call, const Config& config, const ForwardShared<T>& shared,
                      std::int64_t task) {
  Bf16Bits* k_t = static_cast<Bf16Bits*>(shared.packed.k) +
                  task * config.tile_kv * round_up(call.problem.dim_qk, kPackedDepth);
  Bf16Bits* v = static_cast<Bf16Bits*>(shared.packed.v) +
                task * config.tile_kv * round_up(call.problem.dim_vo, 2 * kPackedCols);
  PackKeysTask(call, config, task,
               [&](const Entry& entry, std::int64_t head, std::int64_t j0, std::int64_t keys) {
                 PackTile(call, bf16_engine(config.engine), entry, head, j0, keys, k_t, v);
               });
}

// A task merges the splits of the rows of one (batch, query head).
template <class T>
void MergeSplits(const Call& call, const Config& config, const ForwardShared<T>& shared,
                 char* memory, std::int64_t task) {
  const Partials<T>& partials = shared.partials;
  const Problem& p = call.problem;
  const std::int64_t vo = padded<T>(p.dim_vo);
  const Entry entry = entry_of(call, task / p.heads_q);
  TileRow row;
  row.head = task % p.heads_q;
  T* o = reinterpret_cast<T*>(memory);
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
    std::fill_n(o, vo, T(0));
    for (std::int64_t n = 0; n < config.splits; ++n) {
      const T weight = std::exp(partials.row_max[first + n] - shift);
      row_sum += weight * partials.row_sum[first + n];
      const T* part = partials.o + (first + n) * vo;
      for (std::int64_t c = 0; c < vo; c += static_cast<std::int64_t>(hn::MaxLanes(d))) {
        hn::Store(hn::MulAdd(hn::Set(d, weight), hn::Load(d, part + c), hn::Load(d, o + c)), d,
                  o + c);
      }
    }
    FinishRow(call, entry, row, row_max, row_sum, o);
  }
}

}  // namespace

void ForwardTaskF32(const Call& call, const Config& config, const ForwardShared<float>& shared,
                    char* memory, std::int64_t task) {
  config.gemv ? HeadsTask(call, config, shared, memory, task)
              : ForwardTask<FloatOps<float>>(call, config, shared, memory, task);
}
void ForwardTaskBf16(const Call& call, const Config& config, const ForwardShared<float>& shared,
                     char* memory, std::int64_t task) {
  if constexpr (kMayHaveBf16Engine) ForwardTask<Bf16Ops>(call, config, shared, memory, task);
}
void ForwardTaskF64(const Call& call, const Config& config, const ForwardShared<double>& shared,
                    char* memory, std::int64_t task) {
  config.gemv ? HeadsTask(call, config, shared, memory, task)
              : ForwardTask<FloatOps<double>>(call, config, shared, memory, task);
}
void PackKeysF32(const Call& call, const Config& config, const ForwardShared<float>& shared,
                 char* memory, std::int64_t task) {
  PackKeys<float>(call, config, shared, memory, task);
}
void PackKeysF64(const Call& call, const Config& config, const ForwardShared<double>& shared,
                 char* memory, std::int64_t task) {
  PackKeys<double>(call, config, shared, memory, task);
}
void PackKeysBf16(const Call& call, const Config& config, const ForwardShared<float>& shared, char*,
                  std::int64_t task) {
  if constexpr (kMayHaveBf16Engine) PackKeysOfEngine(call, config, shared, task);
}
void MergeSplitsF32(const Call& call, const Config& config, const ForwardShared<float>& shared,
                    char* memory, std::int64_t task) {
  MergeSplits<float>(call, config, shared, memory, task);
}
void MergeSplitsF64(const Call& call, const Config& config, const ForwardShared<double>& shared,
                    char* memory, std::int64_t task) {
  MergeSplits<double>(call, config, shared, memory, task);
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(PackKeysF32);
HWY_EXPORT(PackKeysF64);
HWY_EXPORT(PackKeysBf16);
HWY_EXPORT(ForwardTaskF32);
HWY_EXPORT(ForwardTaskF64);
HWY_EXPORT(ForwardTaskBf16);
HWY_EXPORT(MergeSplitsF32);
HWY_EXPORT(MergeSplitsF64);

template <>
ForwardKernels<float> forward_kernels() {
  return {HWY_DYNAMIC_DISPATCH(PackKeysF32), HWY_DYNAMIC_DISPATCH(PackKeysBf16),
          HWY_DYNAMIC_DISPATCH(ForwardTaskF32), HWY_DYNAMIC_DISPATCH(ForwardTaskBf16),
          HWY_DYNAMIC_DISPATCH(MergeSplitsF32)};
}
template <>
ForwardKernels<double> forward_kernels() {
  return {HWY_DYNAMIC_DISPATCH(PackKeysF64), nullptr, HWY_DYNAMIC_DISPATCH(ForwardTaskF64), nullptr,
          HWY_DYNAMIC_DISPATCH(MergeSplitsF64)};
}
}  // namespace attn::cpu
#endif
