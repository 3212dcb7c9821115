// A decode with AMX (bf16_decode.hpp). TDPBF16PS computes C += A B with A [16 x 32], B [32 x 16] in
// pairs of rows, C [16 x 16] in f32.
//
// - S^T = K Q^T: a tile of A is 16 keys x 32 dims of the cache as they are in memory. B is Q^T,
//   packed once per task.
// - O += P V: B is 32 keys x 16 columns. Its pairs of rows are keys 16 apart, as interleaved by one
//   instruction for 16 columns. A tile of A is P of the 32 keys in the same pairs.
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
constexpr int kLowO = 0;
constexpr int kHighO = 1;
constexpr int kP = 2;
constexpr int kTilesOfRows = 3;  // the first three
constexpr int kKeys = 3;
constexpr int kQuery = 4;
constexpr int kScores = 5;
constexpr int kLowV = 6;
constexpr int kHighV = 7;

void Begin(std::int64_t rows) {
  amx::TileConfig config;
  std::fill_n(config.rows, kTilesOfRows, static_cast<std::uint8_t>(rows));
  amx::Configure(config);
}
void End() {
  _tile_release();
}

// Loads 64 bytes of 16 rows, from byte `at` on. `stride`: their distance, or 0 if they are not
// equally spaced.
template <int kTile>
HWY_INLINE void LoadRows(const char* const* rows, std::int64_t stride, std::int64_t at) {
  if (stride != 0) return Load<kTile>(rows[0] + at, stride);
  alignas(64) char copy[kTileKeys * kTileBytes];
  for (std::int64_t n = 0; n < kTileKeys; ++n) {
    _mm512_store_si512(copy + n * kTileBytes, _mm512_loadu_si512(rows[n] + at));
  }
  Load<kTile>(copy, kTileBytes);
}
HWY_INLINE std::int64_t StrideOf(const char* const* rows) {
  const std::int64_t stride = rows[1] - rows[0];
  const __m512i step = _mm512_set1_epi64(stride);
  const auto distance = [&](int n) HWY_ATTR {
    return _mm512_sub_epi64(_mm512_loadu_si512(rows + n + 1), _mm512_loadu_si512(rows + n));
  };
  const auto differ = static_cast<unsigned>(_mm512_cmpneq_epi64_mask(distance(0), step)) |
                      static_cast<unsigned>(_mm512_cmpneq_epi64_mask(distance(7), step));
  return differ == 0 ? stride : 0;
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
  const std::int64_t stride = StrideOf(x.k + j);
  Clear<kScores>();
  for (std::int64_t c = 0; c < x.dim; c += kPackedDepth) {
    LoadRows<kKeys>(x.k + j, stride, 2 * c);
    Load<kQuery>(x.q + c * kMostDecodeRows, kTileBytes);
    AddProduct<kScores, kKeys, kQuery>();
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

// Keys whose products with P are added to O together, in groups of 32.
constexpr std::int64_t kGroupKeys = 2 * kTileKeys;
constexpr std::int64_t kMostGroups = 2;
constexpr std::int64_t kMostKeys = kMostGroups * kGroupKeys;
// P of a group, in bf16: pair n of a row is P of keys n and 16 + n.
struct alignas(64) GroupOfP {
  std::uint32_t pairs[kMostDecodeRows][kTileKeys];
};
// V of a group, columns [c, c + 32), in the same pairs. `low` has columns 0-3, 8-11, 16-19 and
// 24-27, `high` the others.
struct alignas(64) GroupOfV {
  std::uint32_t low[kTileKeys][16];
  std::uint32_t high[kTileKeys][16];
};

// Pairs of bf16 from two vectors of f32.
HWY_INLINE __m512i RoundToPairs(__m512 first, __m512 second) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i high = _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16);
  const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  return _mm512_permutexvar_epi16(_mm512_or_si512(low, high), rounded);
}

HWY_INLINE void RoundP(const float* p, std::int64_t ldp, std::int64_t rows, std::int64_t keys,
                       GroupOfP& to) {
  const std::uint32_t exist = keys < kGroupKeys ? (1U << keys) - 1 : ~0U;
  const auto first = static_cast<__mmask16>(exist);
  const auto second = static_cast<__mmask16>(exist >> 16);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = p + r * ldp;
    _mm512_store_si512(to.pairs[r], RoundToPairs(_mm512_maskz_loadu_ps(first, row),
                                                 _mm512_maskz_loadu_ps(second, row + kTileKeys)));
  }
}

// Keys past `keys` become zeros without being read: V may hold NaN there, and 0 * NaN is NaN.
HWY_INLINE void InterleaveV(const char* const* v, std::int64_t keys, std::int64_t at,
                            GroupOfV& to) {
  const auto row = [&](std::int64_t n) HWY_ATTR {
    return n < keys ? _mm512_loadu_si512(v[n] + at) : _mm512_setzero_si512();
  };
  for (std::int64_t n = 0; n < kTileKeys; ++n) {
    const __m512i first = row(n);
    const __m512i second = row(kTileKeys + n);
    _mm512_store_si512(to.low[n], _mm512_unpacklo_epi16(first, second));
    _mm512_store_si512(to.high[n], _mm512_unpackhi_epi16(first, second));
  }
}

