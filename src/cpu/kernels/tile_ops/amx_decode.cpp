// A decode with AMX (bf16_decode.hpp). TDPBF16PS computes C += A B with A [16 x 32], B [32 x 16] in
// pairs of rows, C [16 x 16] in f32.
//
// - S^T = K Q^T: a tile of A is 16 keys x 32 dims of the cache as they are in memory. B is Q^T,
//   packed once per task.
// - O += P V: B is 32 keys x 16 columns. Its pairs of rows are keys 16 apart, as interleaved by one
//   instruction for 16 columns. A tile of A is P of the 32 keys in the same pairs.
#include <hwy/highway.h>

#include <algorithm>

#include "cpu/kernels/tile_ops/amx_tiles.hpp"
#include "cpu/kernels/tile_ops/bf16_columns_avx512.hpp"
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

#if HWY_ARCH_X86_64 && defined(__linux__)

HWY_PUSH_ATTRIBUTES(ATTN_AMX_BF16)
namespace attn::cpu {
namespace {

using amx::AddProduct;
using amx::Clear;
using amx::Load;
using amx::Store;

using avx512::kGroupKeys;
using avx512::kMostGroups;
using avx512::kMostKeys;
using avx512::kTileKeys;
using avx512::RoundToPairs;
using avx512::TileOfS;
using avx512::Transpose;

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

// Scores of 16 keys.
HWY_INLINE void DotTile(const Bf16Scores& x, std::int64_t j, TileOfS& s) {
  const std::int64_t stride = StrideOf(x.k + j);
  Clear<kScores>();
  for (std::int64_t c = 0; c < x.dim; c += kPackedDepth) {
    LoadRows<kKeys>(x.k + j, stride, 2 * c);
    Load<kQuery>(x.q + c * kMostDecodeRows, kTileBytes);
    AddProduct<kScores, kKeys, kQuery>();
  }
  Store<kScores>(s, kTileBytes);
}

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

void DotRows(const Bf16Scores& x, const Bf16Ahead& ahead) {
  avx512::DotRows(x, ahead, [&](std::int64_t j, TileOfS& s) HWY_ATTR { DotTile(x, j, s); });
}

void Attend(const Bf16Attend& x, const Bf16Ahead& ahead) {
  avx512::Attend(
      x, ahead, [&](std::int64_t j, TileOfS& s) HWY_ATTR { DotTile(x.scores, j, s); },
      [&](std::int64_t j, std::int64_t keys, const avx512::PairsOfP* pairs) HWY_ATTR {
        GroupOfP p[kMostGroups];
        for (std::int64_t n = 0; n * kGroupKeys < keys; ++n) {
          Transpose(pairs[n].words, x.scores.rows, [&](std::int64_t r, __m512 row) HWY_ATTR {
            _mm512_store_ps(p[n].pairs[r], row);
          });
        }
        AddGroups(x.values, j, keys, p, ahead);
      });
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

}  // namespace

const Bf16Decode* amx_bf16_decode() {
  static const Bf16Decode decode{Begin,       End,    avx512::PackQueries, DotRows, AddValues,
                                 OrderValues, Attend, kAttendAbove};
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
