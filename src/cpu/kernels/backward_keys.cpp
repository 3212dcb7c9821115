// dk and dv of blocks of keys, and dq with them if it is needed. A task loops over its blocks, over
// the strips of rows that see a block, and over the block's tiles of keys: S = Q K^T, dP = dO V^T,
// dV += P^T dO, dK += dS^T Q, dQ += dS K.
//
// A task owns dk and dv of its blocks, or it computes one query head of several that share a key
// head (dkv_terms). Their tasks then add a block's sums of dk and dv in ascending order of the
// heads. Each waits for the preceding head, and the last one stores. A strip's dq is summed over
// keys in ascending order. Either one task owns all blocks of a (batch, key head), or tasks wait
// strip by strip until the preceding block has been added. The sums are kept in dq itself if its
// type allows that, else in f32 (f64 for f64) in the workspace. So the bits depend neither on the
// split into blocks and tasks nor on the threads.
//
// Strips are visited in descending order. With documents, windows or causal, a block sees only a
// part of the rows. Its first strips are then those that it shares with the next block, which waits
// for them last. In ascending order, 16 documents were computed one after another.
//
// There is no deadlock: tasks start in ascending order and wait only for tasks before them. Those
// have ended or are running on another thread.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/backward_keys.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "cpu/kernels/bias_gradient-inl.h"
#include "cpu/kernels/gradient-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/tile_ops/bf16_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {

// Loads keys [j0, j0 + keys) into tile x of the block. With dq, K^T is transposed from the K that
// dq needs.
template <class T>
void LoadKeys(const KeyHead<T>& at, const Scratch<T>& x, std::int64_t j0, std::int64_t keys) {
  const Problem& p = at.call.problem;
  if (!p.dq) return LoadTransposed(at.call, at.config, at.entry, at.head_kv, x, j0, keys);
  const std::int64_t tile = at.config.tile_kv;
  const std::int64_t qk = padded<T>(p.dim_qk);
  LoadKeyTile(at.call, at.call.k, at.entry, at.head_kv, j0, keys, tile, p.dim_qk, qk, x.k);
  for (std::int64_t j = 0; j < tile; j += 4) {
    TransposeFourRows(x.k + j * qk, qk, p.dim_qk, x.k_t + j, tile);
  }
  LoadKeyTileTransposed(at.call, at.call.v, at.entry, at.head_kv, j0, keys, tile, p.dim_vo,
                        padded<T>(p.dim_vo), x.row_buffer, x.v_t);
}

// Stores keys [begin, end) of a block; those from block.keys on are padding.
template <class T>
void StoreKeyGradients(const KeyHead<T>& at, const KeyBlock& block, std::int64_t begin,
                       std::int64_t end) {
  const auto& [call, config, sums, entry, index, head, head_kv, x, ahead] = at;
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  for (std::int64_t j = begin; j < end; ++j) {
    const bool inside = j < block.keys;
    const std::int64_t place = place_of(config, j);
    if (p.dk) {
      StoreGradient(call, call.dk,
                    row_address(call, call.dk, entry.b, entry.first_kv, block.j0 + j, head_kv),
                    x.dk + place * qk, static_cast<T>(call.numbers.scale), p.dim_qk, inside);
    }
    if (p.dv) {
      StoreGradient(call, call.dv,
                    row_address(call, call.dv, entry.b, entry.first_kv, block.j0 + j, head_kv),
                    x.dv + place * vo, T(1), p.dim_vo, inside);
    }
  }
}

// Clears the sums of dk and dv of `keys` keys at a place.
template <class T>
void ClearKeys(const KeyHead<T>& at, std::int64_t place, std::int64_t keys) {
  const std::int64_t qk = padded<T>(at.call.problem.dim_qk);
  const std::int64_t vo = padded<T>(at.call.problem.dim_vo);
  std::fill_n(at.x.dk + place * qk, keys * qk, T(0));
  std::fill_n(at.x.dv + place * vo, keys * vo, T(0));
}

