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
#include <limits>

#include "cpu/kernels/bias_gradient-inl.h"
#include "cpu/kernels/key_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {

class Bf16Block {
 public:
  // Calls of Prefetch() in a strip that sees keys: at least. A strip of two parts makes more.
  static constexpr std::int64_t kLeastStepsOfStrip = 4;

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
  void Clear(const KeyBlock& block) {
    if (at_.config.ring_tiles > 0) {
      unstored_ = round_up(block.owned, at_.config.tile_kv);
      return;
    }
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
    for (std::int64_t part = 0; part < kBf16Parts; ++part) {
      const std::int64_t first = std::min(part * kBf16PartRows, count);
      parts_[part] =
          FindStripKeys(at_.call, x_.f32.rows + first, std::min(kBf16PartRows, count - first));
    }
    if (at_.sums.delta == nullptr) {
      for (std::int64_t r = 0; r < count; ++r) {
        if (dout[r] == nullptr) continue;
        x_.f32.delta[r] = DeltaOf(at_.call, at_.entry, x_.f32.rows[r], x_.f32.row_buffer,
                                  x_.f32.row_buffer + vo_);
      }
    }
  }

  // Returns false if interrupted.
  bool Multiply(KeyBlock& block, std::int64_t strip, std::int64_t count) {
    const Problem& p = at_.call.problem;
    float* dq = nullptr;
    if (dbias_.active() && !dbias_.Begin(block, strip, count)) return false;
    const core::KeyRange seen{std::min(parts_[0].any.begin, parts_[1].any.begin),
                              std::max(parts_[0].any.end, parts_[1].any.end)};
    if (at_.config.ring_tiles > 0 && !seen.empty()) StoreTiles(block, seen.end - block.j0);
    FindNext(at_, x_.f32.rows[0], count, block, seen, unstored_, ahead_);
    for (std::int64_t begin = 0; begin < block.keys; begin += at_.config.tile_kv) {
      KeySpan spans[kBf16Parts];
      if (!MultiplyParts(block, begin, count, spans)) continue;
      AddToKeys(place_of(at_.config, begin), spans);
      if (!p.dq) continue;
      if (dq == nullptr) dq = BeginDq(at_, block.index, strip, count);
      if (dq == nullptr) return false;
      for (std::int64_t part = 0; part < kBf16Parts; ++part) {
        if (spans[part].keys > 0) AddToQueries(place_of(at_.config, begin), part, spans[part], dq);
      }
    }
    if (dbias_.active()) dbias_.End(block);
    if (!p.dq) return true;
    if (dq == nullptr) dq = BeginDq(at_, block.index, strip, count);
    if (dq == nullptr) return false;
    EndDq(at_, block.index, strip, count, dq);
    return true;
  }

  KeySums<float> Sums(const KeyBlock&) const {
    const Problem& p = at_.call.problem;
    const std::int64_t row = sums_row(at_.config);
    return {{{x_.dk_t, p.dk ? row * qk_ : 0}, {x_.dv_t, p.dv ? row * vo_ : 0}}};
  }
  void Store(const KeyBlock& block) {
    if (at_.config.ring_tiles > 0) return StoreTiles(block, 0);
    StoreRange(block, 0, block.owned);
  }

 private:
  void Prefetch() {
    if (at_.ahead != nullptr) at_.ahead->step();
  }

  void StoreTiles(const KeyBlock& block, std::int64_t end) {
    StoreTilesFrom(
        at_.config, block, end, unstored_, [&](std::int64_t place) { ClearSums(place); },
        [&](std::int64_t from, std::int64_t to) { StoreRange(block, from, to); });
  }

  void ClearSums(std::int64_t place) {
    const std::int64_t ld = sums_row(at_.config);
    for (std::int64_t c = 0; c < qk_; ++c) {
      std::fill_n(x_.dk_t + c * ld + place, at_.config.tile_kv, 0.0F);
    }
    for (std::int64_t c = 0; c < vo_; ++c) {
      std::fill_n(x_.dv_t + c * ld + place, at_.config.tile_kv, 0.0F);
    }
  }

