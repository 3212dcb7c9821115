// Products and softmax of forward tiles in f32 or f64, with Highway's vectors.
#if defined(ATTN_CPU_FLOAT_OPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_FLOAT_OPS_INL_H_
#undef ATTN_CPU_FLOAT_OPS_INL_H_
#else
#define ATTN_CPU_FLOAT_OPS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/decode-inl.h"
#include "cpu/kernels/decode_rows-inl.h"
#include "cpu/kernels/dropout-inl.h"
#include "cpu/kernels/gemm-inl.h"
#include "cpu/kernels/gemm_softmax-inl.h"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/pair_ahead.hpp"
#include "cpu/kernels/softmax-inl.h"
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Converts keys and values [j0, j0 + keys) of a key head, K transposed. Pads with zeros to tile_kv
// keys. `row_buffer`: scratch for four rows of keys.
template <class T>
HWY_INLINE void ConvertTile(const Call& call, const Config& config, const Entry& entry,
                            std::int64_t head, std::int64_t j0, std::int64_t keys, T* row_buffer,
                            T* k_t, T* v) {
  const Problem& p = call.problem;
  LoadKeyTileTransposed(call, call.k, entry, head, j0, keys, config.tile_kv, p.dim_qk,
                        padded<T>(p.dim_qk), row_buffer, k_t);
  LoadKeyTile(call, call.v, entry, head, j0, keys, config.tile_kv, p.dim_vo, padded<T>(p.dim_vo),
              v);
}

// Keys and values are converted to T once per tile of rows, K transposed. With few rows (gemv) they
// are read in place if loading only needs a type conversion, and S is computed by dot products.
template <class T_>
class FloatOps {
 public:
  using T = T_;
  FloatOps(const Call& call, const Config& config, const PackedKeys& packed, char* memory)
      : call_(call), config_(config), packed_(packed), qk_(padded<T>(call.problem.dim_qk)) {
    Arena arena(memory);
    x_ = all_ = make_scratch<T>(arena, Phase::forward, call.problem, config);
    if constexpr (kMayMultiplyBf16) {
      if (config.gemv_engine != Engine::float_simd) decode_ = bf16_decode(config.gemv_engine);
    }
  }
  ~FloatOps() {
    if (started_) decode_->end();
  }
  FloatOps(const FloatOps&) = delete;
  FloatOps& operator=(const FloatOps&) = delete;

  // With gemv: called before the products of `count` rows of each key head.
  void StartProducts(std::int64_t count) {
    if (decode_ == nullptr) return;
    decode_->begin(count);
    started_ = true;
  }

  // With gemv: what to prefetch during the products.
  void SetAhead(RowsAhead* ahead) { ahead_ = ahead; }

  // What to prefetch while the tile's `count` rows are computed.
  void SetPairAhead(PairAhead* ahead, std::int64_t count) {
    pair_ahead_ = ahead;
    ahead->spread(count);
  }

  // Selects the state of the n-th of heads_of_task key heads.
  void SelectHead(std::int64_t n) {
    const std::int64_t rows = n * config_.tile_rows;
    x_.rows = all_.rows + rows;
    x_.q = all_.q + n * query_rows(config_) * qk_;
    if (all_.q_t != nullptr) x_.q_t = all_.q_t + n * kMostDecodeRows * qk_;
    x_.o = all_.o + rows * padded<T>(call_.problem.dim_vo);
    x_.row_max = all_.row_max + rows;
    x_.row_sum = all_.row_sum + rows;
    if (!config_.heads_together) return;
    head_ = n;
    x_.s = all_.s + n * kMostDecodeRows * config_.tile_kv;
  }

  // State of the tile: rows, missing, o, row_max and row_sum.
  [[nodiscard]] const Scratch<T>& state() const { return x_; }
  // A factor that o does not include yet.
  static T o_scale() { return T(1); }
  // Puts the elements of a finished row of o in order.
  void OrderO(T* o) const {
    const std::int64_t vo = call_.problem.dim_vo;
    if constexpr (kMayMultiplyBf16) {
      if (decode_ != nullptr) return decode_->order_values(o, vo);
    }
    if (SplitsRows(call_.v, vo)) ReorderRow<false>(o, vo);
  }
  // Number of rows of o that a tile of `count` rows uses.
  static std::int64_t o_rows(std::int64_t count) { return count; }

