// A decode with VDPBF16PS (bf16_decode.hpp).
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "cpu/kernels/tile_ops/bf16_columns_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu {
namespace {

constexpr int kRows = 4;  // at a time
constexpr int kKeys = 4;

HWY_INLINE __m512i Load(const void* from) {
  return _mm512_loadu_si512(from);
}
HWY_INLINE __m512 Dot(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

HWY_INLINE __m512 SwapMiddleParts(__m512 x) {
  return _mm512_shuffle_f32x4(x, x, 0xD8);
}

// Lane l of each 128-bit part: a sum of elements of sums[l].
HWY_INLINE __m512 AddWithinParts(const __m512 (&sums)[kKeys]) {
  const __m512 low =
      _mm512_add_ps(_mm512_unpacklo_ps(sums[0], sums[1]), _mm512_unpackhi_ps(sums[0], sums[1]));
  const __m512 high =
      _mm512_add_ps(_mm512_unpacklo_ps(sums[2], sums[3]), _mm512_unpackhi_ps(sums[2], sums[3]));
  const __m512d a = _mm512_castps_pd(low);
  const __m512d b = _mm512_castps_pd(high);
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
}
// 128-bit part r: the sum of the four parts of parts[r].
HWY_INLINE __m512 AddParts(const __m512 (&parts)[kRows]) {
  const __m512 low = _mm512_add_ps(_mm512_shuffle_f32x4(parts[0], parts[1], 0x44),
                                   _mm512_shuffle_f32x4(parts[0], parts[1], 0xEE));
  const __m512 high = _mm512_add_ps(_mm512_shuffle_f32x4(parts[2], parts[3], 0x44),
                                    _mm512_shuffle_f32x4(parts[2], parts[3], 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88),
                       _mm512_shuffle_f32x4(low, high, 0xDD));
}

// Scores of count rows and kKeys keys.
template <int count>
HWY_INLINE void DotBlock(const Bf16Scores& x, std::int64_t row, std::int64_t key) {
  __m512 sums[count][kKeys];
  for (auto& of_row : sums) {
    for (__m512& sum : of_row) sum = _mm512_setzero_ps();
  }
  const Bf16Bits* const q = x.q + row * x.dim;
  const char* const* const k = x.k + key;
  for (std::int64_t c = 0; c < x.dim; c += kPackedDepth) {
    __m512i query[count];
    for (int r = 0; r < count; ++r) query[r] = Load(q + r * x.dim + c);
    for (int n = 0; n < kKeys; ++n) {
      const __m512i elements = Load(k[n] + 2 * c);
      for (int r = 0; r < count; ++r) sums[r][n] = Dot(sums[r][n], query[r], elements);
    }
  }
  __m512 parts[kRows];
  for (int r = 0; r < kRows; ++r) parts[r] = AddWithinParts(sums[std::min(r, count - 1)]);
  const __m512 scores = AddParts(parts);
  float* const s = x.s + row * x.lds + key;
  _mm_storeu_ps(s, _mm512_castps512_ps128(scores));
  if constexpr (count > 1) _mm_storeu_ps(s + x.lds, _mm512_extractf32x4_ps(scores, 1));
  if constexpr (count > 2) _mm_storeu_ps(s + 2 * x.lds, _mm512_extractf32x4_ps(scores, 2));
  if constexpr (count > 3) _mm_storeu_ps(s + 3 * x.lds, _mm512_extractf32x4_ps(scores, 3));
}

// Keys whose probabilities are rounded together, in pairs: 32-bit words.
constexpr int kChunk = 16;
using RoundedP = std::uint32_t[kRows][8];

HWY_INLINE void RoundP(const float* p, std::int64_t ldp, int rows, std::int64_t keys,
                       RoundedP& to) {
  const auto mask = static_cast<__mmask16>((1U << keys) - 1);
  for (int r = 0; r < rows; ++r) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, p + r * ldp));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[r]), reinterpret_cast<__m256i>(rounded));
  }
}

