// What decodes by AMX and by VDPBF16PS share if a call has many rows: S^T = K Q^T, which has a row
// for each key and a column for each query row. Maxima and sums of the softmax are then those of
// vectors, without reductions over lanes.
#pragma once

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "cpu/kernels/tile_ops/bf16_decode.hpp"
#include "cpu/kernels/tile_ops/bf16_exp2_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu::avx512 {

inline constexpr std::int64_t kTileKeys = 16;
static_assert(kKeysOfScores % kTileKeys == 0);
using TileOfS = float[kTileKeys][16];  // [key][row]

// Keys whose products with P are added to O together, in groups of 32.
inline constexpr std::int64_t kGroupKeys = 2 * kTileKeys;
inline constexpr std::int64_t kMostGroups = 2;
inline constexpr std::int64_t kMostKeys = kMostGroups * kGroupKeys;
// P of a group: words[n][row] is a pair in bf16, P of keys n and 16 + n.
struct alignas(64) PairsOfP {
  TileOfS words;
};

// Calls emit(r, row) for each row: lane j of it is from[j][r].
template <class Emit>
HWY_INLINE void Transpose(const TileOfS& from, std::int64_t rows, Emit&& emit) {
  for (std::int64_t r = 0; r < rows; r += 4) {
    // 128-bit part n of keys[m]: four rows of key 4 n + m.
    __m512 keys[4];
    for (int m = 0; m < 4; ++m) {
      __m512 key = _mm512_castps128_ps512(_mm_load_ps(from[m] + r));
      key = _mm512_insertf32x4(key, _mm_load_ps(from[4 + m] + r), 1);
      key = _mm512_insertf32x4(key, _mm_load_ps(from[8 + m] + r), 2);
      keys[m] = _mm512_insertf32x4(key, _mm_load_ps(from[12 + m] + r), 3);
    }
    const __m512d low01 = _mm512_castps_pd(_mm512_unpacklo_ps(keys[0], keys[1]));
    const __m512d low23 = _mm512_castps_pd(_mm512_unpacklo_ps(keys[2], keys[3]));
    const __m512d high01 = _mm512_castps_pd(_mm512_unpackhi_ps(keys[0], keys[1]));
    const __m512d high23 = _mm512_castps_pd(_mm512_unpackhi_ps(keys[2], keys[3]));
    const __m512d out[4] = {_mm512_unpacklo_pd(low01, low23), _mm512_unpackhi_pd(low01, low23),
                            _mm512_unpacklo_pd(high01, high23), _mm512_unpackhi_pd(high01, high23)};
    const std::int64_t some = std::min<std::int64_t>(rows - r, 4);
    for (std::int64_t n = 0; n < some; ++n) emit(r + n, _mm512_castpd_ps(out[n]));
  }
}

// Pairs of bf16 from two vectors of f32.
HWY_INLINE __m512i RoundToPairs(__m512 first, __m512 second) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i high = _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16);
  const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  return _mm512_permutexvar_epi16(_mm512_or_si512(low, high), rounded);
}

// Takes the maximum of a tile into the rows' state. Returns what is subtracted from their scores.
HWY_INLINE __m512 UpdateMax(const Bf16Attend& x, __m512 tile_max, __m512& row_sum) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::int64_t rows = x.scores.rows;
  const auto exist = static_cast<__mmask16>((1U << rows) - 1);
  const __m512 before = _mm512_maskz_loadu_ps(exist, x.row_max);
  const __mmask16 grows = _mm512_mask_cmp_ps_mask(exist, tile_max, before, _CMP_GT_OQ);
  const __m512 largest = _mm512_mask_mov_ps(before, grows, tile_max);
  // If nothing is visible yet, the shift is 0: exp(-inf - 0) = 0, and a NaN stays NaN.
  const __mmask16 seen = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(-kInfinity), _CMP_NEQ_UQ);
  const __m512 shift = _mm512_maskz_mov_ps(seen, largest);
  if (grows == 0) return shift;
  _mm512_mask_storeu_ps(x.row_max, exist, largest);
  const __m512 rescale = Exp2(_mm512_mul_ps(_mm512_sub_ps(before, shift), _mm512_set1_ps(kLog2E)));
  row_sum = _mm512_mask_mul_ps(row_sum, grows, row_sum, rescale);
  alignas(64) float rescales[16];
  _mm512_store_ps(rescales, rescale);
  for (unsigned left = grows; left != 0; left &= left - 1) {
    const int r = std::countr_zero(left);
    const __m512 by = _mm512_set1_ps(rescales[r]);
    float* o = x.values.o + r * x.values.ldo;
    for (std::int64_t c = 0; c < x.values.cols; c += 16) {
      _mm512_store_ps(o + c, _mm512_mul_ps(_mm512_load_ps(o + c), by));
    }
  }
  return shift;
}

