// Shared by all engines of backward_kv: the task's (batch, key head), the order in which blocks of
// keys add to dq, and that in which query heads add to dk and dv.
#if defined(ATTN_CPU_KEY_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_KEY_BLOCK_INL_H_
#undef ATTN_CPU_KEY_BLOCK_INL_H_
#else
#define ATTN_CPU_KEY_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/kernels/gradient-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/pair_ahead.hpp"
#include "cpu/kernels/row_prefetch.hpp"
#include "cpu/kernels/turns.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {

// The (batch, key head) of a task, or with dkv_terms > 1 the (batch, query head).
template <class T>
struct KeyHead {
  const Call& call;
  const Config& config;
  const RowSums<T>& sums;
  Entry entry;
  std::int64_t index;  // in task order
  std::int64_t head;
  std::int64_t head_kv;  // of k, v, dk and dv
  Scratch<T> x;
  PairAhead* ahead = nullptr;  // what to prefetch meanwhile, if the task has several pairs
};

// Whether `block` is the first and whether it is the last one with keys that the strip may see.
struct Ends {
  bool first, last;
};
template <class T>
Ends EndsOf(const KeyHead<T>& at, std::int64_t block, std::int64_t strip) {
  const core::KeyRange seen =
      at.sums.strips_of(at.call, at.entry, at.head, at.config.strip_rows)[strip];
  const bool first = block == seen.begin / at.config.block_kv;
  return {first, block == (seen.end - 1) / at.config.block_kv};
}

// Whether the sums of dq lie in the worker's own scratch: those of a strip that one block
// completes.
template <class T>
bool IsOwnDq(const KeyHead<T>& at, const Ends& ends) {
  return at.x.dq_strip != nullptr && ends.first && ends.last;
}

// Returns the loaded strip's dq sums, [count x dim_qk padded], for the block to add to.
template <class T>
T* LoadDq(const KeyHead<T>& at, std::int64_t strip, std::int64_t count, const Ends& ends) {
  const Problem& p = at.call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  if (IsOwnDq(at, ends)) {
    std::fill_n(at.x.dq_strip, count * qk, T(0));
    return at.x.dq_strip;
  }
  if (!dq_in_place(p)) {
    const std::int64_t slot = at.config.dq_slots > 0 ? at.index % at.config.dq_slots : 0;
    T* all = at.config.dq_slots > 0 ? at.sums.dq.accum + slot * dq_accum_size<T>(p) : at.x.dq;
    T* values = dq_of_strip(p, at.config) ? all : all + strip * at.config.strip_rows * qk;
    if (ends.first) std::fill_n(values, count * qk, T(0));
    return values;
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = at.x.rows[r];
    const char* source = ends.first ? nullptr
                                    : row_address(at.call, at.call.dq, at.entry.b, at.entry.first_q,
                                                  row.i, row.head);
    LoadRow(at.call.dq.dtype, source, p.dim_qk, qk, at.x.dq + r * qk);
  }
  return at.x.dq;
}

// Stores the gradient by the engine. Returns false if it can't, or if a row is padding.
inline bool StoreDqRounded(const KeyHead<float>& at, const float* values, std::int64_t count) {
  const Call& call = at.call;
  const Bf16Engine& engine = bf16_engine(at.config.engine);
  if (engine.store_rows == nullptr) return false;
  char* address[kBf16StripRows];
  float factor[kBf16StripRows];
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = at.x.rows[r];
    if (row.i >= at.entry.len_q) return false;
    address[r] = row_address(call, call.dq, at.entry.b, at.entry.first_q, row.i, row.head);
    factor[r] = static_cast<float>(call.numbers.scale);
  }
  engine.store_rows(values, padded<float>(call.problem.dim_qk), factor, count, call.problem.dim_qk,
                    address);
  return true;
}

