// Products and softmax of forward tiles with a bf16 engine: Q, K, V and P in bf16, sums in f32.
#if defined(ATTN_CPU_BF16_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_BF16_OPS_INL_H_
#undef ATTN_CPU_BF16_OPS_INL_H_
#else
#define ATTN_CPU_BF16_OPS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/dropout-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/pair_ahead.hpp"
#include "cpu/kernels/score-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {

// Packs keys and values [j0, j0 + keys) of a key head. Pads with zeros to a multiple of 32 keys.
HWY_INLINE void PackTile(const Call& call, const Bf16Engine& engine, const Entry& entry,
                         std::int64_t head, std::int64_t j0, std::int64_t keys, Bf16Bits* k_t,
                         Bf16Bits* v) {
  const Problem& p = call.problem;
  const std::int64_t qk = round_up(p.dim_qk, kPackedDepth);
  const std::int64_t vo = round_up(p.dim_vo, 2 * kPackedCols);
  const char* rows[kPackedDepth];
  const auto find = [&](const StridedTensor& tensor, std::int64_t first, std::int64_t count) {
    for (std::int64_t n = 0; n < count; ++n) {
      rows[n] = first + n < keys
                    ? row_address(call, tensor, entry.b, entry.first_kv, j0 + first + n, head)
                    : nullptr;
    }
  };
  for (std::int64_t j = 0; j < keys; j += kPackedDepth) {
    for (std::int64_t n = j + kPackedDepth; n < std::min(keys, j + 2 * kPackedDepth); ++n) {
      PrefetchRow(row_address(call, call.k, entry.b, entry.first_kv, j0 + n, head), 2 * p.dim_qk);
      PrefetchRow(row_address(call, call.v, entry.b, entry.first_kv, j0 + n, head), 2 * p.dim_vo);
    }
    for (std::int64_t half = 0; half < kPackedDepth; half += kPackedCols) {
      find(call.k, j + half, kPackedCols);
      engine.pack_keys(rows, p.dim_qk, k_t + (j + half) * qk);
    }
    find(call.v, j, kPackedDepth);
    engine.pack_values(rows, p.dim_vo, v + j * vo);
  }
}

// Has the interface of FloatOps. K and V are packed once per tile of rows, or by pack_keys. Score
// modifiers first turn the raw products into f32 scores, as in FloatOps.
class Bf16Ops {
 public:
  using T = float;
  Bf16Ops(const Call& call, const Config& config, const PackedKeys& packed, char* memory)
      : call_(call),
        config_(config),
        packed_(packed),
        engine_(bf16_engine(config.engine)),
        qk_(round_up(call.problem.dim_qk, kPackedDepth)),
        vo_packed_(round_up(call.problem.dim_vo, 2 * kPackedCols)) {
    Arena arena(memory);
    x_ = make_bf16_scratch(arena, call.problem, config);
    engine_.begin();
  }
  ~Bf16Ops() { engine_.end(); }
  Bf16Ops(const Bf16Ops&) = delete;
  Bf16Ops& operator=(const Bf16Ops&) = delete;

  void SetPairAhead(PairAhead* ahead, std::int64_t count) {
    pair_ahead_ = ahead;
    ahead->spread(4 * divide_up(count, config_.strip_rows));
  }

  [[nodiscard]] const Scratch<float>& state() const { return x_.f32; }
  [[nodiscard]] const Bf16Engine& engine() const { return engine_; }
  // The factor of pairs that dropout keeps. o does not include it yet.
  [[nodiscard]] float o_scale() const { return kept_factor<float>(call_); }
  static void OrderO(float*) {}  // rows of o are always in order
  static std::int64_t o_rows(std::int64_t count) { return round_up(count, kBf16Rows); }

  void LoadQuery(std::int64_t r, const char* source, float /*descale: for 8-bit types*/ = 1.0f) {
    Bf16Bits* to = x_.q + r * qk_;
    const std::int64_t count = source != nullptr ? call_.problem.dim_qk : 0;
    if (count > 0) std::memcpy(to, source, static_cast<std::size_t>(2 * count));
    std::fill(to + count, to + qk_, Bf16Bits{0});
  }

