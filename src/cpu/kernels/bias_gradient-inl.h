// dbias of a strip of rows against a block of keys, from the score gradients that dk and dq need
// anyway. If several (batch, key head) pairs share a dbias, they add to it strip by strip in the
// order of their tasks, so that the sums have the same bits for any number of threads. There is no
// deadlock, as for dq (backward_keys.cpp): a task waits only for tasks that started before it.
//
// Every pair is written. Pairs that no row of a strip sees get zeros, unless another task adds to
// them.
#if defined(ATTN_CPU_BIAS_GRADIENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_BIAS_GRADIENT_INL_H_
#undef ATTN_CPU_BIAS_GRADIENT_INL_H_
#else
#define ATTN_CPU_BIAS_GRADIENT_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/key_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Smaller ones may be read from L2 after the call; streaming stores would evict them.
constexpr std::int64_t kLeastStreamed = std::int64_t{4} << 20;  // bytes

template <class T>
class BiasGradient {
 public:
  // `sums`: of the task's block, if config.dbias_in_scratch. engine_writes: whether the engine can
  // write dbias.
  explicit BiasGradient(const KeyHead<T>& at, T* sums = nullptr, bool engine_writes = false)
      : at_(at),
        active_(at.config.dbias_with_keys),
        terms_(active_ ? dbias_terms(at.call.problem) : 1),
        first_(at.index % terms_ == 0),
        last_(at.index % terms_ == terms_ - 1),
        sums_(sums),
        by_engine_(active_ && engine_writes && engine_may_write_dbias(at.call.problem) &&
                   (terms_ == 1 || at.config.dbias_in_scratch)) {}

  // If false, no other member may be called.
  [[nodiscard]] bool active() const { return active_; }
  // Whether dbias is a copy of the score gradients, apart from its type.
  [[nodiscard]] bool is_plain_copy() const {
    const Problem& p = at_.call.problem;
    return terms_ == 1 && !p.accumulate && !p.nonfinite_zero;
  }

  // Whether the engine writes dbias as it computes dS. AddTile must not be called then.
  [[nodiscard]] bool is_by_engine() const { return by_engine_; }

  // Where the engine writes dbias of some rows of the strip. rows: receives their addresses.
  Bf16Dbias Find(const KeySpan& span, const RowSpan& rows, char** addresses) const {
    std::uintptr_t all = 0;
    for (std::int64_t r = 0; r < rows.count; ++r) {
      addresses[r] = dbias_address(row0_ + rows.first + r, span.j0);
      all |= reinterpret_cast<std::uintptr_t>(addresses[r]);
    }
    const Problem& p = at_.call.problem;
    const std::int64_t bytes =
        p.bias.entries(p.batch) * p.heads_q * p.len_q * p.len_kv * std::int64_t{sizeof(Bf16Bits)};
    Bf16Dbias to{
        .rows = addresses, .keys = span.keys, .stream = all % 64 == 0 && bytes >= kLeastStreamed};
    if (sums_ == nullptr) return to;
    to.sums = task_sums(rows.first, span.j0);
    to.row = at_.config.tile_kv;
    to.first = first_;
    to.last = last_;
    return to;
  }

  // Adds nothing to keys [begin, end) of some rows of the strip, which the engine did not compute.
  void AddHidden(std::int64_t begin, std::int64_t end, const RowSpan& rows) {
    while (begin < end) {
      const std::int64_t tile = at_.config.tile_kv;
      const std::int64_t left = tile - (begin - block_j0_) % tile;
      const std::int64_t keys = std::min(left, end - begin);
      for (std::int64_t r = 0; r < rows.count; ++r) {
        char* out = dbias_address(row0_ + rows.first + r, begin);
        if (sums_ == nullptr) {
          std::fill_n(reinterpret_cast<Bf16Bits*>(out), keys, Bf16Bits{0});
          continue;
        }
        T* sums = task_sums(rows.first + r, begin);
        if (first_) std::fill_n(sums, keys, T(0));
        if (last_) StoreRow(DType::bf16, out, sums, keys, false, false);
      }
      begin += keys;
    }
  }