// Call after the block has added to dq. The last block stores the gradient. Others store the sums
// if they are kept in dq.
template <class T>
void StoreDq(const KeyHead<T>& at, T* values, std::int64_t count, bool last) {
  const Call& call = at.call;
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  if (!last && !dq_in_place(p)) return;
  if constexpr (kMayHaveBf16Engine && sizeof(T) == 4) {
    if (last && at.config.engine != Engine::float_simd && rounds_only(call, call.dq) &&
        StoreDqRounded(at, values, count)) {
      return;
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = at.x.rows[r];
    char* address = row_address(call, call.dq, at.entry.b, at.entry.first_q, row.i, row.head);
    if (last) {
      StoreGradient(call, call.dq, address, values + r * qk, static_cast<T>(call.numbers.scale),
                    p.dim_qk, row.i < at.entry.len_q);
    } else {
      StoreRow(call.dq.dtype, address, values + r * qk, p.dim_qk, false, false);
    }
  }
}

// Waits until the preceding blocks have added to the strip's dq. Returns its sums; null if
// interrupted.
template <class T>
T* BeginDq(const KeyHead<T>& at, std::int64_t block, std::int64_t strip, std::int64_t count) {
  const Call& call = at.call;
  const Ends ends = EndsOf(at, block, strip);
  if (at.sums.dq.next_block != nullptr && !IsOwnDq(at, ends)) {
    std::int32_t* next = at.sums.next_blocks_of(call, at.entry, at.head, at.config.strip_rows);
    const std::int64_t before = at.index - at.config.dq_slots;  // used this slot before
    if (at.config.dq_slots > 0 && before >= 0 &&
        !wait_for_zero(at.sums.dq.tasks_left[before], call.interrupt)) {
      return nullptr;
    }
    if (!ends.first &&
        !wait_for_turn(next[strip], static_cast<std::int32_t>(block), call.interrupt)) {
      return nullptr;
    }
  }
  return LoadDq(at, strip, count, ends);
}

template <class T>
void EndDq(const KeyHead<T>& at, std::int64_t block, std::int64_t strip, std::int64_t count,
           T* dq) {
  StoreDq(at, dq, count, EndsOf(at, block, strip).last);
  if (at.sums.dq.next_block == nullptr) return;
  std::int32_t* next = at.sums.next_blocks_of(at.call, at.entry, at.head, at.config.strip_rows);
  pass_turn(next[strip], static_cast<std::int32_t>(block + 1));
}

// A block of keys. Those inside of the sequence are [j0, j0 + keys).
struct KeyBlock {
  std::int64_t index = 0;
  std::int64_t j0 = 0;
  std::int64_t keys = 0;
  std::int64_t owned = 0;    // including the padding after the sequence
  std::uint64_t loaded = 0;  // one bit per tile
};

// The sums of a block's dk and dv.
template <class T>
struct KeySums {
  struct {
    T* values;
    std::int64_t count;
  } parts[2];
};

template <class T>
void AddSums(const T* HWY_RESTRICT from, std::int64_t count, T* HWY_RESTRICT to) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  for (std::int64_t c = 0; c < count; c += kLanes) {
    hn::Store(hn::Add(hn::Load(d, to + c), hn::Load(d, from + c)), d, to + c);
  }
}

// With dkv_terms > 1: adds a block's sums to those of the query heads before, when these have
// finished. The last head's sums are then complete. unit: of the task, see dkv_units(); block:
// among those of the task. Returns false if interrupted.
template <class T>
bool AddToHeads(const KeyHead<T>& at, std::int64_t unit, std::int64_t block,
                const KeySums<T>& sums) {
  const Config& config = at.config;
  const SharedDkv<T>& dkv = at.sums.dkv;
  core::Interrupt* interrupt = at.call.interrupt;
  const auto term = static_cast<std::int32_t>(at.index % config.dkv_terms);
  const bool last = term == config.dkv_terms - 1;
  std::int32_t& heads_done = dkv.heads_done[unit * config.blocks_of_task + block];
  if (term == 0) {
    const std::int64_t before = unit - config.dkv_slots;  // used this slot before
    if (before >= 0 && !wait_for_zero(dkv.tasks_left[before], interrupt)) return false;
  } else if (!wait_for_turn(heads_done, term, interrupt)) {
    return false;
  }
  const std::int64_t place = unit % config.dkv_slots * config.blocks_of_task + block;
  T* shared = dkv.accum + place * key_sums_size<T>(at.call.problem, config);
  for (const auto& [values, count] : sums.parts) {
    if (term == 0) {
      std::copy_n(values, count, shared);
    } else if (last) {
      AddSums(shared, count, values);
    } else {
      AddSums(values, count, shared);
    }
    shared += count;
  }
  if (!last) pass_turn(heads_done, term + 1);
  return true;
}