// O += P V for `count` rows, up to kChunk keys and parts * 32 columns from c on. Two rows of V are
// interleaved within 128-bit parts, which is the order of the columns of o.
template <int count, int parts>
HWY_INLINE void ValuesBlock(const RoundedP& pairs, const char* const* v, std::int64_t keys,
                            std::int64_t c, float* o, std::int64_t ldo) {
  __m512 sums[count][2 * parts];
  for (int r = 0; r < count; ++r) {
    for (int n = 0; n < 2 * parts; ++n) sums[r][n] = _mm512_load_ps(o + r * ldo + c + 16 * n);
  }
  for (std::int64_t j = 0; j < keys; j += 2) {
    __m512i values[2 * parts];
    for (int n = 0; n < parts; ++n) {
      const __m512i even = Load(v[j] + 2 * (c + 32 * n));
      // No row of another key: it may hold NaN, and 0 * NaN is NaN.
      const __m512i odd = j + 1 < keys ? Load(v[j + 1] + 2 * (c + 32 * n)) : _mm512_setzero_si512();
      values[2 * n] = _mm512_unpacklo_epi16(even, odd);
      values[2 * n + 1] = _mm512_unpackhi_epi16(even, odd);
    }
    for (int r = 0; r < count; ++r) {
      const __m512i weights = _mm512_set1_epi32(static_cast<int>(pairs[r][j / 2]));
      for (int n = 0; n < 2 * parts; ++n) sums[r][n] = Dot(sums[r][n], weights, values[n]);
    }
  }
  for (int r = 0; r < count; ++r) {
    for (int n = 0; n < 2 * parts; ++n) _mm512_store_ps(o + r * ldo + c + 16 * n, sums[r][n]);
  }
}

// Columns [c, c + 32 parts) of all keys of a chunk.
template <int parts>
HWY_INLINE void ValuesColumns(const Bf16Values& x, const RoundedP* pairs, std::int64_t j,
                              std::int64_t keys, std::int64_t c) {
  const char* const* const v = x.v + j;
  for (std::int64_t r = 0; r < x.rows; r += kRows, ++pairs) {
    float* const o = x.o + r * x.ldo;
    switch (std::min<std::int64_t>(x.rows - r, kRows)) {
      case 4: ValuesBlock<4, parts>(*pairs, v, keys, c, o, x.ldo); break;
      case 3: ValuesBlock<3, parts>(*pairs, v, keys, c, o, x.ldo); break;
      case 2: ValuesBlock<2, parts>(*pairs, v, keys, c, o, x.ldo); break;
      default: ValuesBlock<1, parts>(*pairs, v, keys, c, o, x.ldo); break;
    }
  }
}

// With more rows, a vector holds a value of each of up to 16 rows (S^T, bf16_columns_avx512.hpp).
// Measured: docs/kernels/cpu_decode.md.
constexpr std::int64_t kColumnsAbove = 6;

HWY_INLINE __m512i Broadcast(const void* pair) {
  std::int32_t word;
  std::memcpy(&word, pair, sizeof(word));
  return _mm512_set1_epi32(word);
}

// Scores of 16 keys, 8 at a time. A step multiplies two dims of each key with those of all rows.
HWY_INLINE void DotTile(const Bf16Scores& x, std::int64_t j, avx512::TileOfS& s) {
  constexpr int kAtOnce = 8;
  for (int first = 0; first < avx512::kTileKeys; first += kAtOnce) {
    const char* const* const k = x.k + j + first;
    __m512 sums[kAtOnce];
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    for (std::int64_t c = 0; c < x.dim; c += 2) {
      const __m512i query = Load(x.q + c * kMostDecodeRows);
      for (int n = 0; n < kAtOnce; ++n) sums[n] = Dot(sums[n], query, Broadcast(k[n] + 2 * c));
    }
    for (int n = 0; n < kAtOnce; ++n) _mm512_store_ps(s[first + n], sums[n]);
  }
}

// O += P V for `keys` keys from key j on, 16 columns at a time: the first or the second half of
// those that an interleaving of two rows of V makes of 32. count: the sums that are computed, at
// least as many as x.rows.
template <int count, bool second_half>
HWY_INLINE void AddColumns(const Bf16Values& x, std::int64_t j, std::int64_t keys, std::int64_t c,
                           const avx512::PairsOfP* p) {
  float* const o = x.o + c + (second_half ? 16 : 0);
  __m512 sums[count];
  for (int r = 0; r < count; ++r) {
    sums[r] = r < x.rows ? _mm512_load_ps(o + r * x.ldo) : _mm512_setzero_ps();
  }
  for (std::int64_t first = 0; first < keys; first += avx512::kGroupKeys, ++p) {
    const char* const* const v = x.v + j + first;
    const bool none = first + avx512::kTileKeys == keys;
    for (std::int64_t n = 0; n < avx512::kTileKeys; ++n) {
      const __m512i a = Load(v[n] + 2 * c);
      const __m512i b = none ? _mm512_setzero_si512() : Load(v[avx512::kTileKeys + n] + 2 * c);
      const __m512i values =
          second_half ? _mm512_unpackhi_epi16(a, b) : _mm512_unpacklo_epi16(a, b);
      for (int r = 0; r < count; ++r) sums[r] = Dot(sums[r], values, Broadcast(&p->words[n][r]));
    }
  }
  for (int r = 0; r < count; ++r) {
    if (r < x.rows) _mm512_store_ps(o + r * x.ldo, sums[r]);
  }
}

