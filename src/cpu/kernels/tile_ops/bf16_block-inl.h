// Products of the backward for a block of keys with a bf16 engine: Q, K, V, dO, P and dS in bf16,
// sums in f32. It accumulates dK^T and dV^T, so that P and dS are the packed operands in dV^T +=
// dO^T P and dK^T += Q^T dS. Packing them only rounds and interleaves two rows at a time. Only Q
// and dO are transposed, once for all keys of the block.
#if defined(ATTN_CPU_BF16_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_BF16_BLOCK_INL_H_
#undef ATTN_CPU_BF16_BLOCK_INL_H_
#else
#define ATTN_CPU_BF16_BLOCK_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cpu/kernels/bias_gradient-inl.h"
#include "cpu/kernels/key_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {

class Bf16Block {
 public:
  Bf16Block(const KeyHead<float>& at, const Bf16KeysScratch& x)
      : at_(at),
        x_(x),
        engine_(bf16_engine(at.config.engine)),
        qk_(round_up(at.call.problem.dim_qk, kPackedDepth)),
        vo_(round_up(at.call.problem.dim_vo, kPackedDepth)),
        dbias_(at),
        dbias_of_rows_(dbias_.is_plain_copy() && at.call.dbias.dtype == DType::bf16) {
    engine_.begin();
  }
  ~Bf16Block() { engine_.end(); }
  Bf16Block(const Bf16Block&) = delete;
  Bf16Block& operator=(const Bf16Block&) = delete;

  BiasGradient<float>& dbias() { return dbias_; }
  void Clear(std::int64_t) {
    std::fill_n(x_.dk_t, sums_row(at_.config) * qk_, 0.0F);
    std::fill_n(x_.dv_t, sums_row(at_.config) * vo_, 0.0F);
  }

  // Loads rows of q and dout, row-major and transposed, with lse and delta. Pads with zeros to full
  // strips.
  void Load(std::int64_t row0, std::int64_t count) {
    const Problem& p = at_.call.problem;
    const char* q[kBf16StripRows] = {};
    const char* dout[kBf16StripRows] = {};
    FindRows(at_.call, at_.entry, at_.sums, at_.head, row0, count, x_.f32, q, dout);
    for (std::int64_t r = 0; r < kBf16StripRows; ++r) {
      CopyRow(q[r], p.dim_qk, qk_, x_.q + r * qk_);
      CopyRow(dout[r], p.dim_vo, vo_, x_.dout + r * vo_);
    }
    engine_.transpose(q, p.dim_qk, x_.q_t);
    engine_.transpose(dout, p.dim_vo, x_.dout_t);
    // Prefetches the next strip's rows. Strips descend, so these have lower indices; they are
    // kilobytes apart.
    for (std::int64_t r = 0; r < count; ++r) {
      const TileRow& row = x_.f32.rows[r];
      const std::int64_t i = row.i - kBf16StripRows;
      if (i < 0 || i >= at_.entry.len_q) continue;
      const auto prefetch = [&](const StridedTensor& rows, std::int64_t dim) {
        PrefetchRow(row_address(at_.call, rows, at_.entry.b, at_.entry.first_q, i, row.head),
                    2 * dim);
      };
      prefetch(at_.call.q, p.dim_qk);
      prefetch(at_.call.dout, p.dim_vo);
    }
  }

