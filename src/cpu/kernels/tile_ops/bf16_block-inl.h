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
        dbias_(at, x.dbias_sums, engine_.writes_dbias),
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
  // parts.
  void Load(std::int64_t row0, std::int64_t count) {
    const Problem& p = at_.call.problem;
    const char* q[kBf16StripRows] = {};
    const char* dout[kBf16StripRows] = {};
    FindRows(at_.call, at_.entry, at_.sums, at_.head, row0, count, x_.f32, q, dout);
    for (std::int64_t first = 0; first < count; first += kBf16PartRows) {
      engine_.transpose(q + first, p.dim_qk, x_.q_t + first, kBf16StripRows, x_.q + first * qk_);
      engine_.transpose(dout + first, p.dim_vo, x_.dout_t + first, kBf16StripRows,
                        x_.dout + first * vo_);
    }
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
      KeySpan spans[kBf16Parts];
      if (!MultiplyParts(block, begin, count, spans)) continue;
      AddToKeys(begin, spans);
      if (!p.dq) continue;
      if (dq == nullptr) dq = BeginDq(at_, block.index, strip, count);
      if (dq == nullptr) return false;
      for (std::int64_t part = 0; part < kBf16Parts; ++part) {
        if (spans[part].keys > 0) AddToQueries(begin, part, spans[part], dq);
      }
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
    for (std::int64_t j = 0; j < owned; j += kPackedDepth) {
      const std::int64_t end = std::min(j + kPackedDepth, owned);
      if (p.dk) StoreKeys(at_.call.dk, j0, j, end, keys, x_.dk_t, scale, p.dim_qk);
      if (p.dv) {
        StoreKeys(at_.call.dv, j0, j, end, keys, x_.dv_t, kept_factor<float>(at_.call), p.dim_vo);
      }
    }
  }

 private:
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

  // Computes P and dS of each part of the loaded strip against the block's tile at offset `begin`.
  // spans: what each part sees of it; no keys if none. Returns whether any part sees any.
  bool MultiplyParts(KeyBlock& block, std::int64_t begin, std::int64_t count,
                     KeySpan (&spans)[kBf16Parts]) {
    const std::int64_t j0 = block.j0 + begin;
    const std::int64_t keys = std::min(at_.config.tile_kv, block.keys - begin);
    const NextScores next = NextOf(block, begin, at_.config);
    bool any = false;
    for (std::int64_t part = 0; part * kBf16PartRows < count; ++part) {
      const RowSpan rows{part * kBf16PartRows,
                         std::min(kBf16PartRows, count - part * kBf16PartRows)};
      const TileRow* of_part = x_.f32.rows + rows.first;
      const KeySpan span = SeenSpan<float, kPackedDepth>(of_part, rows.count, j0, keys);
      const StripVisible seen =
          FindVisible(at_.call, engine_, of_part, rows.count, span, x_.visible);
      if (span.keys == 0 || !seen.any) {
        if (dbias_.active()) dbias_.AddNothing(j0, keys, rows);
        continue;
      }
      const std::uint64_t bit = std::uint64_t{1} << (begin / at_.config.tile_kv);
      if ((block.loaded & bit) == 0) LoadKeys(begin, j0, keys);
      block.loaded |= bit;
      spans[part] = span;
      any = true;
      MultiplyPart(span, next, begin, rows, seen.visible);
      if (dbias_.active()) AddDbias(j0, keys, span, next, rows);
    }
    return any;
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
                      .rows = kBf16PartRows,
                      .cols = cols,
                      .depth = width,
                      .accumulate = false});
  }

  // S, dP, P and dS of one part.
  void MultiplyPart(const KeySpan& span, const NextScores& next, std::int64_t begin,
                    const RowSpan& part, const Bf16Visible& visible) {
    const Call& call = at_.call;
    const Problem& p = call.problem;
    const Scratch<float>& x = x_.f32;
    const TileRow* rows = x.rows + part.first;
    const std::int64_t cols = span.cols;
    const auto prefetch = [this] {
      if (at_.ahead != nullptr) at_.ahead->step();
    };
    MultiplyRows(x_.q + part.first * qk_, x_.k_t, qk_, begin + span.first, cols, x.s);
    prefetch();
    MultiplyRows(x_.dout + part.first * vo_, x_.v_t, vo_, begin + span.first, cols, x.dp);
    prefetch();
    Bf16Dropout dropout;
    if (p.dropout) {
      dropout =
          DropoutOf(call, DropoutBytes(call, at_.entry, rows, part.count, span.j0, cols, x.random));
    }
    const auto kind = engine_addend(call, engine_);
    const bool raw = kind != Bf16Addend::Kind::none || softmax_takes_raw(call);
    AddendRows addends;
    const Bf16Addend addend =
        FindAddend(call, at_.entry, kind, rows, part.count, span, next, addends);
    for (std::int64_t r = 0; r < part.count; ++r) {
      PrefetchScores(call, at_.entry, rows[r], next, addend.ahead != 0);
      if (raw) continue;
      float* tanh = p.softcap ? x.tanh + r * cols : nullptr;
      ScoreRow<float>(call, at_.entry, rows[r], span, x.s + r * cols, tanh, x.row_buffer);
    }
    const bool by_engine = dbias_.is_by_engine();
    char* dbias_rows[kBf16PartRows];
    engine_.gradient({.s = x.s,
                      .dp = x.dp,
                      .count = part.count,
                      .cols = cols,
                      .scale = raw ? static_cast<float>(call.numbers.scale) : 1.0F,
                      .addend = addend,
                      .lse = x.lse + part.first,
                      .delta = x.delta + part.first,
                      .tanh = x.tanh,
                      .dropout = dropout,
                      .visible = visible,
                      .p = PackedAt(x_.p, part.first / kBf16PartRows, span.first),
                      .ds = PackedAt(x_.ds, part.first / kBf16PartRows, span.first),
                      .packed_cols = kBf16Parts * kPackedBlock,
                      .ds_rows = x_.ds_rows + part.first * at_.config.tile_kv,
                      .ds_f32 = dbias_.active() && !dbias_of_rows_ && !by_engine ? x.dp : nullptr,
                      .dbias = by_engine ? dbias_.Find(span, part, dbias_rows) : Bf16Dbias{}});
  }

  // The block of packed P or dS with a part's columns from `col` of the tile on.
  static Bf16Bits* PackedAt(Bf16Bits* packed, std::int64_t part, std::int64_t col) {
    return packed + (col / kPackedCols * kBf16Parts + part) * kPackedBlock;
  }

  // Adds P^T dO and dS^T Q of all parts to dv and dk of the tile at offset `begin` of the block.
  void AddToKeys(std::int64_t begin, const KeySpan (&spans)[kBf16Parts]) {
    const Problem& p = at_.call.problem;
    std::int64_t first = at_.config.tile_kv;
    std::int64_t end = 0;
    RowSpan rows{kBf16StripRows, 0};
    for (std::int64_t part = 0; part < kBf16Parts; ++part) {
      if (spans[part].keys == 0) continue;
      first = std::min(first, spans[part].first);
      end = std::max(end, spans[part].first + spans[part].cols);
      rows.first = std::min(rows.first, part * kBf16PartRows);
      rows.count = (part + 1) * kBf16PartRows - rows.first;
    }
    // Where parts see different keys, P and dS of the others are 0.
    for (std::int64_t n = rows.first; n < rows.first + rows.count; n += kBf16PartRows) {
      const KeySpan& span = spans[n / kBf16PartRows];
      for (std::int64_t col = first; col < end; col += kPackedCols) {
        if (col >= span.first && col < span.first + span.cols) continue;
        std::fill_n(PackedAt(x_.p, n / kBf16PartRows, col), kPackedBlock, Bf16Bits{0});
        std::fill_n(PackedAt(x_.ds, n / kBf16PartRows, col), kPackedBlock, Bf16Bits{0});
      }
    }
    const auto prefetch = [this] {
      if (at_.ahead != nullptr) at_.ahead->step();
    };
    prefetch();
    if (p.dv) AddTransposed(x_.dout_t, x_.p, vo_, rows, first, end, x_.dv_t + begin);
    prefetch();
    if (p.dk) AddTransposed(x_.q_t, x_.ds, qk_, rows, first, end, x_.dk_t + begin);
  }

  // Columns [first, end) of out[width x sums_row] += transposed[width x rows] packed[rows x cols].
  void AddTransposed(const Bf16Bits* transposed, Bf16Bits* packed, std::int64_t width,
                     const RowSpan& rows, std::int64_t first, std::int64_t end, float* out) {
    engine_.multiply({.a = transposed + rows.first,
                      .lda = kBf16StripRows,
                      .b = PackedAt(packed, rows.first / kBf16PartRows, first),
                      .b_depth = kPackedBlock,
                      .b_cols = kBf16Parts * kPackedBlock,
                      .c = out + first,
                      .ldc = sums_row(at_.config),
                      .rows = width,
                      .cols = end - first,
                      .depth = rows.count,
                      .accumulate = true});
  }

  // dq[strip x dim_qk] of a part += dS K.
  void AddToQueries(std::int64_t begin, std::int64_t part, const KeySpan& span, float* dq) {
    const std::int64_t width = padded<float>(at_.call.problem.dim_qk);
    engine_.multiply({.a = x_.ds_rows + part * kBf16PartRows * at_.config.tile_kv,
                      .lda = span.cols,
                      .b = x_.k + (begin + span.first) * qk_,
                      .b_depth = kPackedDepth * qk_,
                      .b_cols = kPackedBlock,
                      .c = dq + part * kBf16PartRows * width,
                      .ldc = width,
                      .rows = kBf16PartRows,
                      .cols = width,
                      .depth = span.cols,
                      .accumulate = true});
  }

  void AddDbias(std::int64_t j0, std::int64_t keys, const KeySpan& span, const NextScores& next,
                const RowSpan& rows) {
    if (dbias_.is_by_engine()) {
      dbias_.AddHidden(j0, span.j0, rows);
      dbias_.AddHidden(span.j0 + span.keys, j0 + keys, rows);
    } else if (dbias_of_rows_) {
      dbias_.AddTile(j0, keys, span, x_.ds_rows + rows.first * at_.config.tile_kv, next, rows);
    } else {
      dbias_.AddTile(j0, keys, span, x_.f32.dp, next, rows);
    }
  }

  // Stores rows [j, end) of the block's dk or dv, at most 32, from sums [dim x sums_row]. It
  // transposes 16 x 16 blocks: rows of `sums` are a power of two apart, so reading single elements
  // would miss the cache each time. Keys from `keys` on are padding.
  void StoreKeys(const StridedTensor& to, std::int64_t j0, std::int64_t j, std::int64_t end,
                 std::int64_t keys, const float* sums, float factor, std::int64_t dim) {
    const std::int64_t width = round_up(dim, kPackedCols);
    const std::int64_t ld = sums_row(at_.config);
    const bool plain = to.dtype == DType::bf16 && !to.workspace && !at_.call.problem.accumulate &&
                       !at_.call.problem.nonfinite_zero && end <= keys;
    if (engine_.store_sums != nullptr && plain) {
      char* address[kPackedDepth] = {};
      for (std::int64_t n = 0; j + n < end; ++n) {
        address[n] =
            row_address(at_.call, to, at_.entry.b, at_.entry.first_kv, j0 + j + n, at_.head);
      }
      return engine_.store_sums(sums + j, ld, factor, dim, address);
    }
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