// Computes the block's products with the loaded strip. Returns false if interrupted.
template <class T>
bool KeysStrip(const KeyHead<T>& at, KeyBlock& block, std::int64_t strip, std::int64_t count,
               BiasGradient<T>& dbias, RowPrefetch& next) {
  const auto& [call, config, sums, entry, index, head, head_kv, all, ahead] = at;
  const Problem& p = call.problem;
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  T* dq = nullptr;
  if (dbias.active() && !dbias.Begin(block, strip, count)) return false;
  for (std::int64_t begin = 0; begin < block.keys; begin += config.tile_kv) {
    const std::int64_t j0 = block.j0 + begin;
    const std::int64_t keys = std::min(config.tile_kv, block.keys - begin);
    const KeySpan span = SeenSpan<T>(all.rows, count, j0, keys);
    if (span.keys == 0 || !MaskLeavesAny(call, all.rows, count, span)) {
      if (dbias.active()) dbias.AddNothing(j0, keys);
      continue;
    }
    Scratch<T> x = all;
    const std::int64_t place = place_of(config, begin);
    x.k_t += place * qk;
    x.v_t += place * vo;
    if (p.dq) x.k += place * qk;
    const std::uint64_t bit = std::uint64_t{1} << (begin / config.tile_kv);
    if ((block.loaded & bit) == 0) {
      LoadKeys(at, x, j0, keys);
      if (config.ring_tiles > 0) ClearKeys(at, place, config.tile_kv);
    }
    block.loaded |= bit;
    // dbias needs a value for each pair, so no rows are skipped.
    const RowSpan seeing =
        dbias.active() ? RowSpan{0, count} : SeeingRows(all.rows, count, span, kGemmRows);
    const std::int64_t row0 = seeing.first;
    const std::int64_t rows = seeing.count;
    SeenParts seen_parts;
    const SeenParts* parts = nullptr;
    if (!dbias.active() && FindSeenParts(all.rows + row0, rows, span, seen_parts)) {
      parts = &seen_parts;
    }
    GradientStrip(call, config, entry, x, span, row0, rows, false, NextOf(block, begin, config),
                  ahead, &next, parts);
    if (dbias.active()) dbias.AddTile(j0, keys, span, x.dp, NextOf(block, begin, config));
    T* dv = x.dv + (place + span.first) * vo;
    T* dk = x.dk + (place + span.first) * qk;
    const T* dout = x.dout + row0 * vo;
    const T* q = x.q + row0 * qk;
    if (p.dv) {
      GemmOfSeeingRows<T>({x.s, 1, span.cols, dout, vo, dv, vo, span.keys, vo, rows, true}, parts);
    }
    if (p.dk) {
      GemmOfSeeingRows<T>({x.dp, 1, span.cols, q, qk, dk, qk, span.keys, qk, rows, true}, parts);
    }
    if (!p.dq) continue;
    if (dq == nullptr) dq = BeginDq(at, block.index, strip, count);
    if (dq == nullptr) return false;
    GemmOfSeenKeys<T>({x.dp, span.cols, 1, x.k + span.first * qk, qk, dq + row0 * qk, qk, rows, qk,
                       span.keys, true},
                      parts);
  }
  if (dbias.active()) dbias.End(block);
  if (!p.dq) return true;
  if (dq == nullptr) dq = BeginDq(at, block.index, strip, count);
  if (dq == nullptr) return false;
  EndDq(at, block.index, strip, count, dq);
  return true;
}