// O += P V for `keys` keys from key j on.
HWY_INLINE void AddGroups(const Bf16Values& x, std::int64_t j, std::int64_t keys, const GroupOfP* p,
                          const Bf16Ahead& ahead) {
  const std::int64_t stride = 4 * x.ldo;
  const std::int64_t whole = (keys + kTileKeys - 1) / kTileKeys * kTileKeys;
  std::int64_t done = 0;  // keys reported to `ahead`, an even number
  GroupOfV v[kMostGroups];
  for (std::int64_t c = 0; c < x.cols; c += kPackedDepth) {
    for (std::int64_t n = 0; n * kGroupKeys < keys; ++n) {
      InterleaveV(x.v + j + n * kGroupKeys, keys - n * kGroupKeys, 2 * c, v[n]);
    }
    Load<kLowO>(x.o + c, stride);
    Load<kHighO>(x.o + c + 16, stride);
    for (std::int64_t n = 0; n * kGroupKeys < keys; ++n) {
      Load<kP>(p[n].pairs, kTileBytes);
      Load<kLowV>(v[n].low, kTileBytes);
      AddProduct<kLowO, kP, kLowV>();
      Load<kHighV>(v[n].high, kTileBytes);
      AddProduct<kHighO, kP, kHighV>();
    }
    Store<kLowO>(x.o + c, stride);
    Store<kHighO>(x.o + c + 16, stride);
    const std::int64_t due = whole * (c + kPackedDepth) / x.cols / 2 * 2;
    ahead.step(ahead.context, due - done);
    done = due;
  }
}

void AddValues(const Bf16Values& x, const Bf16Ahead& ahead) {
  GroupOfP p[kMostGroups];
  for (std::int64_t j = 0; j < x.keys; j += kMostKeys) {
    const std::int64_t keys = std::min(kMostKeys, x.keys - j);
    for (std::int64_t n = 0; n < keys; n += kGroupKeys) {
      RoundP(x.p + j + n, x.ldp, x.rows, keys - n, p[n / kGroupKeys]);
    }
    AddGroups(x, j, keys, p, ahead);
  }
}

// P of two tiles of scores: exponent(s) is the exponent of 2. `none`: the second tile does not
// exist. Adds P to the sums of the rows.
template <class Exponent>
HWY_INLINE void Exponentiate(const float (*s)[kTileKeys][16], bool none, std::int64_t rows,
                             const Exponent& exponent, __m512& row_sum, GroupOfP& to) {
  alignas(64) float pairs[kTileKeys][16];  // [key][row]: bf16 P of the first and the second tile
  __m512 second_sum = _mm512_setzero_ps();
  for (std::int64_t j = 0; j < kTileKeys; ++j) {
    const __m512 first = avx512::Exp2(exponent(_mm512_load_ps(s[0][j])));
    __m512 second = _mm512_setzero_ps();
    if (!none) second = avx512::Exp2(exponent(_mm512_load_ps(s[1][j])));
    row_sum = _mm512_add_ps(row_sum, first);
    second_sum = _mm512_add_ps(second_sum, second);
    _mm512_store_si512(pairs[j], RoundToPairs(first, second));
  }
  row_sum = _mm512_add_ps(row_sum, second_sum);
  Transpose(pairs, rows,
            [&](std::int64_t r, __m512 row) HWY_ATTR { _mm512_store_ps(to.pairs[r], row); });
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
  alignas(64) float s[kMostKeys / kTileKeys][kTileKeys][16];
  GroupOfP p[kMostGroups];
  const std::int64_t rows = x.scores.rows;
  const auto exist = static_cast<__mmask16>((1U << rows) - 1);
  __m512 row_sum = _mm512_maskz_loadu_ps(exist, x.row_sum);
  for (std::int64_t first = 0; first < x.scores.keys; first += kMostKeys) {
    const std::int64_t keys = std::min(kMostKeys, x.scores.keys - first);
    const std::int64_t tiles = keys / kTileKeys;
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
      Exponentiate(s + n, n + 1 == tiles, rows, exponent, row_sum, p[n / 2]);
    }
    AddGroups(x.values, first, keys, p, ahead);
  }
  _mm512_mask_storeu_ps(x.row_sum, exist, row_sum);
}

void OrderValues(float* o, std::int64_t cols) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  for (std::int64_t c = 0; c < cols; c += kPackedDepth) {
    const __m512 low = _mm512_load_ps(o + c);
    const __m512 high = _mm512_load_ps(o + c + 16);
    _mm512_store_ps(o + c, _mm512_permutex2var_ps(low, first, high));
    _mm512_store_ps(o + c + 16, _mm512_permutex2var_ps(low, second, high));
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