  // Returns false if interrupted.
  bool Multiply(KeyBlock& block, std::int64_t strip, std::int64_t count) {
    const Problem& p = at_.call.problem;
    float* dq = nullptr;
    if (dbias_.active() && !dbias_.Begin(block, strip, count)) return false;
    for (std::int64_t begin = 0; begin < block.keys; begin += at_.config.tile_kv) {
      const std::int64_t j0 = block.j0 + begin;
      const std::int64_t keys = std::min(at_.config.tile_kv, block.keys - begin);
      const KeySpan span = SeenSpan<float, kPackedDepth>(x_.f32.rows, count, j0, keys);
      StripVisible seen;
      if (softmax_takes_raw(at_.call)) {
        seen = FindVisible(at_.call, engine_, at_.entry, x_.f32.rows, count, span, x_.visible);
      }
      if (span.keys == 0 || !seen.any) {
        if (dbias_.active()) dbias_.AddNothing(j0, keys);
        continue;
      }
      const std::uint64_t bit = std::uint64_t{1} << (begin / at_.config.tile_kv);
      if ((block.loaded & bit) == 0) LoadKeys(begin, j0, keys);
      block.loaded |= bit;
      MultiplyTile(span, NextOf(block, begin, at_.config), begin + span.first, count, seen.visible);
      if (dbias_.active()) AddDbias(j0, keys, span, NextOf(block, begin, at_.config));
      if (!p.dq) continue;
      if (dq == nullptr) dq = BeginDq(at_, block.index, strip, count);
      if (dq == nullptr) return false;
      engine_.multiply({.a = x_.ds_rows,
                        .lda = span.cols,
                        .b = x_.k + (begin + span.first) * qk_,
                        .b_depth = kPackedDepth * qk_,
                        .b_cols = kPackedBlock,
                        .c = dq,
                        .ldc = padded<float>(p.dim_qk),
                        .rows = kBf16StripRows,
                        .cols = padded<float>(p.dim_qk),
                        .depth = span.cols,
                        .accumulate = true});
    }
    if (dbias_.active()) dbias_.End(block);
    if (!p.dq) return true;
    if (dq == nullptr) dq = BeginDq(at_, block.index, strip, count);
    if (dq == nullptr) return false;
    EndDq(at_, block.index, strip, count, dq);
    return true;
  }

  void Store(std::int64_t j0, std::int64_t owned, std::int64_t keys) {
    const Problem& p = at_.call.problem;
    const auto scale = static_cast<float>(at_.call.numbers.scale);
    for (std::int64_t j = 0; j < owned; j += kPackedCols) {
      const std::int64_t end = std::min(j + kPackedCols, owned);
      if (p.dk) StoreKeys(at_.call.dk, j0, j, end, keys, x_.dk_t, scale, p.dim_qk);
      if (p.dv) {
        StoreKeys(at_.call.dv, j0, j, end, keys, x_.dv_t, kept_factor<float>(at_.call), p.dim_vo);
      }
    }
  }

 private:
  static void CopyRow(const char* source, std::int64_t dim, std::int64_t width, Bf16Bits* to) {
    const std::int64_t count = source != nullptr ? dim : 0;
    if (count > 0) std::memcpy(to, source, static_cast<std::size_t>(2 * count));
    std::fill(to + count, to + width, Bf16Bits{0});
  }

  // Loads keys [j0, j0 + keys) to offset `begin` of the block.
  void LoadKeys(std::int64_t begin, std::int64_t j0, std::int64_t keys) {
    const Call& call = at_.call;
    const Problem& p = call.problem;
    const char* k[kPackedDepth];
    const char* v[kPackedDepth];
    const auto address = [&](const StridedTensor& rows, std::int64_t n) -> const char* {
      return n < keys ? row_address(call, rows, at_.entry.b, at_.entry.first_kv, j0 + n, at_.head)
                      : nullptr;
    };
    for (std::int64_t j = 0; j < keys; j += kPackedDepth) {
      for (std::int64_t n = 0; n < kPackedDepth; ++n) {
        k[n] = address(call.k, j + n);
        v[n] = address(call.v, j + n);
        PrefetchRow(address(call.k, j + n + kPackedDepth), 2 * p.dim_qk);
        PrefetchRow(address(call.v, j + n + kPackedDepth), 2 * p.dim_vo);
      }
      for (std::int64_t half = 0; half < kPackedDepth; half += kPackedCols) {
        engine_.pack_keys(k + half, p.dim_qk, x_.k_t + (begin + j + half) * qk_);
        engine_.pack_keys(v + half, p.dim_vo, x_.v_t + (begin + j + half) * vo_);
      }
      if (p.dq) engine_.pack_values(k, p.dim_qk, x_.k + (begin + j) * qk_);
    }
  }

  // out[32 x cols] = rows[32 x width] times the packed keys from offset `first` of the block.
  void MultiplyRows(const Bf16Bits* rows, const Bf16Bits* packed, std::int64_t width,
                    std::int64_t first, std::int64_t cols, float* out) {
    engine_.multiply({.a = rows,
                      .lda = width,
                      .b = packed + first * width,
                      .b_depth = kPackedBlock,
                      .b_cols = kPackedCols * width,
                      .c = out,
                      .ldc = cols,
                      .rows = kBf16StripRows,
                      .cols = cols,
                      .depth = width,
                      .accumulate = false});
  }