  // Call before a strip's first tile. Waits until the preceding tasks have added to it. Returns
  // false if interrupted.
  bool Begin(const KeyBlock& block, std::int64_t strip, std::int64_t count) {
    row0_ = strip * at_.config.strip_rows;
    block_j0_ = block.j0;
    count_ = count;
    done_ = divide_up(all_rows(), at_.config.strip_rows) - strip;
    if (at_.sums.dbias.strips_done == nullptr) return true;
    std::int64_t before = at_.index - 1;
    if (first_) before -= (at_.config.dbias_slots - 1) * terms_;  // the last user of this slot
    if (before < 0 || (first_ && at_.config.dbias_slots == 0)) return true;
    const std::atomic_ref<std::int32_t> done(strips_done(before, block));
    return wait_until([&] { return done.load(std::memory_order_acquire) >= done_; },
                      at_.call.interrupt);
  }

  // Adds score gradients [rows x span.cols] of some rows of the strip to dbias of keys [j0, j0 +
  // keys). `next`: the tile after this one.
  template <class Value>
  void AddTile(std::int64_t j0, std::int64_t keys, const KeySpan& span, const Value* ds,
               const NextScores& next, const RowSpan& rows) {
    std::uint32_t replaced = 0;
    for (std::int64_t r = 0; r < rows.count; ++r) {
      const std::int64_t row = row0_ + rows.first + r;
      const Value* values = ds + r * span.cols;
      Prefetch(row, next);
      if constexpr (sizeof(Value) == sizeof(Bf16Bits)) {
        CopyRow(values, j0, keys, span, reinterpret_cast<Bf16Bits*>(dbias_address(row, j0)));
      } else {
        replaced += AddRow(values, row, j0, keys, span);
      }
    }
    count_nonfinite(at_.call, replaced);
  }

  template <class Value>
  void AddTile(std::int64_t j0, std::int64_t keys, const KeySpan& span, const Value* ds,
               const NextScores& next) {
    AddTile(j0, keys, span, ds, next, {0, count_});
  }

  // The same if none of the rows sees any of the keys.
  void AddNothing(std::int64_t j0, std::int64_t keys, const RowSpan& rows) {
    if (by_engine_) return AddHidden(j0, j0 + keys, rows);
    for (std::int64_t end = j0 + keys; j0 < end; j0 += at_.config.tile_kv) {
      AddTile(j0, std::min(at_.config.tile_kv, end - j0), KeySpan{.j0 = j0}, at_.x.s, {}, rows);
    }
  }
  void AddNothing(std::int64_t j0, std::int64_t keys) { AddNothing(j0, keys, {0, count_}); }

  // Call after the last tile of the strip.
  void End(const KeyBlock& block) {
    if (block.owned > block.keys) AddNothing(block.j0 + block.keys, block.owned - block.keys);
    if (at_.sums.dbias.strips_done == nullptr) return;
    std::atomic_ref<std::int32_t>(strips_done(at_.index, block))
        .store(static_cast<std::int32_t>(done_), std::memory_order_release);
  }

 private:
  std::int64_t all_rows() const { return at_.call.numbers.heads_per_kv * at_.entry.rows_q; }

  std::int32_t& strips_done(std::int64_t index, const KeyBlock& block) const {
    return at_.sums.dbias
        .strips_done[index * key_blocks(at_.call.problem, at_.config) + block.index];
  }

  // Address of key j in row `row`, counted over all heads of the key head's group.
  char* dbias_address(std::int64_t row, std::int64_t j) const {
    const std::int64_t head = at_.head * at_.call.numbers.heads_per_kv + row / at_.entry.rows_q;
    return pair_address(at_.call.dbias, at_.entry.b, head, row % at_.entry.rows_q, j);
  }
  T* accum_address(std::int64_t row, std::int64_t j) const {
    const Problem& p = at_.call.problem;
    const std::int64_t slot = at_.index / terms_ % at_.config.dbias_slots;
    return at_.sums.dbias.accum + slot * dbias_accum_size(p) + row * dbias_accum_row(p) + j;
  }