  // Loads row r of the tile, times descale. A null source is a row of zeros.
  void LoadQuery(std::int64_t r, const char* source, float descale = 1.0f) {
    if (decode_ != nullptr) {  // stays bf16
      const auto bytes = static_cast<std::size_t>(2 * call_.problem.dim_qk);
      Bf16Bits* to = loaded_queries() + r * call_.problem.dim_qk;
      if (source == nullptr) std::memset(to, 0, bytes);
      if (source != nullptr) std::memcpy(to, source, bytes);
      return;
    }
    LoadRow(call_.q.dtype, source, call_.problem.dim_qk, qk_, x_.q + r * qk_, descale);
    if (SplitsRows(call_.k, call_.problem.dim_qk)) ReorderRow<true>(x_.q + r * qk_, qk_);
  }

  // With gemv: called after LoadQuery() of all rows of a key head.
  void PackQueries(std::int64_t count) {
    if (decode_ != nullptr) {
      return decode_->pack_queries(loaded_queries(), count, call_.problem.dim_qk, queries());
    }
    if constexpr (kMayAttendRows) {
      rows_in_q_t_ = count >= kLeastAttendRows ? count : 0;
      if (rows_in_q_t_ > 0) PackRows(x_.q, qk_, count, qk_, x_.q_t);
    }
  }

  static constexpr bool kStoresFirst = false;  // products are added to o
  static constexpr std::int64_t kSpanStep = static_cast<std::int64_t>(64 / sizeof(T));
  static KeySpan SpanOf(const TileRow* rows, std::int64_t count, std::int64_t j0,
                        std::int64_t keys) {
    return SeenSpan<T, kSpanStep>(rows, count, j0, keys);
  }

  // Whether the strip sees any key of the span. Called before its keys are loaded.
  bool Sees(const Entry& entry, const KeySpan& span, const NextScores& next, std::int64_t row0,
            std::int64_t count) const {
    const TileRow* rows = x_.rows + row0;
    if (MaskLeavesAny(call_, rows, count, span)) return true;
    for (std::int64_t r = 0; r < count; ++r) PrefetchScores(call_, entry, rows[r], next);
    return false;
  }

  // Loads keys and values [j0, j0 + keys) of a key head.
  void LoadKeys(const Entry& entry, std::int64_t head, std::int64_t j0, std::int64_t keys) {
    const Problem& p = call_.problem;
    const std::int64_t tile = config_.tile_kv;
    if (packed_.k != nullptr) {
      const std::int64_t first = packed_.tile_idx(p, config_, entry.b, head, j0) * tile;
      x_.k_t = static_cast<T*>(packed_.k) + first * qk_;
      x_.v = static_cast<T*>(packed_.v) + first * padded<T>(p.dim_vo);
    } else if (config_.gemv) {
      FindCacheTile(call_, call_.k, entry, head, j0, keys, tile, p.dim_qk, qk_, x_.k,
                    tiles_[head_].k);
      FindCacheTile(call_, call_.v, entry, head, j0, keys, tile, p.dim_vo, padded<T>(p.dim_vo),
                    x_.v, tiles_[head_].v);
    } else {
      ConvertTile(call_, config_, entry, head, j0, keys, x_.row_buffer, x_.k_t, x_.v);
    }
  }

  // Processes one strip against one tile of keys: scores, online softmax, O += P V.
  void AttendStrip(const Entry& entry, const KeySpan& span, const NextScores& next,
                   std::int64_t row0, std::int64_t count) {
    const Scratch<T>& x = x_;
    if (decode_ == nullptr) {  // its products take all rows
      const RowSpan seeing = SeeingRows(x.rows + row0, count, span, kGemmRows);
      row0 += seeing.first;
      count = seeing.count;
    }
    const bool raw = softmax_takes_raw(call_);
    if (raw && (Attend(span, row0, count) || AttendInRows(span, row0, count))) return;
    // The fused kernel also adds a bias, but neither ALiBi nor softcap.
    const bool biased = call_.bias.given() && call_.slopes == nullptr && !call_.problem.softcap;
    if ((raw || biased) && AttendFused(entry, span, next, row0, count)) return;
    const std::int64_t vo = padded<T>(call_.problem.dim_vo);
    const std::int64_t cols = span.cols;
    if (config_.gemv) {
      Dot(span, row0, count);
    } else {
      Gemm<T>({x.q + row0 * qk_, qk_, 1, x.k_t + span.first, config_.tile_kv, x.s, cols, count,
               cols, call_.problem.dim_qk, false});
    }
    SoftmaxOfStrip(entry, span, next, row0, count);
    if (config_.gemv) {
      AddValuesOf(span, row0, count);
    } else {
      Gemm<T>({x.s, cols, 1, x.v + span.first * vo, vo, x.o + row0 * vo, vo, count, vo, span.keys,
               true});
    }
  }