  static constexpr std::int64_t kSpanStep = kPackedDepth;
  // o need not be cleared: the first product of a strip is stored.
  static constexpr bool kStoresFirst = true;
  static KeySpan SpanOf(const TileRow* rows, std::int64_t count, std::int64_t j0,
                        std::int64_t keys) {
    return SeenSpan<float, kSpanStep>(rows, count, j0, keys);
  }

  // AttendStrip tests this, because it needs the bits anyway.
  static bool Sees(const Entry&, const KeySpan&, const NextScores&, std::int64_t, std::int64_t) {
    return true;
  }

  void LoadKeys(const Entry& entry, std::int64_t head, std::int64_t j0, std::int64_t keys) {
    if (packed_.k != nullptr) {
      const std::int64_t tile = packed_.tile_idx(call_.problem, config_, entry.b, head, j0);
      x_.k_t = static_cast<Bf16Bits*>(packed_.k) + tile * config_.tile_kv * qk_;
      x_.v = static_cast<Bf16Bits*>(packed_.v) + tile * config_.tile_kv * vo_packed_;
    } else {
      PackTile(call_, engine_, entry, head, j0, keys, x_.k_t, x_.v);
    }
  }

  // With Config::span_keys: packs those keys of the span that are not packed yet. The span's first
  // column is then that of the packed keys.
  void LoadSpan(const Entry& entry, std::int64_t head, KeySpan& span) {
    const std::int64_t end = span.j0 + span.cols;
    if (span.j0 < packed_begin_ || span.j0 > packed_end_ ||
        end - packed_begin_ > packed_keys(config_)) {
      packed_begin_ = packed_end_ = span.j0;
    }
    if (end > packed_end_) {
      const std::int64_t at = packed_end_ - packed_begin_;
      PackTile(call_, engine_, entry, head, packed_end_, std::min(end, entry.len_kv) - packed_end_,
               x_.k_t + at * qk_, x_.v + at * vo_packed_);
      packed_end_ = end;
    }
    span.first = span.j0 - packed_begin_;
  }

  // Prefetches step by step, while a strip of `count` rows is multiplied, the rows of the next one
  // and the next keys, and where o is stored.
  void PrefetchNext(const Entry& entry, std::int64_t head, std::int64_t count) {
    const Problem& p = call_.problem;
    const TileRow& row = x_.f32.rows[0];
    ahead_.clear();
    const auto add = [&](const StridedTensor& rows, std::int64_t first, std::int64_t of_head,
                         std::int64_t i, std::int64_t num, std::int64_t dim) {
      if (num <= 0) return;
      ahead_.add(row_address(call_, rows, entry.b, first, i, of_head), rows.stride_row,
                 dim * core::element_size(rows.dtype), num);
    };
    const std::int64_t next = row.i + count;
    add(call_.q, entry.first_q, row.head, next, std::min(count, entry.len_q - next), p.dim_qk);
    add(call_.o, entry.first_q, row.head, row.i, std::min(count, entry.len_q - row.i), p.dim_vo);
    const std::int64_t keys = std::min(config_.strip_rows, entry.len_kv - packed_end_);
    add(call_.k, entry.first_kv, head, packed_end_, keys, p.dim_qk);
    add(call_.v, entry.first_kv, head, packed_end_, keys, p.dim_vo);
  }