// Blocks of 32 dims: [16 pairs of dims][16 rows]. Rows that do not exist are zeros.
inline void PackQueries(const Bf16Bits* q, std::int64_t rows, std::int64_t dim, Bf16Bits* to) {
  const auto* from = reinterpret_cast<const float*>(q);  // pairs
  auto* out = reinterpret_cast<float*>(to);
  for (std::int64_t c = 0; c < dim / 2; c += 16) {
    alignas(64) TileOfS block = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      _mm512_store_ps(block[r], _mm512_loadu_ps(from + r * dim / 2 + c));
    }
    Transpose(block, 16, [&](std::int64_t pair, __m512 of_rows) HWY_ATTR {
      _mm512_storeu_ps(out + (c + pair) * 16, of_rows);
    });
  }
}

// S for calls of Bf16Decode::dot_rows. dot(j, s) computes S^T of 16 keys from key j on.
template <class Dot>
HWY_INLINE void DotRows(const Bf16Scores& x, const Bf16Ahead& ahead, const Dot& dot) {
  alignas(64) TileOfS scores[2];
  for (std::int64_t j = 0; j < x.keys; j += kTileKeys) {
    TileOfS& of_tile = scores[j / kTileKeys % 2];
    dot(j, of_tile);
    ahead.step(ahead.context, kTileKeys);
    Transpose(of_tile, x.rows, [&](std::int64_t r, __m512 row) HWY_ATTR {
      _mm512_storeu_ps(x.s + r * x.lds + j, row);
    });
  }
}

// P of two tiles of scores: exponent(s) is the exponent of 2. `none`: the second tile does not
// exist. Adds P to the sums of the rows.
template <class Exponent>
HWY_INLINE void Exponentiate(const TileOfS* s, bool none, const Exponent& exponent, __m512& row_sum,
                             PairsOfP& to) {
  __m512 second_sum = _mm512_setzero_ps();
  for (std::int64_t j = 0; j < kTileKeys; ++j) {
    const __m512 first = Exp2(exponent(_mm512_load_ps(s[0][j])));
    __m512 second = _mm512_setzero_ps();
    if (!none) second = Exp2(exponent(_mm512_load_ps(s[1][j])));
    row_sum = _mm512_add_ps(row_sum, first);
    second_sum = _mm512_add_ps(second_sum, second);
    _mm512_store_si512(to.words[j], RoundToPairs(first, second));
  }
  row_sum = _mm512_add_ps(row_sum, second_sum);
}

// For Bf16Decode::attend. dot as above; add(j, keys, p) adds P V of `keys` keys from key j on to O.
template <class Dot, class Add>
HWY_INLINE void Attend(const Bf16Attend& x, const Bf16Ahead& ahead, const Dot& dot,
                       const Add& add) {
  alignas(64) TileOfS s[kMostKeys / kTileKeys];
  PairsOfP p[kMostGroups];
  const auto exist = static_cast<__mmask16>((1U << x.scores.rows) - 1);
  __m512 row_sum = _mm512_maskz_loadu_ps(exist, x.row_sum);
  for (std::int64_t first = 0; first < x.scores.keys; first += kMostKeys) {
    const std::int64_t keys = std::min(kMostKeys, x.scores.keys - first);
    const std::int64_t tiles = keys / kTileKeys;
    __m512 most = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (std::int64_t n = 0; n < tiles; ++n) {
      dot(first + n * kTileKeys, s[n]);
      ahead.step(ahead.context, kTileKeys);
    }
    for (std::int64_t n = 0; n < tiles; ++n) {
      for (const auto& key : s[n]) most = _mm512_max_ps(most, _mm512_load_ps(key));
    }
    const __m512 shift = UpdateMax(x, _mm512_mul_ps(most, _mm512_set1_ps(x.scale)), row_sum);
    const __m512 by = _mm512_set1_ps(x.scale * kLog2E);
    const __m512 minus = _mm512_mul_ps(shift, _mm512_set1_ps(-kLog2E));
    const auto exponent = [&](__m512 score) HWY_ATTR { return _mm512_fmadd_ps(score, by, minus); };
    for (std::int64_t n = 0; n < tiles; n += 2) {
      Exponentiate(s + n, n + 1 == tiles, exponent, row_sum, p[n / 2]);
    }
    add(first, keys, p);
  }
  _mm512_mask_storeu_ps(x.row_sum, exist, row_sum);
}

}  // namespace attn::cpu::avx512
HWY_POP_ATTRIBUTES
#endif