  // With heads_together: the steps of a tile of the selected head. DotKeys() and AddKeys() take
  // kKeysAtOnce and kKeysOfValues keys, from j on.
  void BeginTile(const KeySpan& span, const NextScores& next, std::int64_t count) {
    HeadTile& tile = tiles_[head_];
    tile.span = span;
    tile.next = next;
    tile.rows = span.keys > 0 ? SeeingRows(x_.rows, count, span, kGemmRows) : RowSpan{};
  }
  void DotKeys(std::int64_t j) {
    const HeadTile& tile = tiles_[head_];
    if (tile.rows.count == 0 || j >= tile.span.cols) return;
    DotRows(x_.q + tile.rows.first * qk_, qk_, tile.rows.count, tile.k, tile.span.first + j,
            kKeysAtOnce, qk_, x_.s + j, tile.span.cols, [](std::int64_t) {});
  }
  void SoftmaxOfTile(const Entry& entry) {
    const HeadTile& tile = tiles_[head_];
    if (tile.rows.count == 0) return;
    SoftmaxOfStrip(entry, tile.span, tile.next, tile.rows.first, tile.rows.count);
  }
  void AddKeys(std::int64_t j) {
    const HeadTile& tile = tiles_[head_];
    if (tile.rows.count == 0 || j >= tile.span.keys) return;
    const std::int64_t vo = padded<T>(call_.problem.dim_vo);
    AddValues(x_.s + j, tile.span.cols, tile.rows.count, tile.v, tile.span.first + j,
              std::min(kKeysOfValues, tile.span.keys - j), vo, x_.o + tile.rows.first * vo, vo,
              [](std::int64_t) {});
  }

 private:
  // Turns products of `count` rows from row0 on into P; updates their maxima, sums and o.
  void SoftmaxOfStrip(const Entry& entry, const KeySpan& span, const NextScores& next,
                      std::int64_t row0, std::int64_t count) {
    const Scratch<T>& x = x_;
    const bool raw = softmax_takes_raw(call_);
    const std::int64_t vo = padded<T>(call_.problem.dim_vo);
    const std::int64_t cols = span.cols;
    const TileRow* rows = x.rows + row0;
    const std::uint8_t* random =
        call_.problem.dropout ? DropoutBytes(call_, entry, rows, count, span.j0, cols, x.random)
                              : nullptr;
    const T factor = raw ? static_cast<T>(call_.numbers.scale) : T(1);
    const SoftmaxStrip<T> strip{
        x.s, cols, factor, x.row_max + row0, x.row_sum + row0, x.o + row0 * vo, vo};
    // If not raw, ScoreRow has written -inf to hidden pairs, so the softmax needs no mask.
    const bool all = !raw || SeesAll(rows, count, span);
    RowVisible visible[kRowsAtOnce];
    for (std::int64_t first = 0; first < count; first += kRowsAtOnce) {
      const std::int64_t some = std::min<std::int64_t>(kRowsAtOnce, count - first);
      for (std::int64_t n = 0; n < some; ++n) {
        const TileRow& row = rows[first + n];
        PrefetchScores(call_, entry, row, next);
        if (pair_ahead_ != nullptr) pair_ahead_->step();
        if (!all) FindRowVisible(call_, row, span, visible[n]);
        if (raw) continue;
        ScoreRow<T>(call_, entry, row, span, x.s + (first + n) * cols, nullptr, x.row_buffer);
      }
      Softmax(strip, first, some, all ? nullptr : visible);
      for (std::int64_t n = 0; random != nullptr && n < some; ++n) {
        DropRow(call_, random + (first + n) * kDropoutRow, cols, x.s + (first + n) * cols);
      }
    }
  }