  void AttendStrip(const Entry& entry, const KeySpan& span, const NextScores& next,
                   std::int64_t row0, std::int64_t count) {
    const Scratch<float>& x = x_.f32;
    const std::int64_t rows = o_rows(count);
    const std::int64_t cols = span.cols;
    const auto kind = engine_addend(call_, engine_);
    AddendRows addends;
    const auto addend = FindAddend(call_, entry, kind, x.rows + row0, count, span, next, addends);
    const bool reads_bias = call_.bias.given() && addend.ahead == 0;
    const bool reads_pairs = reads_bias || (call_.mask.given() && span.mask_bits == nullptr);
    // Quarters have about as many lines as a core has fill buffers.
    const auto prefetch = [&](std::int64_t quarter) {
      const std::int64_t end = reads_pairs ? count * (quarter + 1) / 4 : 0;
      for (std::int64_t r = count * quarter / 4; r < end; ++r) {
        PrefetchScores(call_, entry, x.rows[row0 + r], next, !reads_bias);
      }
      if (pair_ahead_ != nullptr) pair_ahead_->step();
    };
    prefetch(0);
    const bool raw = kind != Bf16Addend::Kind::none ||
                     (engine_.caps ? softmax_takes_capped(call_) : softmax_takes_raw(call_));
    const StripVisible seen = FindVisible(call_, engine_, x.rows + row0, count, span, x_.visible);
    if (!seen.any) {
      for (std::int64_t quarter = 1; quarter < 4; ++quarter) prefetch(quarter);
      return;
    }
    const bool first = SeesFirst(row0);
    engine_.multiply({.a = x_.q + row0 * qk_,
                      .lda = qk_,
                      .b = x_.k_t + span.first * qk_,
                      .b_depth = kPackedBlock,
                      .b_cols = kPackedCols * qk_,
                      .c = x.s,
                      .ldc = cols,
                      .rows = rows,
                      .cols = cols,
                      .depth = qk_,
                      .accumulate = false,
                      .b_is_far = config_.span_keys > 0,
                      .ahead = &ahead_});
    Bf16Dropout dropout;
    if (call_.problem.dropout) {
      dropout = DropoutOf(
          call_, DropoutBytes(call_, entry, x.rows + row0, count, span.j0, cols, x.random));
    }
    prefetch(1);
    for (std::int64_t r = 0; !raw && r < count; ++r) {
      ScoreRow<float>(call_, entry, x.rows[row0 + r], span, x.s + r * cols, nullptr, x.row_buffer);
    }
    const std::int64_t vo = padded<float>(call_.problem.dim_vo);
    prefetch(2);
    engine_.softmax({.s = x.s,
                     .lds = cols,
                     .rows = count,
                     .cols = cols,
                     .scale = raw ? static_cast<float>(call_.numbers.scale) : 1.0F,
                     .row_max = x.row_max + row0,
                     .row_sum = x.row_sum + row0,
                     .o = x.o + row0 * vo,
                     .ldo = first ? 0 : vo,
                     .dropout = dropout,
                     .visible = seen.visible,
                     .softcap = raw ? static_cast<float>(call_.numbers.softcap) : 0.0F,
                     .addend = addend,
                     .ahead = &ahead_});
    prefetch(3);
    engine_.multiply({.a = reinterpret_cast<const Bf16Bits*>(x.s),
                      .lda = 2 * cols,
                      .b = x_.v + span.first * vo_packed_,
                      .b_depth = kPackedDepth * vo_packed_,
                      .b_cols = kPackedBlock,
                      .c = x.o + row0 * vo,
                      .ldc = vo,
                      .rows = rows,
                      .cols = vo,
                      .depth = cols,
                      .accumulate = !first,
                      .b_is_far = config_.span_keys > 0,
                      .ahead = &ahead_});
  }

  // Clears o of strips that saw no key. `count` rows are loaded.
  void ClearUnseen(std::int64_t count) {
    const std::int64_t vo = padded<float>(call_.problem.dim_vo);
    for (std::int64_t row = 0; row < count; row += config_.strip_rows) {
      if ((seen_strips_ >> row / config_.strip_rows & 1) != 0) continue;
      std::fill_n(x_.f32.o + row * vo, std::min(config_.strip_rows, count - row) * vo, 0.0F);
    }
    seen_strips_ = 0;
  }

 private:
  // Whether the strip saw no key before. Its product is then stored to o instead of added.
  bool SeesFirst(std::int64_t row0) {
    const std::uint64_t bit = std::uint64_t{1} << row0 / config_.strip_rows;
    const bool first = (seen_strips_ & bit) == 0;
    seen_strips_ |= bit;
    return first;
  }

  const Call& call_;
  const Config& config_;
  const PackedKeys& packed_;
  const Bf16Engine& engine_;
  std::int64_t qk_;
  std::int64_t vo_packed_;
  Bf16Scratch x_;
  PairAhead* pair_ahead_ = nullptr;
  std::uint64_t seen_strips_ = 0;  // strips with an o that is not empty, one bit each
  static_assert(kMostStrips <= 64);
  std::int64_t packed_begin_ = 0;  // with span_keys: these keys are packed
  std::int64_t packed_end_ = 0;
  RowPrefetch ahead_;
};

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_BF16_OPS_INL_H_
