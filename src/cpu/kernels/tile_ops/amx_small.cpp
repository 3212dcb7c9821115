// The forward of small problems in bf16 with AMX: a task computes several (batch, key head) pairs,
// each at once. TDPBF16PS computes C += A B with A [16 x 32], B [32 x 16] in pairs of rows, C [16 x
// 16] in f32. All keys are one tile, so there is no online softmax.
//
// - S = Q K^T: A is 16 queries x 32 dims as they are in memory. B is K^T: 32-bit words of K,
//   transposed once per pair.
// - O = P V: a row of P, rounded, is a row of A. B is 32 keys x 16 columns of V, which VPUNPCKLWD
//   and VPUNPCKHWD interleave. The columns of O are put in order when they are stored.
//
// The kernels of larger problems copy q and o, and find ranges and addresses for each row. They
// take 3.5 times as long for 32 tokens (docs/kernels/cpu_small.md).
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/small_pairs.hpp"
#include "cpu/kernels/tile_ops/amx_tiles.hpp"
#include "cpu/kernels/tile_ops/bf16_exp2_avx512.hpp"

#if HWY_ARCH_X86_64 && defined(__linux__)

HWY_PUSH_ATTRIBUTES(ATTN_AMX_BF16)
namespace attn::cpu {
namespace {

using amx::AddProduct;
using amx::Clear;
using amx::Load;
using amx::Store;
using avx512::Larger;
using avx512::ReduceRows;
using avx512::Sum;

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kTileBytes = 64;  // of a row of a tile
constexpr std::int64_t kWords = 16;      // 32-bit words of a row of a tile
constexpr std::int64_t kTileWords = kBf16Rows * kWords;
// Keys of a tile of P and of V, dims of a tile of Q and of two tiles of V.
constexpr std::int64_t kStep = 32;

constexpr amx::TileConfig kTiles;
void Begin() {
  amx::Configure(kTiles);
}
void End() {
  _tile_release();
}

// Rows [0, count) of one head. `stride`: bytes between rows.
struct HeadRows {
  const char* first;
  std::int64_t stride, count, dim;
};

HWY_INLINE __mmask32 FirstOf32(std::int64_t count) {
  return count >= kStep ? ~__mmask32{0} : (__mmask32{1} << std::max<std::int64_t>(count, 0)) - 1;
}

// Elements [c, c + 32) of row r. Zeros past the last row and element: memory there may hold a NaN,
// and 0 * NaN is NaN.
HWY_INLINE __m512i LoadPart(const HeadRows& rows, std::int64_t r, std::int64_t c) {
  if (r >= rows.count) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(FirstOf32(rows.dim - c), rows.first + r * rows.stride + 2 * c);
}

// Address and stride of elements [c, c + 32) of rows [r, r + 16): in place, or in `copy` if some of
// them do not exist.
struct Block {
  const char* first;
  std::int64_t stride;
};
HWY_INLINE Block FindBlock(const HeadRows& rows, std::int64_t r, std::int64_t c, char* copy) {
  if (r + kBf16Rows <= rows.count && c + kStep <= rows.dim) {
    return {rows.first + r * rows.stride + 2 * c, rows.stride};
  }
  for (std::int64_t n = 0; n < kBf16Rows; ++n) {
    _mm512_store_si512(copy + n * kTileBytes, LoadPart(rows, r + n, c));
  }
  return {copy, kTileBytes};
}

// out[c][r] = 32-bit word c of row r, for 16 x 16 words.
HWY_INLINE void TransposeWords(const Block& from, std::uint32_t* out, SmallAhead& ahead) {
  for (std::int64_t c = 0; c < kWords; c += 4, out += 4 * kWords) {
    const char* at = from.first + 4 * c;
    __m512i rows[4];  // 128-bit part n of rows[m]: words [c, c + 4) of row 4 n + m
    for (int m = 0; m < 4; ++m, at += from.stride) {
      const auto part = [&](int n) HWY_ATTR {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 4 * n * from.stride));
      };
      __m512i row = _mm512_castsi128_si512(part(0));
      row = _mm512_inserti32x4(row, part(1), 1);
      row = _mm512_inserti32x4(row, part(2), 2);
      rows[m] = _mm512_inserti32x4(row, part(3), 3);
    }
    ahead.step();
    const __m512i low01 = _mm512_unpacklo_epi32(rows[0], rows[1]);
    const __m512i low23 = _mm512_unpacklo_epi32(rows[2], rows[3]);
    const __m512i high01 = _mm512_unpackhi_epi32(rows[0], rows[1]);
    const __m512i high23 = _mm512_unpackhi_epi32(rows[2], rows[3]);
    _mm512_store_si512(out, _mm512_unpacklo_epi64(low01, low23));
    _mm512_store_si512(out + kWords, _mm512_unpackhi_epi64(low01, low23));
    _mm512_store_si512(out + 2 * kWords, _mm512_unpacklo_epi64(high01, high23));
    _mm512_store_si512(out + 3 * kWords, _mm512_unpackhi_epi64(high01, high23));
  }
}
constexpr std::int64_t kStepsOfTranspose = 4;