  // Whether products in bf16 (config_.gemv_engine) exist for T.
  static constexpr bool kMayMultiplyBf16 = kMayHaveBf16Engine && sizeof(T) == 4;
  static constexpr bool kMayAttendRows = kHasAttendRows && sizeof(T) == 4;

  // With gemv_engine: the first half of x_.q holds packed queries, the second those of LoadQuery().
  [[nodiscard]] Bf16Bits* queries() const { return reinterpret_cast<Bf16Bits*>(x_.q); }
  [[nodiscard]] Bf16Bits* loaded_queries() const {
    return queries() + kMostDecodeRows * call_.problem.dim_qk;
  }

  // Each of the two products prefetches half of the next keys and values.
  static void StepAhead(void* ahead, std::int64_t num_keys) {
    static_cast<RowsAhead*>(ahead)->Step(num_keys / 2);
  }

  // With gemv_engine: the complete step for a strip that sees all keys of the span. Returns whether
  // it was done.
  HWY_INLINE bool Attend(const KeySpan& span, std::int64_t row0, std::int64_t count) {
    if constexpr (kMayMultiplyBf16) {
      if (decode_ == nullptr || decode_->attend == nullptr || count <= decode_->attend_above ||
          call_.problem.dropout || !SeesAll(x_.rows + row0, count, span)) {
        return false;
      }
      const std::int64_t vo = padded<T>(call_.problem.dim_vo);
      decode_->attend({.scores = {queries(), count, tiles_[head_].k.rows + span.first, span.cols,
                                  call_.problem.dim_qk, nullptr, 0},
                       .values = {nullptr, 0, count, tiles_[head_].v.rows + span.first, span.keys,
                                  call_.problem.dim_vo, x_.o + row0 * vo, vo},
                       .scale = static_cast<float>(call_.numbers.scale),
                       .row_max = x_.row_max + row0,
                       .row_sum = x_.row_sum + row0},
                      {StepAhead, ahead_});
      return true;
    }
    return false;
  }

  // With gemv and without gemv_engine: the same for several rows.
  HWY_INLINE bool AttendInRows(const KeySpan& span, std::int64_t row0, std::int64_t count) {
    if constexpr (kMayAttendRows) {
      if (rows_in_q_t_ == 0 || row0 != 0 || count != rows_in_q_t_ || call_.problem.dropout ||
          !SeesAll(x_.rows, count, span)) {
        return false;
      }
      const std::int64_t vo = padded<T>(call_.problem.dim_vo);
      AttendRows({.q = x_.q_t,
                  .rows = count,
                  .k = &tiles_[head_].k,
                  .v = &tiles_[head_].v,
                  .first = span.first,
                  .dim_qk = qk_,
                  .dim_vo = vo,
                  .strip = {x_.s, span.cols, static_cast<T>(call_.numbers.scale), x_.row_max,
                            x_.row_sum, x_.o, vo},
                  .converted = x_.k},
                 ahead_);
      return true;
    }
    return false;
  }

  // The same with f32 and many rows, for a full tile of keys. A packed mask or a bias in f32
  // may be given, but no other option on scores.
  HWY_INLINE bool AttendFused(const Entry& entry, const KeySpan& span, const NextScores& next,
                              std::int64_t row0, std::int64_t count) {
    if constexpr (kHasFusedSoftmax && sizeof(T) == 4) {
      if (config_.gemv || span.cols != kFusedCols || call_.problem.dropout ||
          pair_ahead_ != nullptr) {
        return false;
      }
      const std::int64_t vo = padded<T>(call_.problem.dim_vo);
      T* const o = x_.o + row0 * vo;
      SoftmaxStrip<float> strip{x_.s,
                                span.cols,
                                static_cast<T>(call_.numbers.scale),
                                x_.row_max + row0,
                                x_.row_sum + row0,
                                o,
                                vo};
      FusedOperands product{.q = x_.q + row0 * qk_,
                            .ldq = qk_,
                            .k_t = x_.k_t + span.first,
                            .ldk = config_.tile_kv,
                            .depth = call_.problem.dim_qk};
      if (span.mask_bits != nullptr && span.first == 0 && !call_.bias.given()) {
        // The strip's first row is that of the words.
        product.visible_row = call_.problem.mask.q ? call_.mask_bits.row : 0;
        product.visible = PackedRow(call_, x_.rows[row0], span);
        MultiplyAndSoftmax<FusedScores::masked>(strip, product, count);
      } else if (call_.mask.given() || !SeesAll(x_.rows + row0, count, span)) {
        return false;
      } else if (call_.bias.given()) {
        if (!FindBias(entry, span, next, row0, count, product)) return false;
        strip.factor = T(1);
        MultiplyAndSoftmax<FusedScores::biased>(strip, product, count);
      } else {
        MultiplyAndSoftmax<FusedScores::plain>(strip, product, count);
      }
      Gemm<T>({x_.s, span.cols, 1, x_.v + span.first * vo, vo, o, vo, count, vo, span.keys, true});
      return true;
    }
    return false;
  }

