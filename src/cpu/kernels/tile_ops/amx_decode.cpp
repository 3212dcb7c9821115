// A decode with AMX (bf16_decode.hpp). TDPBF16PS computes C += A B with A [16 x 32], B [32 x 16] in
// pairs of rows, C [16 x 16] in f32.
//
// - S^T = K Q^T: a tile of A is 16 keys x 32 dims of the cache as they are in memory. B is Q^T,
//   packed once per task.
// - O += P V: a tile of B is 16 keys x 32 columns of the cache as they are in memory. TDPBF16PS
//   takes each 32-bit word of B for a pair of rows, but here it is a pair of columns of one key. So
//   the pairs of A are (P, 0), which gives the even columns of O, and (0, P) for the odd ones. That
//   takes twice as many products as interleaved rows of V, and no time to interleave them.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "cpu/kernels/tile_ops/amx_tiles.hpp"
#include "cpu/kernels/tile_ops/bf16_decode.hpp"
#include "cpu/kernels/tile_ops/bf16_exp2_avx512.hpp"

#if HWY_ARCH_X86_64 && defined(__linux__)

HWY_PUSH_ATTRIBUTES(ATTN_AMX_BF16)
namespace attn::cpu {
namespace {

using amx::AddProduct;
using amx::Clear;
using amx::Load;
using amx::Store;

constexpr std::int64_t kTileKeys = 16;
constexpr std::int64_t kAttendAbove = 8;  // measured: docs/kernels/cpu_decode.md
constexpr std::int64_t kTileBytes = 64;   // of a row of a tile

// Tiles. Those of P and O have as many rows as the task, which saves time if they are few.
constexpr int kEvenO = 0;
constexpr int kOddO = 1;
constexpr int kEvenP = 2;
constexpr int kOddP = 3;
constexpr int kTilesOfRows = 4;  // the first four
constexpr int kCache = 4;        // K or V
constexpr int kQuery = 5;
constexpr int kScores = 6;

void Begin(std::int64_t rows) {
  amx::TileConfig config;
  std::fill_n(config.rows, kTilesOfRows, static_cast<std::uint8_t>(rows));
  amx::Configure(config);
}
void End() {
  _tile_release();
}

// 16 rows of a cache.
struct CacheRows {
  const char* const* rows;
  std::int64_t count;   // the others are zeros
  std::int64_t stride;  // of TILELOADD
  bool in_place;        // all 16 exist and are `stride` bytes apart
};
HWY_INLINE CacheRows FindRows(const char* const* rows, std::int64_t count) {
  if (count < kTileKeys) return {rows, count, 0, false};
  const std::int64_t stride = rows[1] - rows[0];
  const __m512i step = _mm512_set1_epi64(stride);
  const auto distance = [&](int n) HWY_ATTR {
    return _mm512_sub_epi64(_mm512_loadu_si512(rows + n + 1), _mm512_loadu_si512(rows + n));
  };
  const auto differ = static_cast<unsigned>(_mm512_cmpneq_epi64_mask(distance(0), step)) |
                      static_cast<unsigned>(_mm512_cmpneq_epi64_mask(distance(7), step));
  return {rows, count, stride, differ == 0};
}

// Loads 64 bytes of each row, from byte `at` on.
template <int kTile>
HWY_INLINE void LoadRows(const CacheRows& x, std::int64_t at) {
  if (x.in_place) return Load<kTile>(x.rows[0] + at, x.stride);
  alignas(64) char copy[kTileKeys * kTileBytes];
  for (std::int64_t n = 0; n < kTileKeys; ++n) {
    // No row past `count`: V may hold NaN there, and 0 * NaN is NaN.
    const __m512i row = n < x.count ? _mm512_loadu_si512(x.rows[n] + at) : _mm512_setzero_si512();
    _mm512_store_si512(copy + n * kTileBytes, row);
  }
  Load<kTile>(copy, kTileBytes);
}

// Calls emit(r, row) for each row: lane j of it is from[j][r].
template <class Emit>
HWY_INLINE void Transpose(const float (&from)[kTileKeys][16], std::int64_t rows, Emit&& emit) {
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

// Scores of 16 keys: s[key][row].
HWY_INLINE void DotTile(const Bf16Scores& x, std::int64_t j, float (&s)[kTileKeys][16]) {
  const CacheRows k = FindRows(x.k + j, kTileKeys);
  Clear<kScores>();
  for (std::int64_t c = 0; c < x.dim; c += kPackedDepth) {
    LoadRows<kCache>(k, 2 * c);
    Load<kQuery>(x.q + c * kMostDecodeRows, kTileBytes);
    AddProduct<kScores, kCache, kQuery>();
  }
  Store<kScores>(s, kTileBytes);
}

void DotRows(const Bf16Scores& x, const Bf16Ahead& ahead) {
  alignas(64) float scores[2][kTileKeys][16];
  for (std::int64_t j = 0; j < x.keys; j += kTileKeys) {
    auto& of_tile = scores[j / kTileKeys % 2];
    DotTile(x, j, of_tile);
    ahead.step(ahead.context, kTileKeys);
    Transpose(of_tile, x.rows, [&](std::int64_t r, __m512 row) HWY_ATTR {
      _mm512_storeu_ps(x.s + r * x.lds + j, row);
    });
  }
}

// Keys whose products with P are added to O together, in tiles of 16.
constexpr std::int64_t kMostTiles = 4;
constexpr std::int64_t kMostKeys = kMostTiles * kTileKeys;
// P as pairs: (P, 0) and (0, P).
struct alignas(64) PairsOfP {
  std::uint32_t even[kMostDecodeRows][kTileKeys];
  std::uint32_t odd[kMostDecodeRows][kTileKeys];
};

HWY_INLINE void RoundP(const float* p, std::int64_t ldp, std::int64_t rows, std::int64_t keys,
                       PairsOfP& to) {
  const auto exist = static_cast<__mmask16>((1U << keys) - 1);
  for (std::int64_t r = 0; r < rows; ++r) {
    const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(exist, p + r * ldp));
    const __m512i words = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(rounded));
    _mm512_store_si512(to.even[r], words);
    _mm512_store_si512(to.odd[r], _mm512_slli_epi32(words, 16));
  }
}

// Columns [c, c + 32) of O, in `tiles` tiles of keys.
HWY_INLINE void AddColumns(const PairsOfP* p, const CacheRows* v, std::int64_t tiles,
                           std::int64_t c, float* o, std::int64_t ldo) {
  const std::int64_t stride = 4 * ldo;
  Load<kEvenO>(o + c, stride);
  Load<kOddO>(o + c + 16, stride);
  for (std::int64_t n = 0; n < tiles; ++n) {
    Load<kEvenP>(p[n].even, kTileBytes);
    Load<kOddP>(p[n].odd, kTileBytes);
    LoadRows<kCache>(v[n], 2 * c);
    AddProduct<kEvenO, kEvenP, kCache>();
    AddProduct<kOddO, kOddP, kCache>();
  }
  Store<kEvenO>(o + c, stride);
  Store<kOddO>(o + c + 16, stride);
}

// O += P V for the `tiles` tiles of keys from key j on.
HWY_INLINE void AddTiles(const Bf16Values& x, std::int64_t j, const PairsOfP* p, std::int64_t tiles,
                         const Bf16Ahead& ahead) {
  CacheRows v[kMostTiles];
  for (std::int64_t n = 0; n < tiles; ++n) {
    const std::int64_t first = j + n * kTileKeys;
    v[n] = FindRows(x.v + first, std::min(kTileKeys, x.keys - first));
  }
  std::int64_t done = 0;  // keys reported to `ahead`, an even number
  for (std::int64_t c = 0; c < x.cols; c += kPackedDepth) {
    AddColumns(p, v, tiles, c, x.o, x.ldo);
    const std::int64_t due = tiles * kTileKeys * (c + kPackedDepth) / x.cols / 2 * 2;
    ahead.step(ahead.context, due - done);
    done = due;
  }
}

void AddValues(const Bf16Values& x, const Bf16Ahead& ahead) {
  PairsOfP p[kMostTiles];
  for (std::int64_t j = 0; j < x.keys; j += kMostKeys) {
    const std::int64_t keys = std::min(kMostKeys, x.keys - j);
    std::int64_t tiles = 0;
    for (std::int64_t n = 0; n < keys; n += kTileKeys, ++tiles) {
      RoundP(x.p + j + n, x.ldp, x.rows, std::min(kTileKeys, keys - n), p[tiles]);
    }
    AddTiles(x, j, p, tiles, ahead);
  }
}

// P of two tiles of scores: exponent(s) is the exponent of 2. `none`: the second tile does not
// exist. Adds P to the sums of the rows.
template <class Exponent>
HWY_INLINE void Exponentiate(const float (*s)[kTileKeys][16], bool none, std::int64_t rows,
                             const Exponent& exponent, __m512& row_sum, PairsOfP* to) {
  // Interleaves the 16-bit elements of the halves.
  const __m512i interleave = _mm512_or_si512(
      _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
      _mm512_slli_epi32(
          _mm512_setr_epi32(16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31), 16));
  alignas(64) float pairs[kTileKeys][16];  // [key][row]: bf16 P of the first and the second tile
  __m512 second_sum = _mm512_setzero_ps();
  for (std::int64_t j = 0; j < kTileKeys; ++j) {
    const __m512 first = avx512::Exp2(exponent(_mm512_load_ps(s[0][j])));
    __m512 second = _mm512_setzero_ps();
    if (!none) second = avx512::Exp2(exponent(_mm512_load_ps(s[1][j])));
    row_sum = _mm512_add_ps(row_sum, first);
    second_sum = _mm512_add_ps(second_sum, second);
    const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
    _mm512_store_si512(pairs[j], _mm512_permutexvar_epi16(interleave, rounded));
  }
  row_sum = _mm512_add_ps(row_sum, second_sum);
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  Transpose(pairs, rows, [&](std::int64_t r, __m512 row) HWY_ATTR {
    const __m512i words = _mm512_castps_si512(row);
    _mm512_store_si512(to[0].even[r], _mm512_andnot_si512(high, words));
    _mm512_store_si512(to[0].odd[r], _mm512_slli_epi32(words, 16));
    if (none) return;
    _mm512_store_si512(to[1].even[r], _mm512_srli_epi32(words, 16));
    _mm512_store_si512(to[1].odd[r], _mm512_and_si512(high, words));
  });
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
  const __m512 rescale =
      avx512::Exp2(_mm512_mul_ps(_mm512_sub_ps(before, shift), _mm512_set1_ps(avx512::kLog2E)));
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

// S^T has a row for each key and a column for each query row. So maxima and sums are those of
// vectors, without a reduction over lanes.
void Attend(const Bf16Attend& x, const Bf16Ahead& ahead) {
  alignas(64) float s[kMostTiles][kTileKeys][16];
  PairsOfP p[kMostTiles];
  const std::int64_t rows = x.scores.rows;
  const auto exist = static_cast<__mmask16>((1U << rows) - 1);
  __m512 row_sum = _mm512_maskz_loadu_ps(exist, x.row_sum);
  for (std::int64_t first = 0; first < x.scores.keys; first += kMostKeys) {
    const std::int64_t tiles = std::min(kMostKeys, x.scores.keys - first) / kTileKeys;
    __m512 most = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    for (std::int64_t n = 0; n < tiles; ++n) {
      DotTile(x.scores, first + n * kTileKeys, s[n]);
      ahead.step(ahead.context, kTileKeys);
    }
    for (std::int64_t n = 0; n < tiles; ++n) {
      for (const auto& key : s[n]) most = _mm512_max_ps(most, _mm512_load_ps(key));
    }
    const __m512 shift = UpdateMax(x, _mm512_mul_ps(most, _mm512_set1_ps(x.scale)), row_sum);
    const __m512 by = _mm512_set1_ps(x.scale * avx512::kLog2E);
    const __m512 minus = _mm512_mul_ps(shift, _mm512_set1_ps(-avx512::kLog2E));
    const auto exponent = [&](__m512 score) HWY_ATTR { return _mm512_fmadd_ps(score, by, minus); };
    for (std::int64_t n = 0; n < tiles; n += 2) {
      Exponentiate(s + n, n + 1 == tiles, rows, exponent, row_sum, p + n);
    }
    AddTiles(x.values, first, p, tiles, ahead);
  }
  _mm512_mask_storeu_ps(x.row_sum, exist, row_sum);
}

void OrderValues(float* o, std::int64_t cols) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  for (std::int64_t c = 0; c < cols; c += kPackedDepth) {
    const __m512 even = _mm512_load_ps(o + c);
    const __m512 odd = _mm512_load_ps(o + c + 16);
    _mm512_store_ps(o + c, _mm512_permutex2var_ps(even, low, odd));
    _mm512_store_ps(o + c + 16, _mm512_permutex2var_ps(even, high, odd));
  }
}

// Blocks of 32 dims: [16 pairs of dims][16 rows]. Rows that do not exist are zeros.
void PackQueries(const Bf16Bits* q, std::int64_t rows, std::int64_t dim, Bf16Bits* to) {
  const auto* from = reinterpret_cast<const float*>(q);  // pairs
  auto* out = reinterpret_cast<float*>(to);
  for (std::int64_t c = 0; c < dim / 2; c += 16) {
    alignas(64) float block[16][16] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      _mm512_store_ps(block[r], _mm512_loadu_ps(from + r * dim / 2 + c));
    }
    Transpose(block, 16, [&](std::int64_t pair, __m512 of_rows) HWY_ATTR {
      _mm512_storeu_ps(out + (c + pair) * 16, of_rows);
    });
  }
}

}  // namespace

const Bf16Decode* amx_bf16_decode() {
  static const Bf16Decode decode{Begin,     End,         PackQueries, DotRows,
                                 AddValues, OrderValues, Attend,      kAttendAbove};
  return amx_bf16_engine() != nullptr ? &decode : nullptr;
}

}  // namespace attn::cpu
HWY_POP_ATTRIBUTES

#else

namespace attn::cpu {
const Bf16Decode* amx_bf16_decode() {
  return nullptr;
}
}  // namespace attn::cpu

#endif