template <int count>
void AddGroups(const Bf16Values& x, std::int64_t j, std::int64_t keys, const avx512::PairsOfP* p,
               const Bf16Ahead& ahead) {
  std::int64_t done = 0;  // keys reported to `ahead`, an even number
  for (std::int64_t c = 0; c < x.cols; c += kPackedDepth) {
    AddColumns<count, false>(x, j, keys, c, p);
    AddColumns<count, true>(x, j, keys, c, p);
    const std::int64_t due = keys * (c + kPackedDepth) / x.cols / 2 * 2;
    ahead.step(ahead.context, due - done);
    done = due;
  }
}

void Attend(const Bf16Attend& x, const Bf16Ahead& ahead) {
  avx512::Attend(
      x, ahead, [&](std::int64_t j, avx512::TileOfS& s) HWY_ATTR { DotTile(x.scores, j, s); },
      [&](std::int64_t j, std::int64_t keys, const avx512::PairsOfP* p) HWY_ATTR {
        if (x.values.rows <= 8) return AddGroups<8>(x.values, j, keys, p, ahead);
        if (x.values.rows <= 12) return AddGroups<12>(x.values, j, keys, p, ahead);
        AddGroups<16>(x.values, j, keys, p, ahead);
      });
}

void PackQueries(const Bf16Bits* q, std::int64_t rows, std::int64_t dim, Bf16Bits* to) {
  if (rows > kColumnsAbove) return avx512::PackQueries(q, rows, dim, to);
  std::memcpy(to, q, static_cast<std::size_t>(2 * rows * dim));
}

void DotRows(const Bf16Scores& x, const Bf16Ahead& ahead) {
  if (x.rows > kColumnsAbove) {
    return avx512::DotRows(x, ahead,
                           [&](std::int64_t j, avx512::TileOfS& s) HWY_ATTR { DotTile(x, j, s); });
  }
  static_assert(kKeysOfScores % kKeys == 0);
  for (std::int64_t j = 0; j < x.keys; j += kKeys) {
    std::int64_t r = 0;
    for (; r + kRows <= x.rows; r += kRows) DotBlock<4>(x, r, j);
    switch (x.rows - r) {
      case 3: DotBlock<3>(x, r, j); break;
      case 2: DotBlock<2>(x, r, j); break;
      case 1: DotBlock<1>(x, r, j); break;
      default: break;
    }
    ahead.step(ahead.context, kKeys);
  }
}

void AddValues(const Bf16Values& x, const Bf16Ahead& ahead) {
  RoundedP pairs[kMostDecodeRows / kRows];
  for (std::int64_t j = 0; j < x.keys; j += kChunk) {
    const std::int64_t keys = std::min<std::int64_t>(kChunk, x.keys - j);
    for (std::int64_t r = 0; r < x.rows; r += kRows) {
      const auto rows = static_cast<int>(std::min<std::int64_t>(kRows, x.rows - r));
      RoundP(x.p + r * x.ldp + j, x.ldp, rows, keys, pairs[r / kRows]);
    }
    std::int64_t c = 0;
    for (; c + 64 <= x.cols; c += 64) {
      ValuesColumns<2>(x, pairs, j, keys, c);
      if (c == 0) ahead.step(ahead.context, kChunk / 2);
    }
    if (c < x.cols) ValuesColumns<1>(x, pairs, j, keys, c);
    ahead.step(ahead.context, x.cols < 64 ? kChunk : kChunk / 2);
  }
}

void OrderValues(float* o, std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; c += 32) {
    const __m512 a = _mm512_load_ps(o + c);  // the first 4 columns of every 8
    const __m512 b = _mm512_load_ps(o + c + 16);
    _mm512_store_ps(o + c, SwapMiddleParts(_mm512_shuffle_f32x4(a, b, 0x44)));
    _mm512_store_ps(o + c + 16, SwapMiddleParts(_mm512_shuffle_f32x4(a, b, 0xEE)));
  }
}

}  // namespace

const Bf16Decode* bf16_dot_decode() {
  static const Bf16Decode decode{[](std::int64_t) {}, [] {},       PackQueries, DotRows,
                                 AddValues,           OrderValues, Attend,      kColumnsAbove};
  return bf16_dot_engine() != nullptr ? &decode : nullptr;
}

}  // namespace attn::cpu
HWY_POP_ATTRIBUTES

#else

namespace attn::cpu {
const Bf16Decode* bf16_dot_decode() {
  return nullptr;
}
}  // namespace attn::cpu

#endif