// K^T in blocks [keys / 16][dims / 32] of 16 pairs of dims x 16 keys. Zeros past the last key.
void PackKeys(const HeadRows& k, const SmallBf16Scratch& x, SmallAhead& ahead) {
  std::uint32_t* out = x.k_t;
  for (std::int64_t j = 0; j < round_up(k.count, kStep); j += kBf16Rows) {
    for (std::int64_t c = 0; c < k.dim; c += kStep, out += kTileWords) {
      TransposeWords(FindBlock(k, j, c, x.copy), out, ahead);
    }
  }
}

// 32 rows of V from row j on as two tiles of 16 pairs of keys x 16 columns. The first has columns
// 0-3, 8-11, 16-19 and 24-27, the second the others. load(n): elements of row n of the 32.
template <class LoadRow>
HWY_INLINE void InterleaveRows(std::uint32_t* out, SmallAhead& ahead, const LoadRow& load) {
  for (std::int64_t n = 0; n < kBf16Rows; ++n) {
    if (n % 4 == 0) ahead.step();
    const __m512i even = load(2 * n);
    const __m512i odd = load(2 * n + 1);
    _mm512_store_si512(out + n * kWords, _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(out + kTileWords + n * kWords, _mm512_unpackhi_epi16(even, odd));
  }
}
// V in blocks [dims / 32][keys / 32] of InterleaveRows().
void PackValues(const HeadRows& v, const SmallBf16Scratch& x, SmallAhead& ahead) {
  std::uint32_t* out = x.v;
  for (std::int64_t c = 0; c < v.dim; c += kStep) {
    for (std::int64_t j = 0; j < v.count; j += kStep, out += 2 * kTileWords) {
      const char* first = v.first + j * v.stride + 2 * c;
      if (j + kStep <= v.count && c + kStep <= v.dim) {
        InterleaveRows(out, ahead, [&](std::int64_t n) HWY_ATTR {
          return _mm512_loadu_si512(first + n * v.stride);
        });
      } else {
        InterleaveRows(out, ahead, [&](std::int64_t n) HWY_ATTR { return LoadPart(v, j + n, c); });
      }
    }
  }
}
constexpr std::int64_t kStepsOfValues = 4;

// 16 queries of a head, and blocks [begin, end) of 32 keys, which all keys that they see lie in.
struct Strip {
  std::int64_t i, count;
  std::int64_t begin, end;
};
HWY_INLINE Strip FindStrip(const SmallRanges& ranges, std::int64_t i, std::int64_t len_q,
                           std::int64_t len_kv) {
  Strip strip{i, std::min(kBf16Rows, len_q - i), 0, divide_up(len_kv, kStep)};
  if (!ranges.hidden) return strip;
  std::int32_t begin = kMostSmallLen;
  std::int32_t end = 0;
  for (std::int64_t n = i; n < i + strip.count; ++n) {
    if (ranges.begin[n] >= ranges.end[n]) continue;
    begin = std::min(begin, ranges.begin[n]);
    end = std::max(end, ranges.end[n]);
  }
  strip.begin = begin / kStep;
  strip.end = std::max(divide_up(end, kStep), strip.begin);
  return strip;
}

// Products of 16 queries, in tiles 0 and 1, with 32 keys.
template <int kC>
HWY_INLINE void ScoresOfBlock(const std::uint32_t* k_t, bool second, float* s, std::int64_t ld) {
  const std::int64_t of_keys = second ? 2 * kTileWords : kTileWords;
  Clear<kC>();
  Load<2>(k_t, kTileBytes);
  AddProduct<kC, 0, 2>();
  if (second) {
    Load<3>(k_t + kTileWords, kTileBytes);
    AddProduct<kC, 1, 3>();
  }
  Clear<kC + 1>();
  Load<2>(k_t + of_keys, kTileBytes);
  AddProduct<kC + 1, 0, 2>();
  if (second) {
    Load<3>(k_t + of_keys + kTileWords, kTileBytes);
    AddProduct<kC + 1, 1, 3>();
  }
  Store<kC>(s, 4 * ld);
  Store<kC + 1>(s + kBf16Rows, 4 * ld);
}

// S [16 x keys] of a strip.
void MultiplyKeys(const HeadRows& q, const Strip& strip, const SmallBf16Scratch& x, float* s) {
  const bool second = q.dim > kStep;
  const Block first = FindBlock(q, strip.i, 0, x.copy);
  Load<0>(first.first, first.stride);
  if (second) {
    const Block other = FindBlock(q, strip.i, kStep, x.copy);
    Load<1>(other.first, other.stride);
  }
  const std::int64_t of_block = (second ? 4 : 2) * kTileWords;
  for (std::int64_t n = strip.begin; n < strip.end; ++n) {
    if (n % 2 == 0) {
      ScoresOfBlock<4>(x.k_t + n * of_block, second, s + n * kStep, x.ld);
    } else {
      ScoresOfBlock<6>(x.k_t + n * of_block, second, s + n * kStep, x.ld);
    }
  }
}

// O [16 x dims] of a strip, without the division by the row's sum.
void MultiplyValues(const Strip& strip, std::int64_t keys, std::int64_t dim,
                    const SmallBf16Scratch& x, float* o) {
  const bool second = dim > kStep;
  const std::int64_t of_dims = divide_up(keys, kStep) * 2 * kTileWords;
  Clear<4>();
  Clear<5>();
  if (second) {
    Clear<6>();
    Clear<7>();
  }
  for (std::int64_t n = strip.begin; n < strip.end; ++n) {
    const std::uint32_t* v = x.v + n * 2 * kTileWords;
    Load<0>(x.p + n * kStep, 2 * x.ld);
    Load<1>(v, kTileBytes);
    AddProduct<4, 0, 1>();
    Load<2>(v + kTileWords, kTileBytes);
    AddProduct<5, 0, 2>();
    if (!second) continue;
    Load<1>(v + of_dims, kTileBytes);
    AddProduct<6, 0, 1>();
    Load<2>(v + of_dims + kTileWords, kTileBytes);
    AddProduct<7, 0, 2>();
  }
  Store<4>(o, 4 * x.ld_o);
  Store<5>(o + kBf16Rows, 4 * x.ld_o);
  if (!second) return;
  Store<6>(o + kStep, 4 * x.ld_o);
  Store<7>(o + kStep + kBf16Rows, 4 * x.ld_o);
}

// The natural logarithm of positive normal numbers, and NaN of NaN: log(2^e m) with m in [0.75,
// 1.5), by the series of atanh((m - 1) / (m + 1)), which is 0.2 at most.
HWY_INLINE __m512 Log(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
  const __mmask16 below = _mm512_cmp_ps_mask(m, one, _CMP_LT_OQ);
  __m512 e = _mm512_getexp_ps(x);
  e = _mm512_mask_add_ps(e, below, e, one);
  const __m512 t = _mm512_div_ps(_mm512_sub_ps(m, one), _mm512_add_ps(m, one));
  const __m512 square = _mm512_mul_ps(t, t);
  __m512 y = _mm512_set1_ps(2.0F / 9);
  y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(2.0F / 7));
  y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(2.0F / 5));
  y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(2.0F / 3));
  y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(2.0F));
  return _mm512_fmadd_ps(e, _mm512_set1_ps(0.69314718F), _mm512_mul_ps(y, t));
}