  // The task's sum of key j in the strip's row r. Sums of a strip's tile are contiguous.
  T* task_sums(std::int64_t r, std::int64_t j) const {
    const Config& c = at_.config;
    const std::int64_t column = j - block_j0_;
    const std::int64_t tile = row0_ / c.strip_rows * (c.block_kv / c.tile_kv) + column / c.tile_kv;
    return sums_ + (tile * c.strip_rows + r) * c.tile_kv + column % c.tile_kv;
  }

  // Prefetches the lines of the next tile for writing: its rows are kilobytes apart. Raises an f32
  // backward with a dbias [1, 12, 2048, 2048] from 101 to 107 GFLOP/s.
  void Prefetch(std::int64_t row, const NextScores& next) const {
    row += next.rows_ahead;
    if (next.keys <= 0 || row < 0 || row >= all_rows()) return;
    const bool in_accum = at_.sums.dbias.accum != nullptr;
    const char* begin = in_accum ? reinterpret_cast<const char*>(accum_address(row, next.j0))
                                 : dbias_address(row, next.j0);
    const std::int64_t size =
        in_accum ? std::int64_t{sizeof(T)} : core::element_size(at_.call.dbias.dtype);
    prefetch_lines<true, 3>(begin, next.keys * size);
  }

  template <class Value>
  static void CopyRow(const Value* values, std::int64_t j0, std::int64_t keys, const KeySpan& span,
                      Value* out) {
    const std::int64_t begin = span.j0 - j0;
    std::fill_n(out, begin, Value{0});
    std::memcpy(out + begin, values, static_cast<std::size_t>(span.keys) * sizeof(Value));
    std::fill(out + begin + span.keys, out + keys, Value{0});
  }

  static void AddTo(T* HWY_RESTRICT sums, const T* HWY_RESTRICT values, std::int64_t count) {
    const hn::ScalableTag<T> d;
    constexpr std::int64_t kLanes = hn::MaxLanes(d);
    std::int64_t c = 0;
    for (; c + kLanes <= count; c += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, sums + c), hn::Load(d, values + c)), d, sums + c);
    }
    for (; c < count; ++c) sums[c] += values[c];
  }

  // Returns how many non-finite values of dbias were replaced.
  std::uint32_t AddRow(const T* values, std::int64_t row, std::int64_t j0, std::int64_t keys,
                       const KeySpan& span) {
    const Problem& p = at_.call.problem;
    char* out = dbias_address(row, j0);
    const auto store = [&](const T* from) {
      return StoreRow(at_.call.dbias.dtype, out, from, keys, p.accumulate, p.nonfinite_zero);
    };
    T* row_buffer = at_.x.row_buffer;
    if (terms_ == 1) {
      if (span.keys == keys) return store(values);
      CopyRow(values, j0, keys, span, row_buffer);
      return store(row_buffer);
    }
    const bool in_accum = at_.sums.dbias.accum != nullptr;
    T* sums = in_accum ? accum_address(row, j0) : reinterpret_cast<T*>(out);
    if (first_) {
      CopyRow(values, j0, keys, span, sums);
    } else {
      AddTo(sums + span.j0 - j0, values, span.keys);
    }
    if (!last_ || (!in_accum && !p.nonfinite_zero)) return 0;
    std::copy_n(sums, keys, row_buffer);
    return store(row_buffer);
  }

  const KeyHead<T>& at_;
  bool active_;
  std::int64_t terms_;
  bool first_, last_;  // of the pairs that add to the same dbias
  T* sums_;
  bool by_engine_;
  std::int64_t block_j0_ = 0;
  std::int64_t row0_ = 0;
  std::int64_t count_ = 0;
  std::int64_t done_ = 0;  // number of strips visited up to and including this one
};

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_BIAS_GRADIENT_INL_H_