  // Stores dk and dv of keys [begin, end) of the block.
  void StoreRange(const KeyBlock& block, std::int64_t begin, std::int64_t end) {
    const Problem& p = at_.call.problem;
    const auto scale = static_cast<float>(at_.call.numbers.scale);
    for (std::int64_t j = begin; j < end; j += kPackedDepth) {
      const RowSpan keys{j, std::min(kPackedDepth, end - j)};
      const std::int64_t place = place_of(at_.config, j);
      if (p.dk) StoreKeys(at_.call.dk, block, keys, x_.dk_t + place, scale, p.dim_qk);
      if (p.dv) {
        StoreKeys(at_.call.dv, block, keys, x_.dv_t + place, kept_factor<float>(at_.call),
                  p.dim_vo);
      }
    }
  }

  // Loads keys [j0, j0 + keys) to the place `begin`.
  void LoadKeys(std::int64_t begin, std::int64_t j0, std::int64_t keys) {
    if (at_.config.ring_tiles > 0) ClearSums(begin);
    const Call& call = at_.call;
    const Problem& p = call.problem;
    const char* k[kPackedDepth];
    const char* v[kPackedDepth];
    const auto address = [&](const StridedTensor& rows, std::int64_t n) -> const char* {
      return n < keys
                 ? row_address(call, rows, at_.entry.b, at_.entry.first_kv, j0 + n, at_.head_kv)
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
    const std::int64_t place = place_of(at_.config, begin);
    const std::int64_t mask_words = MaskWordsBefore(at_.call, j0);
    bool any = false;
    for (std::int64_t part = 0; part * kBf16PartRows < count; ++part) {
      const RowSpan rows{part * kBf16PartRows,
                         std::min(kBf16PartRows, count - part * kBf16PartRows)};
      const TileRow* of_part = x_.f32.rows + rows.first;
      const KeySpan span = SpanOfStrip(parts_[part], kPackedDepth, j0, keys, mask_words, [&] {
        return SeenSpan<float, kPackedDepth>(of_part, rows.count, j0, keys);
      });
      StripVisible seen{{}, false};
      if (span.keys > 0) {
        seen = FindVisible(at_.call, engine_, of_part, rows.count, span, x_.visible);
      }
      if (!seen.any) {
        if (dbias_.active()) dbias_.AddNothing(j0, keys, rows);
        continue;
      }
      const std::uint64_t bit = std::uint64_t{1} << (begin / at_.config.tile_kv);
      if ((block.loaded & bit) == 0) LoadKeys(place, j0, keys);
      block.loaded |= bit;
      spans[part] = span;
      any = true;
      MultiplyPart(span, next, place, rows, seen.visible);
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
                      .accumulate = false,
                      .ahead = &ahead_});
  }

