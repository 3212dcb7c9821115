// dk and dv of tiles of keys, and dq with them where it is wanted: for each tile of keys the strips
// of rows that see it, S = Q K^T, dP = dO V^T, dV += P^T dO, dK += dS^T Q, dQ += dS K.
//
// A task owns the dk and dv of its tiles. A strip's dq is summed over tiles of keys in ascending
// order: one task owns all tiles of a (batch, key head), or the tasks wait for their turn, strip by
// strip. Sums lie in dq itself where its type allows, else in f32 (f64 for f64) next to it. So the
// bits never depend on how tiles are cut into tasks, nor on the threads.
//
// Waiting ends: tasks start in ascending order and wait only for those before them, which have
// either ended or run on a thread of their own.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward_keys.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/kernels/gradient-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/turns.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {

// The (batch, key head) of a task.
template <class T>
struct KeyHead {
  const Call& call;
  const Config& config;
  const RowSums<T>& sums;
  Entry entry;
  std::int64_t index;  // b * heads_kv + head
  std::int64_t head;
  Scratch<T> x;
};

// The loaded strip's sums of dq, [count x dim_qk padded], before the tile of keys adds to them.
template <class T>
T* LoadDq(const KeyHead<T>& at, std::int64_t strip, std::int64_t count, bool first) {
  const Problem& p = at.call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  if (!dq_in_place(p)) {
    const std::int64_t slot = at.config.dq_slots > 0 ? at.index % at.config.dq_slots : 0;
    T* all = at.config.dq_slots > 0 ? at.sums.dq.accum + slot * dq_accum_size<T>(p) : at.x.dq;
    T* values = all + strip * at.config.strip_rows * qk;
    if (first) std::fill_n(values, count * qk, T(0));
    return values;
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const TileRow& row = at.x.rows[r];
    const char* source =
        first ? nullptr
              : row_address(at.call, at.call.dq, at.entry.b, at.entry.first_q, row.i, row.head);
    LoadRow(at.call.dq.dtype, source, p.dim_qk, qk, at.x.dq + r * qk);
  }
  return at.x.dq;
}