// Results of the softmax of 16 queries.
struct alignas(64) RowState {
  float inverse[kBf16Rows];  // 1 / sum, 0 if no key is visible
  float lse[kBf16Rows];
};

// The keys of a block that a query sees, as bits.
HWY_INLINE std::uint32_t SeenKeys(const SmallRanges& ranges, std::int64_t i, std::int64_t block) {
  const auto bits_below = [&](std::int64_t key) HWY_ATTR {
    return (std::uint64_t{1} << std::clamp<std::int64_t>(key - block * kStep, 0, kStep)) - 1;
  };
  return static_cast<std::uint32_t>(bits_below(ranges.end[i]) & ~bits_below(ranges.begin[i]));
}

// P = exp(scale s - maximum), rounded to bf16. kOne: the strip has one block of keys.
template <bool kHidden, bool kOne>
HWY_NOINLINE void Softmax(const Strip& strip, const SmallRanges& ranges, float scale,
                          const SmallBf16Scratch& x, const float* s, RowState& out,
                          SmallAhead& ahead) {
  constexpr std::uint32_t kIfAll = ~std::uint32_t{0};
  const std::int64_t end = kOne ? strip.begin + 1 : strip.end;
  __m512 rows[kBf16Rows];
  const __m512 nothing = _mm512_set1_ps(kNothing);
  HWY_UNROLL(16)
  for (int r = 0; r < kBf16Rows; ++r) {
    rows[r] = nothing;
    for (std::int64_t n = strip.begin; n < end; ++n) {
      const std::uint32_t seen = kHidden ? SeenKeys(ranges, strip.i + r, n) : kIfAll;
      const float* at = s + r * x.ld + n * kStep;
      const auto low = static_cast<__mmask16>(seen);
      const auto high = static_cast<__mmask16>(seen >> 16);
      rows[r] = _mm512_mask_max_ps(rows[r], low, rows[r], _mm512_load_ps(at));
      rows[r] = _mm512_mask_max_ps(rows[r], high, rows[r], _mm512_load_ps(at + 16));
    }
  }
  const __m512 largest = ReduceRows<Larger>(rows);
  // If nothing is visible, the shift is 0: exp(-inf - 0) = 0.
  const __mmask16 some = _mm512_cmp_ps_mask(largest, nothing, _CMP_NEQ_UQ);
  const __m512 shift = _mm512_maskz_mul_ps(some, largest, _mm512_set1_ps(scale));
  const __m512 by = _mm512_set1_ps(scale * avx512::kLog2E);
  alignas(64) float minus[kBf16Rows];
  _mm512_store_ps(minus,
                  _mm512_maskz_mul_ps(some, largest, _mm512_set1_ps(-scale * avx512::kLog2E)));
  HWY_UNROLL(16)
  for (int r = 0; r < kBf16Rows; ++r) {
    if (r % 2 == 0) ahead.step();
    const __m512 of_row = _mm512_set1_ps(minus[r]);
    rows[r] = _mm512_setzero_ps();
    for (std::int64_t n = strip.begin; n < end; ++n) {
      const std::uint32_t seen = kHidden ? SeenKeys(ranges, strip.i + r, n) : kIfAll;
      const float* at = s + r * x.ld + n * kStep;
      const __m512 low = avx512::Exp2<kHidden>(_mm512_fmadd_ps(_mm512_load_ps(at), by, of_row),
                                               static_cast<__mmask16>(seen));
      const __m512 high = avx512::Exp2<kHidden>(
          _mm512_fmadd_ps(_mm512_load_ps(at + 16), by, of_row), static_cast<__mmask16>(seen >> 16));
      rows[r] = _mm512_add_ps(rows[r], _mm512_add_ps(low, high));
      _mm512_store_si512(x.p + r * x.ld + n * kStep,
                         reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }
  const __m512 sum = ReduceRows<Sum>(rows);
  const __mmask16 none = _mm512_cmp_ps_mask(sum, _mm512_setzero_ps(), _CMP_EQ_OQ);
  const auto any = static_cast<__mmask16>(~none);
  _mm512_store_ps(out.inverse, _mm512_maskz_div_ps(any, _mm512_set1_ps(1.0F), sum));
  _mm512_store_ps(out.lse, _mm512_mask_add_ps(nothing, any, shift, Log(sum)));
}
constexpr std::int64_t kStepsOfSoftmax = 8;

// Scores of a scale that is not positive: the largest product is not that of the largest score.
void ScaleScores(const Strip& strip, float scale, const SmallBf16Scratch& x, float* s) {
  for (std::int64_t r = 0; r < kBf16Rows; ++r) {
    for (std::int64_t j = strip.begin * kStep; j < strip.end * kStep; j += 16) {
      float* at = s + r * x.ld + j;
      _mm512_store_ps(at, _mm512_mul_ps(_mm512_load_ps(at), _mm512_set1_ps(scale)));
    }
  }
}

// Rounds and stores the rows of a strip. `o`: row 0 in the caller's memory.
void StoreRows(const Strip& strip, const HeadRows& o, const float* from, std::int64_t ld,
               const float* inverse, SmallAhead& ahead) {
  const __m512i order = _mm512_set_epi16(31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9,
                                         8, 23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  char* to = const_cast<char*>(o.first) + strip.i * o.stride;
  for (std::int64_t r = 0; r < strip.count; ++r, to += o.stride, from += ld) {
    if (r % 8 == 0) ahead.step();
    const __m512 factor = _mm512_set1_ps(inverse[r]);
    for (std::int64_t c = 0; c < o.dim; c += kStep) {
      const __m512 low = _mm512_mul_ps(_mm512_load_ps(from + c), factor);
      const __m512 high = _mm512_mul_ps(_mm512_load_ps(from + c + 16), factor);
      const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      _mm512_mask_storeu_epi16(to + 2 * c, FirstOf32(o.dim - c),
                               _mm512_permutexvar_epi16(order, rounded));
    }
  }
}
constexpr std::int64_t kStepsOfStore = 2;

void StoreLse(const Call& call, const Entry& entry, std::int64_t head, const Strip& strip,
              const float* lse) {
  char* to = stat_address(call.lse, entry.b, entry.first_q, strip.i, head);
  if (call.lse.stride_row == sizeof(float)) {
    const auto exist = static_cast<__mmask16>((1U << strip.count) - 1);
    return _mm512_mask_storeu_ps(to, exist, _mm512_load_ps(lse));
  }
  for (std::int64_t r = 0; r < strip.count; ++r) {
    *reinterpret_cast<float*>(to + r * call.lse.stride_row) = lse[r];
  }
}

// Writes o = 0 and lse = -inf of query i.
void StoreEmpty(const Call& call, const Entry& entry, std::int64_t head, std::int64_t i) {
  char* o = row_address(call, call.o, entry.b, entry.first_q, i, head);
  std::fill_n(reinterpret_cast<Bf16Bits*>(o), call.problem.dim_vo, Bf16Bits{0});
  if (!call.lse.given()) return;
  *reinterpret_cast<float*>(stat_address(call.lse, entry.b, entry.first_q, i, head)) = kNothing;
}

HeadRows QueryRows(const Call& call, const StridedTensor& rows, const Entry& entry,
                   std::int64_t head, std::int64_t dim) {
  return {row_address(call, rows, entry.b, entry.first_q, 0, head), rows.stride_row, entry.len_q,
          dim};
}
HeadRows KeyRows(const Call& call, const StridedTensor& rows, const Entry& entry, std::int64_t head,
                 std::int64_t dim) {
  return {row_address(call, rows, entry.b, entry.first_kv, 0, head), rows.stride_row, entry.len_kv,
          dim};
}

// All keys of a sequence, packed, against one query head. AMX computes the next strip's scores and
// this strip's o while vectors are exponentiated and stored, so o is stored one strip later.
void ForwardHead(const Call& call, const Entry& entry, const SmallRanges& ranges, std::int64_t head,
                 const SmallBf16Scratch& x, SmallAhead& ahead) {
  const Problem& p = call.problem;
  const HeadRows q = QueryRows(call, call.q, entry, head, p.dim_qk);
  const HeadRows o = QueryRows(call, call.o, entry, head, p.dim_vo);
  const bool hidden = ranges.hidden || entry.len_kv % kStep != 0;
  auto scale = static_cast<float>(call.numbers.scale);
  const bool scaled = !(scale > 0.0F);
  if (scaled) scale = 1.0F;
  RowState states[2];
  Strip strip = FindStrip(ranges, 0, entry.len_q, entry.len_kv);
  Strip before{0, 0, 0, 0};
  MultiplyKeys(q, strip, x, x.s[0]);
  for (int turn = 0; strip.count > 0; turn ^= 1) {
    Strip next{strip.i + kBf16Rows, 0, 0, 0};
    if (next.i < entry.len_q) {
      next = FindStrip(ranges, next.i, entry.len_q, entry.len_kv);
      MultiplyKeys(q, next, x, x.s[turn ^ 1]);
    }
    if (scaled) ScaleScores(strip, static_cast<float>(call.numbers.scale), x, x.s[turn]);
    RowState& state = states[turn];
    const bool one = strip.end == strip.begin + 1;
    const auto softmax = hidden ? (one ? Softmax<true, true> : Softmax<true, false>)
                                : (one ? Softmax<false, true> : Softmax<false, false>);
    softmax(strip, ranges, scale, x, x.s[turn], state, ahead);
    MultiplyValues(strip, entry.len_kv, p.dim_vo, x, x.o[turn]);
    if (call.lse.given()) StoreLse(call, entry, head, strip, state.lse);
    StoreRows(before, o, x.o[turn ^ 1], x.ld_o, states[turn ^ 1].inverse, ahead);
    before = strip;
    strip = next;
    if (strip.count == 0) StoreRows(before, o, x.o[turn], x.ld_o, state.inverse, ahead);
  }
}

void ForwardPair(const Call& call, const Entry& entry, const SmallRanges& ranges,
                 std::int64_t head_kv, const SmallBf16Scratch& x, SmallAhead& ahead) {
  const Problem& p = call.problem;
  const std::int64_t heads = call.numbers.heads_per_kv;
  if (entry.len_kv > 0 && entry.len_q > 0) {
    PackKeys(KeyRows(call, call.k, entry, head_kv, p.dim_qk), x, ahead);
    PackValues(KeyRows(call, call.v, entry, head_kv, p.dim_vo), x, ahead);
  }
  for (std::int64_t head = head_kv * heads; head < (head_kv + 1) * heads; ++head) {
    if (entry.len_kv > 0 && entry.len_q > 0) ForwardHead(call, entry, ranges, head, x, ahead);
    // Values that are not finite reach rows that see no key, as 0 * inf.
    for (std::int64_t i = 0; ranges.empty && i < entry.len_q; ++i) {
      if (ranges.begin[i] >= ranges.end[i]) StoreEmpty(call, entry, head, i);
    }
    for (std::int64_t i = entry.len_q; i < entry.rows_q; ++i) StoreEmpty(call, entry, head, i);
  }
}

// Calls of SmallAhead::step() for a pair of the largest lengths.
std::int64_t StepsOfPair(const Call& call) {
  const Problem& p = call.problem;
  const std::int64_t blocks = divide_up(p.len_kv, kStep);
  return blocks * (2 * kStepsOfTranspose * divide_up(p.dim_qk, kStep) +
                   kStepsOfValues * divide_up(p.dim_vo, kStep)) +
         call.numbers.heads_per_kv * divide_up(p.len_q, kBf16Rows) *
             (kStepsOfSoftmax + kStepsOfStore);
}

}  // namespace
}  // namespace attn::cpu
HWY_POP_ATTRIBUTES

namespace attn::cpu {
namespace {

void SmallForwardBf16Task(const Call& call, const Config& config, const ForwardShared<float>&,
                          char* memory, std::int64_t task) {
  Arena arena(memory);
  const SmallBf16Scratch x = make_small_bf16_scratch(arena, call.problem);
  const std::int64_t steps = StepsOfPair(call);
  const auto add = [&](SmallAhead& ahead, const Entry& entry, std::int64_t head,
                       std::int64_t heads) {
    AddForwardAhead(call, entry, head, heads, ahead);
    ahead.spread(steps * heads);
  };
  Begin();
  EachSmallPair(call, config, task, add,
                [&](const Entry& entry, const SmallRanges& ranges, std::int64_t head,
                    SmallAhead& ahead) { ForwardPair(call, entry, ranges, head, x, ahead); });
  End();
}

}  // namespace

ForwardKernels<float>::Task small_forward_bf16_kernel() {
  return SmallForwardBf16Task;
}

}  // namespace attn::cpu

#else

namespace attn::cpu {
ForwardKernels<float>::Task small_forward_bf16_kernel() {
  return nullptr;
}
}  // namespace attn::cpu

#endif