  // S, dP, P and dS of one part.
  void MultiplyPart(const KeySpan& span, const NextScores& next, std::int64_t begin,
                    const RowSpan& part, const Bf16Visible& visible) {
    const Call& call = at_.call;
    const Problem& p = call.problem;
    const Scratch<float>& x = x_.f32;
    const TileRow* rows = x.rows + part.first;
    const std::int64_t cols = span.cols;
    MultiplyRows(x_.q + part.first * qk_, x_.k_t, qk_, begin + span.first, cols, x.s);
    Prefetch();
    MultiplyRows(x_.dout + part.first * vo_, x_.v_t, vo_, begin + span.first, cols, x.dp);
    Prefetch();
    Bf16Dropout dropout;
    if (p.dropout) {
      dropout =
          DropoutOf(call, DropoutBytes(call, at_.entry, rows, part.count, span.j0, cols, x.random));
    }
    const auto kind = engine_addend(call, engine_);
    const bool raw = kind != Bf16Addend::Kind::none ||
                     (engine_.caps ? softmax_takes_capped(call) : softmax_takes_raw(call));
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
                      .tanh = raw ? nullptr : x.tanh,
                      .softcap = raw ? static_cast<float>(call.numbers.softcap) : 0.0F,
                      .dropout = dropout,
                      .visible = visible,
                      .p = PackedAt(x_.p, part.first / kBf16PartRows, span.first),
                      .ds = PackedAt(x_.ds, part.first / kBf16PartRows, span.first),
                      .packed_cols = kBf16Parts * kPackedBlock,
                      .ds_rows = x_.ds_rows + part.first * at_.config.tile_kv,
                      .ds_f32 = dbias_.active() && !dbias_of_rows_ && !by_engine ? x.dp : nullptr,
                      .dbias = by_engine ? dbias_.Find(span, part, dbias_rows) : Bf16Dbias{},
                      .ahead = &ahead_});
  }

  // The block of packed P or dS with a part's columns from `col` of the tile on.
  static Bf16Bits* PackedAt(Bf16Bits* packed, std::int64_t part, std::int64_t col) {
    return packed + (col / kPackedCols * kBf16Parts + part) * kPackedBlock;
  }

  // Adds P^T dO and dS^T Q of all parts to dv and dk of the tile at offset `begin` of the block.
  // Where parts see different columns, each run of columns is multiplied with the parts that see
  // it.
  void AddToKeys(std::int64_t begin, const KeySpan (&spans)[kBf16Parts]) {
    static_assert(kBf16Parts == 2);
    const auto end_of = [](const KeySpan& span) { return span.first + span.cols; };
    const KeySpan& top = spans[0];
    const KeySpan& low = spans[1];
    Prefetch();
    if (top.keys == 0 || low.keys == 0 || end_of(top) <= low.first || end_of(low) <= top.first) {
      if (top.keys > 0) AddColumns(begin, {0, kBf16PartRows}, top.first, end_of(top));
      if (low.keys > 0) AddColumns(begin, {kBf16PartRows, kBf16PartRows}, low.first, end_of(low));
      return Prefetch();
    }
    const auto alone = [&](std::int64_t part, std::int64_t first, std::int64_t end) {
      if (first < end) AddColumns(begin, {part * kBf16PartRows, kBf16PartRows}, first, end);
    };
    const std::int64_t first = std::max(top.first, low.first);
    const std::int64_t end = std::min(end_of(top), end_of(low));
    alone(0, top.first, first);
    alone(1, low.first, first);
    AddColumns(begin, {0, kBf16StripRows}, first, end);
    Prefetch();
    alone(0, end, end_of(top));
    alone(1, end, end_of(low));
  }

  // Adds those of some rows of the strip to columns [first, end) of the tile.
  void AddColumns(std::int64_t begin, const RowSpan& rows, std::int64_t first, std::int64_t end) {
    const Problem& p = at_.call.problem;
    if (p.dv) AddTransposed(x_.dout_t, x_.p, vo_, rows, first, end, x_.dv_t + begin);
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
                      .accumulate = true,
                      .ahead = &ahead_});
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
                      .accumulate = true,
                      .ahead = &ahead_});
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

  // Stores at most 32 keys of the block's dk or dv from sums [dim x sums_row]. It transposes 16 x
  // 16 blocks: rows of `sums` are kilobytes apart, so reading single elements would miss the cache
  // each time. Keys from block.keys on are padding.
  void StoreKeys(const StridedTensor& to, const KeyBlock& block, const RowSpan& keys,
                 const float* sums, float factor, std::int64_t dim) {
    const std::int64_t width = round_up(dim, kPackedCols);
    const std::int64_t ld = sums_row(at_.config);
    const auto address = [&](std::int64_t n) {
      return row_address(at_.call, to, at_.entry.b, at_.entry.first_kv, block.j0 + keys.first + n,
                         at_.head_kv);
    };
    const bool inside = keys.first + keys.count <= block.keys;
    if (engine_.store_sums != nullptr && inside && rounds_only(at_.call, to)) {
      char* rows[kPackedDepth] = {};
      for (std::int64_t n = 0; n < keys.count; ++n) rows[n] = address(n);
      return engine_.store_sums(sums, ld, factor, dim, rows);
    }
    float* rows = x_.f32.row_buffer;
    for (std::int64_t c = 0; c < width; c += kPackedCols) {
      engine_.transpose_sums(sums + c * ld, ld, rows + c, width);
    }
    for (std::int64_t n = 0; n < keys.count; ++n, rows += width) {
      std::fill(rows + dim, rows + width, 0.0F);
      StoreGradient(at_.call, to, address(n), rows, factor, dim, keys.first + n < block.keys);
    }
  }

  const KeyHead<float>& at_;
  const Bf16KeysScratch& x_;
  const Bf16Engine& engine_;
  std::int64_t qk_;
  std::int64_t vo_;
  StripKeys parts_[kBf16Parts];  // of the loaded strip
  std::int64_t unstored_ = 0;    // with ring_tiles: keys of the block before those that are stored
  RowPrefetch ahead_;
  BiasGradient<float> dbias_;
  bool dbias_of_rows_;  // dbias is dS rounded to bf16
};

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_BF16_BLOCK_INL_H_
