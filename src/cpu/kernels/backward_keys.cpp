// dk and dv of blocks of keys, and dq with them where it is wanted. For each block, the strips of
// rows that see it; for each strip, the block's tiles of keys: S = Q K^T, dP = dO V^T,
// dV += P^T dO, dK += dS^T Q, dQ += dS K.
//
// A task owns the dk and dv of its blocks. A strip's dq is summed over keys in ascending order: one
// task owns all blocks of a (batch, key head), or the tasks wait for their turn, strip by strip.
// Sums lie in dq itself where its type allows, else in f32 (f64 for f64) next to it. So the bits
// never depend on how keys are cut into blocks and tasks, nor on the threads.
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

// The loaded strip's sums of dq, [count x dim_qk padded], before the block adds to them.
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

// Whether `block` is the first and the last one whose keys the strip may see.
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

// The strip's sums of dq once it is the block's turn to add to them. Null: interrupted.
template <class T>
T* BeginDq(const KeyHead<T>& at, std::int64_t block, std::int64_t strip, std::int64_t count) {
  const Call& call = at.call;
  const bool first = EndsOf(at, block, strip).first;
  if (at.sums.dq.next_block != nullptr) {
    std::int32_t* next = at.sums.next_blocks_of(call, at.entry, at.head, at.config.strip_rows);
    const std::int64_t before = at.index - at.config.dq_slots;  // had this slot of sums
    if (at.config.dq_slots > 0 && before >= 0 &&
        !wait_for_zero(at.sums.dq.tasks_left[before], call.interrupt)) {
      return nullptr;
    }
    if (!first && !wait_for_turn(next[strip], static_cast<std::int32_t>(block), call.interrupt)) {
      return nullptr;
    }
  }
  return LoadDq(at, strip, count, first);
}

template <class T>
void EndDq(const KeyHead<T>& at, std::int64_t block, std::int64_t strip, std::int64_t count,
           T* dq) {
  StoreDq(at, dq, count, EndsOf(at, block, strip).last);
  if (at.sums.dq.next_block == nullptr) return;
  std::int32_t* next = at.sums.next_blocks_of(at.call, at.entry, at.head, at.config.strip_rows);
  pass_turn(next[strip], static_cast<std::int32_t>(block + 1));
}

// Keys [j0, j0 + keys) into tile x of the block.
template <class T>
void LoadKeys(const KeyHead<T>& at, const Scratch<T>& x, std::int64_t j0, std::int64_t keys) {
  const Problem& p = at.call.problem;
  LoadTransposed(at.call, at.config, at.entry, at.head, x, j0, keys);
  if (!p.dq) return;
  LoadKeyTile(at.call, at.call.k, at.entry, at.head, j0, keys, at.config.tile_kv, p.dim_qk,
              padded<T>(p.dim_qk), x.k);
}

// Rows [0, owned) of a block of keys; those from `keys` on are padding.
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

// A block of keys. Those inside the sequence are [j0, j0 + keys).
struct KeyBlock {
  std::int64_t index = 0;
  std::int64_t j0 = 0;
  std::int64_t keys = 0;
  std::uint64_t loaded = 0;  // a bit a tile
};

// The block's products with the loaded strip. False: interrupted.
template <class T>
bool KeysStrip(const KeyHead<T>& at, KeyBlock& block, std::int64_t strip, std::int64_t count) {
  const auto& [call, config, sums, entry, index, head_kv, all] = at;
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  T* dq = nullptr;
  for (std::int64_t begin = 0; begin < block.keys; begin += config.tile_kv) {
    const std::int64_t j0 = block.j0 + begin;
    const std::int64_t keys = std::min(config.tile_kv, block.keys - begin);
    const KeySpan span = SeenSpan<T>(all.rows, count, j0, keys);
    if (span.keys == 0) continue;
    Scratch<T> x = all;
    x.k_t += begin * qk;
    x.v_t += begin * vo;
    if (p.dq) x.k += begin * qk;
    const std::uint64_t bit = std::uint64_t{1} << (begin / config.tile_kv);
    if ((block.loaded & bit) == 0) LoadKeys(at, x, j0, keys);
    block.loaded |= bit;
    GradientStrip(call, config, entry, x, span, 0, count, false);
    T* dv = x.acc_b + (begin + span.first) * vo;
    T* dk = x.acc_a + (begin + span.first) * qk;
    if (p.dv) Gemm<T>({x.s, 1, span.cols, x.dout, vo, dv, vo, span.keys, vo, count, true});
    if (p.dk) Gemm<T>({x.dp, 1, span.cols, x.q, qk, dk, qk, span.keys, qk, count, true});
    if (!p.dq) continue;
    if (dq == nullptr) dq = BeginDq(at, block.index, strip, count);
    if (dq == nullptr) return false;
    Gemm<T>({x.dp, span.cols, 1, x.k + span.first * qk, qk, dq, qk, count, qk, span.keys, true});
  }
  if (!p.dq) return true;
  if (dq == nullptr) dq = BeginDq(at, block.index, strip, count);
  if (dq == nullptr) return false;
  EndDq(at, block.index, strip, count, dq);
  return true;
}

// False: interrupted.
template <class T>
bool KeysBlock(const KeyHead<T>& at, std::int64_t index) {
  const Call& call = at.call;
  const Config& config = at.config;
  KeyBlock block;
  block.index = index;
  block.j0 = index * config.block_kv;
  const std::int64_t owned = std::min(config.block_kv, at.entry.rows_kv - block.j0);
  if (owned <= 0) return true;
  block.keys = std::clamp<std::int64_t>(at.entry.len_kv - block.j0, 0, owned);
  std::fill_n(at.x.acc_a, owned * padded<T>(call.problem.dim_qk), T(0));
  std::fill_n(at.x.acc_b, owned * padded<T>(call.problem.dim_vo), T(0));

  const std::int64_t all_rows = call.numbers.heads_per_kv * at.entry.rows_q;
  const core::KeyRange* strip_keys = at.sums.strips_of(call, at.entry, at.head, config.strip_rows);
  for (std::int64_t strip = 0; strip * config.strip_rows < all_rows; ++strip) {
    const core::KeyRange seen = strip_keys[strip];
    if (!(seen.begin < block.j0 + block.keys && seen.end > block.j0)) continue;
    if (core::interrupted(call.interrupt)) return false;
    const std::int64_t row0 = strip * config.strip_rows;
    const std::int64_t count = std::min(config.strip_rows, all_rows - row0);
    LoadRows(call, at.entry, at.sums, at.head, row0, count, at.x);
    if (!KeysStrip(at, block, strip, count)) return false;
  }
  StoreKeyGradients(at, block.j0, owned, block.keys);
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
  const std::int64_t begin = task % tasks * config.blocks_of_task;
  const std::int64_t end = std::min(begin + config.blocks_of_task, key_blocks(p, config));
  for (std::int64_t block = begin; block < end; ++block) {
    if (!KeysBlock(at, block)) return;
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