// Where the tile at offset `begin` of a block is kept.
inline std::int64_t place_of(const Config& config, std::int64_t begin) {
  return begin % kept_keys(config);
}

// With ring_tiles: stores the tiles of keys from offset `end` of the block on that are not stored
// yet, by store(begin, end). Strips descend, and so do the keys that they see: no later strip sees
// one of them. Tiles that no strip saw are first cleared, by clear(place). unstored: keys of the
// block before those that are stored.
template <class Clear, class Store>
void StoreTilesFrom(const Config& config, const KeyBlock& block, std::int64_t end,
                    std::int64_t& unstored, const Clear& clear, const Store& store) {
  const std::int64_t tile = config.tile_kv;
  while (unstored > 0 && unstored - tile >= end) {
    unstored -= tile;
    if ((block.loaded >> (unstored / tile) & 1) == 0) clear(place_of(config, unstored));
    store(unstored, std::min(unstored + tile, block.owned));
  }
}

// What is prefetched step by step while a strip is multiplied: the rows of the next one; with
// ring_tiles also where this one's dq is stored, the next tile of keys, and where dk and dv of the
// next finished tile are stored. Strips descend, so the next ones have lower indices. row: the
// strip's first row; count: its number of rows; unstored: keys of the block before those that are
// stored.
template <class T>
void FindNext(const KeyHead<T>& at, const TileRow& row, std::int64_t count, const KeyBlock& block,
              core::KeyRange seen, std::int64_t unstored, RowPrefetch& to) {
  const Call& call = at.call;
  const Problem& p = call.problem;
  const std::int64_t tile = at.config.tile_kv;
  to.clear();
  const auto add = [&](const StridedTensor& rows, std::int64_t first, std::int64_t head,
                       std::int64_t i, std::int64_t end, std::int64_t dim) {
    const std::int64_t begin = std::max<std::int64_t>(i, 0);
    if (begin >= end) return;
    to.add(row_address(call, rows, at.entry.b, first, begin, head), rows.stride_row,
           dim * core::element_size(rows.dtype), end - begin);
  };
  const auto add_rows = [&](const StridedTensor& rows, std::int64_t i, std::int64_t dim) {
    add(rows, at.entry.first_q, row.head, i, std::min(i + at.config.strip_rows, at.entry.len_q),
        dim);
  };
  add_rows(call.q, row.i - at.config.strip_rows, p.dim_qk);
  add_rows(call.dout, row.i - at.config.strip_rows, p.dim_vo);
  if (at.sums.delta == nullptr) add_rows(call.o, row.i - at.config.strip_rows, p.dim_vo);
  if (at.config.ring_tiles == 0) return;
  if (p.dq) {
    add(call.dq, at.entry.first_q, row.head, row.i, std::min(row.i + count, at.entry.len_q),
        p.dim_qk);
  }
  const auto add_keys = [&](const StridedTensor& rows, std::int64_t offset, std::int64_t dim) {
    if (offset < 0) return;
    add(rows, at.entry.first_kv, at.head_kv, block.j0 + offset,
        block.j0 + std::min(offset + tile, block.keys), dim);
  };
  if (seen.begin >= block.j0 && seen.begin < seen.end) {
    const std::int64_t next = ((seen.begin - block.j0) / tile - 1) * tile;
    add_keys(call.k, next, p.dim_qk);
    add_keys(call.v, next, p.dim_vo);
  }
  if (p.dk) add_keys(call.dk, unstored - tile, p.dim_qk);
  if (p.dv) add_keys(call.dv, unstored - tile, p.dim_vo);
}

// The tile after the one that begins at `begin`: the block's next tile, or its first tile for the
// next strip. Strips descend, so that one has lower rows.
inline NextScores NextOf(const KeyBlock& block, std::int64_t begin, const Config& config) {
  const std::int64_t next = begin + config.tile_kv;
  if (next < block.keys) return {0, block.j0 + next, std::min(config.tile_kv, block.keys - next)};
  return {-config.strip_rows, block.j0, std::min(config.tile_kv, block.keys)};
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_KEY_BLOCK_INL_H_