  // out[width x sums_row], from column `first` on, += rows[width x 32] packed[32 x cols].
  void AddTransposed(const Bf16Bits* rows, const Bf16Bits* packed, std::int64_t width,
                     std::int64_t first, std::int64_t cols, float* out) {
    engine_.multiply({.a = rows,
                      .lda = kBf16StripRows,
                      .b = packed,
                      .b_depth = kPackedBlock,
                      .b_cols = kPackedBlock,
                      .c = out + first,
                      .ldc = sums_row(at_.config),
                      .rows = width,
                      .cols = cols,
                      .depth = kBf16StripRows,
                      .accumulate = true});
  }

  // Computes everything except dq, against the tile's keys from offset `first` of the block.
  void MultiplyTile(const KeySpan& span, const NextScores& next, std::int64_t first,
                    std::int64_t count, const Bf16Visible& visible) {
    const Call& call = at_.call;
    const Problem& p = call.problem;
    const Scratch<float>& x = x_.f32;
    const std::int64_t cols = span.cols;
    const auto prefetch = [this] {
      if (at_.ahead != nullptr) at_.ahead->step();
    };
    MultiplyRows(x_.q, x_.k_t, qk_, first, cols, x.s);
    prefetch();
    MultiplyRows(x_.dout, x_.v_t, vo_, first, cols, x.dp);
    prefetch();
    Bf16Dropout dropout;
    if (p.dropout) {
      dropout =
          DropoutOf(call, DropoutBytes(call, at_.entry, x.rows, count, span.j0, cols, x.random));
    }
    const bool raw = softmax_takes_raw(call);
    for (std::int64_t r = 0; r < count; ++r) {
      float* s = x.s + r * cols;
      PrefetchScores(call, at_.entry, x.rows[r], next);
      if (!raw) {
        float* tanh = p.softcap ? x.tanh + r * cols : nullptr;
        ScoreRow<float>(call, at_.entry, x.rows[r], span, s, tanh, x.row_buffer);
      }
    }
    engine_.gradient({.s = x.s,
                      .dp = x.dp,
                      .count = count,
                      .cols = cols,
                      .scale = raw ? static_cast<float>(call.numbers.scale) : 1.0F,
                      .lse = x.lse,
                      .delta = x.delta,
                      .tanh = x.tanh,
                      .dropout = dropout,
                      .visible = visible,
                      .p = x_.p,
                      .ds = x_.ds,
                      .ds_rows = x_.ds_rows,
                      .ds_f32 = dbias_.active() && !dbias_of_rows_ ? x.dp : nullptr});
    prefetch();
    if (p.dv) AddTransposed(x_.dout_t, x_.p, vo_, first, cols, x_.dv_t);
    prefetch();
    if (p.dk) AddTransposed(x_.q_t, x_.ds, qk_, first, cols, x_.dk_t);
  }

  void AddDbias(std::int64_t j0, std::int64_t keys, const KeySpan& span, const NextScores& next) {
    if (dbias_of_rows_) {
      dbias_.AddTile(j0, keys, span, x_.ds_rows, next);
    } else {
      dbias_.AddTile(j0, keys, span, x_.f32.dp, next);
    }
  }

  // Stores rows [j, end) of the block's dk or dv, at most 16, from sums [dim x sums_row]. It
  // transposes 16 x 16 blocks: rows of `sums` are a power of two apart, so reading single elements
  // would miss the cache each time. Keys from `keys` on are padding.
  void StoreKeys(const StridedTensor& to, std::int64_t j0, std::int64_t j, std::int64_t end,
                 std::int64_t keys, const float* sums, float factor, std::int64_t dim) {
    const std::int64_t width = round_up(dim, kPackedCols);
    const std::int64_t ld = sums_row(at_.config);
    float* rows = x_.f32.row_buffer;
    for (std::int64_t c = 0; c < width; c += kPackedCols) {
      engine_.transpose_sums(sums + c * ld + j, ld, rows + c, width);
    }
    for (; j < end; ++j, rows += width) {
      std::fill(rows + dim, rows + width, 0.0F);
      StoreGradient(at_.call, to,
                    row_address(at_.call, to, at_.entry.b, at_.entry.first_kv, j0 + j, at_.head),
                    rows, factor, dim, j < keys);
    }
  }

  const KeyHead<float>& at_;
  const Bf16KeysScratch& x_;
  const Bf16Engine& engine_;
  std::int64_t qk_;
  std::int64_t vo_;
  BiasGradient<float> dbias_;
  bool dbias_of_rows_;  // dbias is dS rounded to bf16
};

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_BF16_BLOCK_INL_H_