// After it: the gradient if it was the last one, else the sums, if they lie in dq.
template <class T>
void StoreDq(const KeyHead<T>& at, T* values, std::int64_t count, bool last) {
  const Call& call = at.call;
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  if (!last && !dq_in_place(p)) return;
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

// dQ += dS K for the loaded strip and tile of keys. False: interrupted while it waited.
template <class T>
bool AddToDq(const KeyHead<T>& at, std::int64_t tile, std::int64_t strip, std::int64_t count,
             const KeySpan& span) {
  const Call& call = at.call;
  const std::int64_t tile_kv = at.config.tile_kv;
  const std::int64_t strip_rows = at.config.strip_rows;
  const core::KeyRange seen = at.sums.strips_of(call, at.entry, at.head, strip_rows)[strip];
  const bool first = tile == seen.begin / tile_kv;
  const bool last = tile == (seen.end - 1) / tile_kv;
  std::int32_t* next_tile = nullptr;
  if (at.sums.dq.next_tile != nullptr) {
    next_tile = at.sums.next_tiles_of(call, at.entry, at.head, strip_rows) + strip;
    const std::int64_t before = at.index - at.config.dq_slots;  // had the slot of sums
    if (at.config.dq_slots > 0 && before >= 0 &&
        !wait_for_zero(at.sums.dq.tasks_left[before], call.interrupt)) {
      return false;
    }
    if (!first && !wait_for_turn(*next_tile, static_cast<std::int32_t>(tile), call.interrupt)) {
      return false;
    }
  }
  const std::int64_t qk = padded<T>(call.problem.dim_qk);
  T* dq = LoadDq(at, strip, count, first);
  if (span.keys > 0) {
    Gemm<T>(
        {at.x.dp, span.cols, 1, at.x.k + span.first * qk, qk, dq, qk, count, qk, span.keys, true});
  }
  StoreDq(at, dq, count, last);
  if (next_tile != nullptr) pass_turn(*next_tile, static_cast<std::int32_t>(tile + 1));
  return true;
}

template <class T>
void LoadKeys(const KeyHead<T>& at, std::int64_t j0, std::int64_t keys) {
  const Problem& p = at.call.problem;
  LoadTransposed(at.call, at.config, at.entry, at.head, at.x, j0, keys);
  if (!p.dq) return;
  LoadKeyTile(at.call, at.call.k, at.entry, at.head, j0, keys, at.config.tile_kv, p.dim_qk,
              padded<T>(p.dim_qk), at.x.k);
}

// Rows [0, owned) of a tile of keys; those from `keys` on are padding.
template <class T>
void StoreKeyGradients(const KeyHead<T>& at, std::int64_t j0, std::int64_t owned,
                       std::int64_t keys) {
  const auto& [call, config, sums, entry, index, head_kv, x] = at;
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
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

// False: interrupted.
template <class T>
bool KeyTile(const KeyHead<T>& at, std::int64_t tile) {
  const auto& [call, config, sums, entry, index, head_kv, x] = at;
  const Problem& p = call.problem;
  const std::int64_t j0 = tile * config.tile_kv;
  const std::int64_t owned = std::min(config.tile_kv, entry.rows_kv - j0);
  if (owned <= 0) return true;
  const std::int64_t keys = std::clamp<std::int64_t>(entry.len_kv - j0, 0, owned);
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  std::fill_n(x.acc_a, config.tile_kv * qk, T(0));
  std::fill_n(x.acc_b, config.tile_kv * vo, T(0));

  bool loaded = false;
  const std::int64_t all_rows = call.numbers.heads_per_kv * entry.rows_q;
  const core::KeyRange* strip_keys = sums.strips_of(call, entry, head_kv, config.strip_rows);
  for (std::int64_t strip = 0; strip * config.strip_rows < all_rows; ++strip) {
    if (!(strip_keys[strip].begin < j0 + keys && strip_keys[strip].end > j0)) continue;
    if (core::interrupted(call.interrupt)) return false;
    const std::int64_t row0 = strip * config.strip_rows;
    const std::int64_t count = std::min(config.strip_rows, all_rows - row0);
    LoadRows(call, entry, sums, head_kv, row0, count, x);
    const KeySpan span = SeenSpan<T>(x.rows, count, j0, keys);
    if (span.keys > 0) {
      if (!loaded) LoadKeys(at, j0, keys);
      loaded = true;
      GradientStrip(call, config, entry, x, span, 0, count, false);
      T* dv = x.acc_b + span.first * vo;
      T* dk = x.acc_a + span.first * qk;
      if (p.dv) Gemm<T>({x.s, 1, span.cols, x.dout, vo, dv, vo, span.keys, vo, count, true});
      if (p.dk) Gemm<T>({x.dp, 1, span.cols, x.q, qk, dk, qk, span.keys, qk, count, true});
    }
    if (p.dq && !AddToDq(at, tile, strip, count, span)) return false;
  }
  StoreKeyGradients(at, j0, owned, keys);
  return true;
}

template <class T>
void KeysTask(const Call& call, const Config& config, const RowSums<T>& sums, char* memory,
              std::int64_t task) {
  const Problem& p = call.problem;
  const std::int64_t tasks = key_tasks(p, config);
  const std::int64_t index = task / tasks;
  Arena arena(memory);
  const KeyHead<T> at{call,
                      config,
                      sums,
                      entry_of(call, index / p.heads_kv),
                      index,
                      index % p.heads_kv,
                      make_scratch<T>(arena, Phase::backward_kv, p, config)};
  const std::int64_t begin = task % tasks * config.tiles_of_task;
  const std::int64_t end = std::min(begin + config.tiles_of_task, key_tiles(p, config));
  for (std::int64_t tile = begin; tile < end; ++tile) {
    if (!KeyTile(at, tile)) return;
  }
  if (sums.dq.tasks_left != nullptr) finish_one(sums.dq.tasks_left[index]);
}

}  // namespace

void KeysTaskF32(const Call& call, const Config& config, const RowSums<float>& sums, char* memory,
                 std::int64_t task) {
  KeysTask<float>(call, config, sums, memory, task);
}
void KeysTaskF64(const Call& call, const Config& config, const RowSums<double>& sums, char* memory,
                 std::int64_t task) {
  KeysTask<double>(call, config, sums, memory, task);
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(KeysTaskF32);
HWY_EXPORT(KeysTaskF64);

template <>
BackwardKernels<float>::Task keys_kernel<float>() {
  return HWY_DYNAMIC_DISPATCH(KeysTaskF32);
}
template <>
BackwardKernels<double>::Task keys_kernel<double>() {
  return HWY_DYNAMIC_DISPATCH(KeysTaskF64);
}
}  // namespace attn::cpu
#endif