// Computes the products of a block in f32 or f64.
template <class T>
class FloatBlock {
 public:
  explicit FloatBlock(const KeyHead<T>& at) : at_(at), dbias_(at) {}
  BiasGradient<T>& dbias() { return dbias_; }
  void Clear(const KeyBlock& block) {
    unstored_ = round_up(block.owned, at_.config.tile_kv);
    if (at_.config.ring_tiles == 0) ClearKeys(at_, 0, block.owned);
  }
  void Load(std::int64_t row0, std::int64_t count) {
    LoadRows(at_.call, at_.entry, at_.sums, at_.head, row0, count, at_.x);
  }
  // Returns false if interrupted.
  bool Multiply(KeyBlock& block, std::int64_t strip, std::int64_t count) {
    const core::KeyRange seen =
        seen_by(at_.x.rows, count, 0, std::numeric_limits<std::int64_t>::max());
    if (at_.config.ring_tiles > 0 && !seen.empty()) StoreTiles(block, seen.end - block.j0);
    FindNext(at_, at_.x.rows[0], count, block, seen, unstored_, next_);
    return KeysStrip(at_, block, strip, count, dbias_, next_);
  }
  KeySums<T> Sums(const KeyBlock& block) const {
    const Problem& p = at_.call.problem;
    return {{{at_.x.dk, p.dk ? block.owned * padded<T>(p.dim_qk) : 0},
             {at_.x.dv, p.dv ? block.owned * padded<T>(p.dim_vo) : 0}}};
  }
  void Store(const KeyBlock& block) {
    if (at_.config.ring_tiles > 0) return StoreTiles(block, 0);
    StoreKeyGradients(at_, block, 0, block.owned);
  }

 private:
  void StoreTiles(const KeyBlock& block, std::int64_t end) {
    StoreTilesFrom(
        at_.config, block, end, unstored_,
        [&](std::int64_t place) { ClearKeys(at_, place, at_.config.tile_kv); },
        [&](std::int64_t from, std::int64_t to) { StoreKeyGradients(at_, block, from, to); });
  }

  const KeyHead<T>& at_;
  BiasGradient<T> dbias_;
  std::int64_t unstored_ = 0;  // keys of the block before those that are stored
  RowPrefetch next_;
};

// Computes one block of keys of task `task`. Returns false if interrupted.
template <class T, class Block>
bool KeysOfBlock(const KeyHead<T>& at, std::int64_t task, std::int64_t index, Block& products) {
  const Call& call = at.call;
  const Config& config = at.config;
  KeyBlock block;
  block.index = index;
  block.j0 = index * config.block_kv;
  const std::int64_t owned = std::min(config.block_kv, at.entry.rows_kv - block.j0);
  if (owned <= 0) return true;
  block.keys = std::clamp<std::int64_t>(at.entry.len_kv - block.j0, 0, owned);
  block.owned = owned;
  auto& dbias = products.dbias();
  products.Clear(block);

  const std::int64_t all_rows = call.numbers.heads_per_kv * at.entry.rows_q;
  const core::KeyRange* strip_keys = at.sums.strips_of(call, at.entry, at.head, config.strip_rows);
  const std::int64_t strips = divide_up(all_rows, config.strip_rows);
  for (std::int64_t n = 0; n < strips; ++n) {
    const std::int64_t strip = strips - 1 - n;
    const core::KeyRange seen = strip_keys[strip];
    const bool visited = seen.begin < block.j0 + block.keys && seen.end > block.j0;
    if (!visited && !dbias.active()) continue;
    if (core::interrupted(call.interrupt)) return false;
    const std::int64_t row0 = strip * config.strip_rows;
    const std::int64_t count = std::min(config.strip_rows, all_rows - row0);
    if (!visited) {
      if (!dbias.Begin(block, strip, count)) return false;
      dbias.AddNothing(block.j0, block.keys);
      dbias.End(block);
      continue;
    }
    products.Load(row0, count);
    if (!products.Multiply(block, strip, count)) return false;
  }
  if (config.dkv_terms > 1) {
    if (!AddToHeads(at, task / config.dkv_terms, index % config.blocks_of_task,
                    products.Sums(block))) {
      return false;
    }
    if (at.index % config.dkv_terms != config.dkv_terms - 1) return true;
  }
  products.Store(block);
  return true;
}

template <class T, class Block>
void KeysOfTask(const KeyHead<T>& at, std::int64_t task, Block& products) {
  const Problem& p = at.call.problem;
  const Config& config = at.config;
  const std::int64_t begin = key_task_at(p, config, task).task * config.blocks_of_task;
  const std::int64_t end = std::min(begin + config.blocks_of_task, key_blocks(p, config));
  for (std::int64_t block = begin; block < end; ++block) {
    if (!KeysOfBlock(at, task, block, products)) return;
  }
  if (at.sums.dq.tasks_left != nullptr) finish_one(at.sums.dq.tasks_left[at.index]);
  if (config.dkv_terms > 1) finish_one(at.sums.dkv.tasks_left[task / config.dkv_terms]);
}