  // Whether AttendFused() can add the bias of these rows.
  bool FindBias(const Entry& entry, const KeySpan& span, const NextScores& next, std::int64_t row0,
                std::int64_t count, FusedOperands& product) const {
    const TileRow* rows = x_.rows + row0;
    if (call_.bias.dtype != DType::f32 || call_.bias.stride_kv == 0 ||
        rows[0].head != rows[count - 1].head) {
      return false;
    }
    product.scale = static_cast<float>(call_.numbers.scale);
    product.bias = rows[0].bias + span.j0 * call_.bias.stride_kv;
    product.bias_row = call_.bias.stride_q;
    product.bias_ahead = BiasAhead(call_, entry, rows, count, span, next);
    return true;
  }

  // With gemv: scores of `count` rows from row0 on.
  HWY_INLINE void Dot(const KeySpan& span, std::int64_t row0, std::int64_t count) {
    if constexpr (kMayMultiplyBf16) {
      if (decode_ != nullptr) {
        static_assert(kSpanStep % kKeysOfScores == 0);
        return decode_->dot_rows({queries(), count, tiles_[head_].k.rows + span.first, span.cols,
                                  call_.problem.dim_qk, x_.s, span.cols},
                                 {StepAhead, ahead_});
      }
    }
    DotRows(x_.q + row0 * qk_, qk_, count, tiles_[head_].k, span.first, span.cols, qk_, x_.s,
            span.cols, [this](std::int64_t num_keys) { StepAhead(ahead_, num_keys); });
  }
  // With gemv: adds P V to o of `count` rows from row0 on.
  HWY_INLINE void AddValuesOf(const KeySpan& span, std::int64_t row0, std::int64_t count) {
    const std::int64_t vo = padded<T>(call_.problem.dim_vo);
    T* const o = x_.o + row0 * vo;
    if constexpr (kMayMultiplyBf16) {
      if (decode_ != nullptr) {
        return decode_->add_values({x_.s, span.cols, count, tiles_[head_].v.rows + span.first,
                                    span.keys, call_.problem.dim_vo, o, vo},
                                   {StepAhead, ahead_});
      }
    }
    AddValues(x_.s, span.cols, count, tiles_[head_].v, span.first, span.keys, vo, o, vo,
              [this](std::int64_t num_keys) { StepAhead(ahead_, num_keys); });
  }

  // Whether the products read these rows as is_split() says.
  [[nodiscard]] bool SplitsRows(const StridedTensor& rows, std::int64_t dim) const {
    return config_.gemv && rows.dtype == DType::bf16 && is_split<DType::bf16, T>() &&
           ReadsInPlace<T>(rows, dim, padded<T>(dim));
  }

  const Call& call_;
  const Config& config_;
  const PackedKeys& packed_;
  std::int64_t qk_;
  Scratch<T> x_;
  Scratch<T> all_;  // x_ of head 0
  RowsAhead* ahead_ = nullptr;
  PairAhead* pair_ahead_ = nullptr;
  const Bf16Decode* decode_ = nullptr;  // with gemv_engine
  bool started_ = false;
  std::int64_t rows_in_q_t_ = 0;  // those of PackQueries(), if AttendRows() takes them
  // With gemv: the tile of the selected head. With heads_together: those of all heads, and the
  // strips that are multiplied with them.
  std::int64_t head_ = 0;
  struct HeadTile {
    CacheTile k, v;
    KeySpan span;
    NextScores next;
    RowSpan rows;
  };
  HeadTile tiles_[kMostHeadsOfTask];
};

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_FLOAT_OPS_INL_H_
