// bf16 products with AMX tiles. TDPBF16PS adds a 16 x 32 by 32 x 16 bf16 product to 16 x 16 f32
// sums.
#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/amx_tiles.hpp"
#include "cpu/kernels/tile_ops/bf16_avx512.hpp"

#if HWY_ARCH_X86_64 && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

HWY_PUSH_ATTRIBUTES(ATTN_AMX_BF16)
namespace attn::cpu {
namespace {

using amx::AddProduct;
using amx::Clear;
using amx::Load;
using amx::Store;

constexpr amx::TileConfig kTileConfig;

void Begin() {
  amx::Configure(kTileConfig);
}
// Releases the tiles. A thread that keeps them has 8 KiB more state to save at a context switch.
void End() {
  _mm_sfence();  // orders the streaming stores of dbias before those that end the task
  _tile_release();
}

// Blocks of kPackedDepth of A that stay in tiles while all columns are computed.
constexpr std::int64_t kMostBlocks = 4;
// Tiles of C that take turns.
template <int kBlocks>
constexpr int kTilesOfC = kBlocks <= 2 ? 4 : 6 - kBlocks;

// A block of 16 columns, the kNth of a group, of kBlocks blocks of A in tiles 0 to kBlocks - 1. Two
// tiles of B take turns too.
template <int kBlocks, int kN>
HWY_INLINE void MultiplyColumns(const Bf16Bits* b, std::int64_t b_depth, float* c,
                                std::int64_t c_stride, bool accumulate) {
  constexpr int kC = kBlocks + 2 + kN;
  constexpr int kEven = kBlocks + kN * kBlocks % 2;
  constexpr int kOdd = kBlocks + (kN * kBlocks + 1) % 2;
  if (accumulate) {
    Load<kC>(c, c_stride);
  } else {
    Clear<kC>();
  }
  Load<kEven>(b, 64);
  AddProduct<kC, 0, kEven>();
  if constexpr (kBlocks > 1) {
    Load<kOdd>(b + b_depth, 64);
    AddProduct<kC, 1, kOdd>();
  }
  if constexpr (kBlocks > 2) {
    Load<kEven>(b + 2 * b_depth, 64);
    AddProduct<kC, 2, kEven>();
  }
  if constexpr (kBlocks > 3) {
    Load<kOdd>(b + 3 * b_depth, 64);
    AddProduct<kC, 3, kOdd>();
  }
  Store<kC>(c, c_stride);
}

HWY_INLINE void StepAhead(RowPrefetch& ahead, std::int64_t steps) {
  for (; steps > 0; --steps) ahead.step();
}

// The part of a product with the kBlocks blocks of depth from `first` on. While a tile of C is
// stored, which takes as long as TDPBF16PS (16 cycles), the next one is computed.
template <int kBlocks>
void MultiplyBlocks(const Bf16Product& x, std::int64_t first, bool accumulate) {
  constexpr int kGroup = kTilesOfC<kBlocks>;
  const std::int64_t b_depth = x.b_depth;
  const std::int64_t b_cols = x.b_cols;
  const std::int64_t c_stride = x.ldc * 4;
  for (std::int64_t row = 0; row < x.rows; row += kBf16Rows) {
    const Bf16Bits* a = x.a + row * x.lda + first * kPackedDepth;
    const std::int64_t a_stride = x.lda * 2;
    Load<0>(a, a_stride);
    if constexpr (kBlocks > 1) Load<1>(a + kPackedDepth, a_stride);
    if constexpr (kBlocks > 2) Load<2>(a + 2 * kPackedDepth, a_stride);
    if constexpr (kBlocks > 3) Load<3>(a + 3 * kPackedDepth, a_stride);
    const Bf16Bits* b = x.b + first * b_depth;
    float* c = x.c + row * x.ldc;
    std::int64_t left = x.cols / kPackedCols;
    for (; left > 0; left -= kGroup) {
      if (x.ahead != nullptr) StepAhead(*x.ahead, std::min<std::int64_t>(left, kGroup));
      MultiplyColumns<kBlocks, 0>(b, b_depth, c, c_stride, accumulate);
      b += b_cols, c += kPackedCols;
      if (left == 1) break;
      MultiplyColumns<kBlocks, 1>(b, b_depth, c, c_stride, accumulate);
      b += b_cols, c += kPackedCols;
      if constexpr (kGroup > 2) {
        if (left == 2) break;
        MultiplyColumns<kBlocks, 2>(b, b_depth, c, c_stride, accumulate);
        b += b_cols, c += kPackedCols;
      }
      if constexpr (kGroup > 3) {
        if (left == 3) break;
        MultiplyColumns<kBlocks, 3>(b, b_depth, c, c_stride, accumulate);
        b += b_cols, c += kPackedCols;
      }
    }
  }
}

// 32 rows by 32 columns of C in tiles 4 to 7 while the depth passes. Each tile of B is loaded once
// for all rows.
void MultiplyPairs(const Bf16Product& x) {
  const std::int64_t a_stride = x.lda * 2;
  const std::int64_t c_stride = x.ldc * 4;
  for (std::int64_t row = 0; row < x.rows; row += 2 * kBf16Rows) {
    for (std::int64_t col = 0; col < x.cols; col += 2 * kPackedCols) {
      const Bf16Bits* a = x.a + row * x.lda;
      const Bf16Bits* b = x.b + col / kPackedCols * x.b_cols;
      float* c = x.c + row * x.ldc + col;
      float* low = c + kBf16Rows * x.ldc;
      Clear<4>();
      Clear<5>();
      Clear<6>();
      Clear<7>();
      for (std::int64_t k = 0; k < x.depth; k += kPackedDepth, a += kPackedDepth, b += x.b_depth) {
        if (x.ahead != nullptr) x.ahead->step();
        Load<0>(a, a_stride);
        Load<1>(a + kBf16Rows * x.lda, a_stride);
        Load<2>(b, 64);
        AddProduct<4, 0, 2>();
        AddProduct<6, 1, 2>();
        Load<3>(b + x.b_cols, 64);
        AddProduct<5, 0, 3>();
        AddProduct<7, 1, 3>();
      }
      Store<4>(c, c_stride);
      Store<5>(c + kPackedCols, c_stride);
      Store<6>(low, c_stride);
      Store<7>(low + kPackedCols, c_stride);
    }
  }
}

// Strips of 16 rows and all columns in turn. Blocks of 32 x 32 need fewer loads. But with strips of
// 16 rows more keys fit in L1, which matters more (docs/kernels/cpu.md), unless B is in L2 anyway.
void Multiply(const Bf16Product& x) {
  const std::int64_t blocks = x.depth / kPackedDepth;
  const bool pairs = x.rows % (2 * kBf16Rows) == 0 && x.cols % (2 * kPackedCols) == 0;
  if (x.b_is_far && pairs && !x.accumulate) return MultiplyPairs(x);
  std::int64_t first = 0;
  for (; first + kMostBlocks < blocks; first += kMostBlocks) {
    MultiplyBlocks<kMostBlocks>(x, first, x.accumulate || first > 0);
  }
  const bool accumulate = x.accumulate || first > 0;
  switch (blocks - first) {
    case 4: MultiplyBlocks<4>(x, first, accumulate); break;
    case 3: MultiplyBlocks<3>(x, first, accumulate); break;
    case 2: MultiplyBlocks<2>(x, first, accumulate); break;
    case 1: MultiplyBlocks<1>(x, first, accumulate); break;
    default: break;
  }
}

bool has_amx_bf16() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kAmxBf16 = 1U << 22;
  constexpr unsigned kAmxTile = 1U << 24;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0;
}

// Linux allows a process to use the tile state only on request (arch_prctl(2)).
bool request_tiles() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const Bf16Engine* amx_bf16_engine() {
  static const Bf16Engine engine{"amx_bf16",
                                 Begin,
                                 End,
                                 Multiply,
                                 pack_keys_avx512,
                                 pack_values_avx512,
                                 find_visible_avx512,
                                 softmax_avx512,
                                 transpose_avx512,
                                 gradient_avx512,
                                 transpose_sums_avx512,
                                 store_sums_avx512,
                                 store_rows_avx512,
                                 true,
                                 true,
                                 true};
  static const bool usable = has_avx512_bf16() && has_amx_bf16() && request_tiles();
  return usable ? &engine : nullptr;
}

}  // namespace attn::cpu
HWY_POP_ATTRIBUTES

#else

namespace attn::cpu {
const Bf16Engine* amx_bf16_engine() {
  return nullptr;
}
}  // namespace attn::cpu

#endif