template <class T>
KeyHead<T> KeyHeadOf(const Call& call, const Config& config, const RowSums<T>& sums,
                     std::int64_t task, const Scratch<T>& x) {
  const Problem& p = call.problem;
  const std::int64_t index = key_task_at(p, config, task).index;
  const KeyHeadPlace place = key_head_at(p, config, index);
  const std::int64_t head_kv = place.head / config.dkv_terms;
  return {call, config, sums, entry_of(call, place.b), index, place.head, head_kv, x, nullptr};
}

// Prefetches in `steps` steps what the next pair reads and where this one writes.
template <class T>
void SetPairAhead(KeyHead<T>& at, PairAhead& ahead, std::int64_t steps) {
  const Call& call = at.call;
  const Problem& p = call.problem;
  const std::int64_t next = next_pair(p, at.config, at.index);
  if (next >= 0) {
    const Entry entry = entry_of(call, next / p.heads_kv);
    const std::int64_t head = next % p.heads_kv;
    ahead.add_queries(call, call.dout, entry, head, p.dim_vo);
    if (!call.delta.given()) ahead.add_queries(call, call.o, entry, head, p.dim_vo);
    ahead.add_queries(call, call.q, entry, head, p.dim_qk);
    ahead.add_keys(call.k, entry, head, p.dim_qk);
    ahead.add_keys(call.v, entry, head, p.dim_vo);
  }
  if (p.dq) ahead.add_queries(call, call.dq, at.entry, at.head, p.dim_qk);
  if (p.dk) ahead.add_keys(call.dk, at.entry, at.head, p.dim_qk);
  if (p.dv) ahead.add_keys(call.dv, at.entry, at.head, p.dim_vo);
  ahead.spread(steps);
  at.ahead = &ahead;
}

template <class T>
void KeysTask(const Call& call, const Config& config, const RowSums<T>& sums, char* memory,
              std::int64_t task) {
  Arena arena(memory);
  KeyHead<T> at = KeyHeadOf(call, config, sums, task,
                            make_scratch<T>(arena, Phase::backward_kv, call.problem, config));
  const std::int64_t rows = call.numbers.heads_per_kv * at.entry.rows_q;
  PairAhead ahead;
  if (config.pairs_of_task > 1) SetPairAhead(at, ahead, rows);
  FloatBlock<T> products(at);
  KeysOfTask(at, task, products);
}

template <class T>
void KeysTaskOfEngine(const Call& call, const Config& config, const RowSums<T>& sums, char* memory,
                      std::int64_t task) {
  Arena arena(memory);
  const Bf16KeysScratch x = make_bf16_keys_scratch(arena, call.problem, config);
  KeyHead<T> at = KeyHeadOf(call, config, sums, task, x.f32);
  const std::int64_t rows = call.numbers.heads_per_kv * at.entry.rows_q;
  PairAhead ahead;
  if (config.pairs_of_task > 1) {
    SetPairAhead(at, ahead, Bf16Block::kLeastStepsOfStrip * divide_up(rows, config.strip_rows));
  }
  Bf16Block products(at, x);
  KeysOfTask(at, task, products);
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

void KeysTaskBf16(const Call& call, const Config& config, const RowSums<float>& sums, char* memory,
                  std::int64_t task) {
  if constexpr (kMayHaveBf16Engine) KeysTaskOfEngine<float>(call, config, sums, memory, task);
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(KeysTaskF32);
HWY_EXPORT(KeysTaskF64);
HWY_EXPORT(KeysTaskBf16);

template <>
BackwardKernels<float>::Task keys_kernel<float>() {
  return HWY_DYNAMIC_DISPATCH(KeysTaskF32);
}
template <>
BackwardKernels<double>::Task keys_kernel<double>() {
  return HWY_DYNAMIC_DISPATCH(KeysTaskF64);
}
BackwardKernels<float>::Task keys_bf16_kernel() {
  return HWY_DYNAMIC_DISPATCH(KeysTaskBf16);
}
}  // namespace attn::cpu
#endif
