// bf16 products with AMX tiles. TDPBF16PS adds a 16 x 32 by 32 x 16 bf16 product to 16 x 16 f32
// sums.
#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_avx512.hpp"

#if HWY_ARCH_X86_64 && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16 ",amx-tile,amx-bf16")
namespace attn::cpu {
namespace {

// LDTILECFG's operand (Intel 64 SDM): all eight tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kTileConfig;

void Begin() {
  _tile_loadconfig(&kTileConfig);
}
// Releases the tiles. A thread that keeps them has 8 KiB more state to save at a context switch.
void End() {
  _tile_release();
}

// 16 rows by kCols blocks of 16 columns. Tiles 0 to 3 are C, 4 is A, 5 and 6 are B.
template <int kCols>
HWY_INLINE void MultiplyBlock(const Bf16Product& x, std::int64_t row, std::int64_t col) {
  const Bf16Bits* a = x.a + row * x.lda;
  const Bf16Bits* b = x.b + col / kPackedCols * x.b_cols;
  float* c = x.c + row * x.ldc + col;
  const std::int64_t a_stride = x.lda * 2;
  const std::int64_t c_stride = x.ldc * 4;
  if (x.accumulate) {
    _tile_loadd(0, c, c_stride);
    if constexpr (kCols > 1) _tile_loadd(1, c + 16, c_stride);
    if constexpr (kCols > 2) _tile_loadd(2, c + 32, c_stride);
    if constexpr (kCols > 3) _tile_loadd(3, c + 48, c_stride);
  } else {
    _tile_zero(0);
    if constexpr (kCols > 1) _tile_zero(1);
    if constexpr (kCols > 2) _tile_zero(2);
    if constexpr (kCols > 3) _tile_zero(3);
  }
  for (std::int64_t k = 0; k < x.depth; k += kPackedDepth, b += x.b_depth) {
    _tile_loadd(4, a + k, a_stride);
    _tile_loadd(5, b, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kCols > 1) {
      _tile_loadd(6, b + x.b_cols, 64);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kCols > 2) {
      _tile_loadd(5, b + 2 * x.b_cols, 64);
      _tile_dpbf16ps(2, 4, 5);
    }
    if constexpr (kCols > 3) {
      _tile_loadd(6, b + 3 * x.b_cols, 64);
      _tile_dpbf16ps(3, 4, 6);
    }
  }
  _tile_stored(0, c, c_stride);
  if constexpr (kCols > 1) _tile_stored(1, c + 16, c_stride);
  if constexpr (kCols > 2) _tile_stored(2, c + 32, c_stride);
  if constexpr (kCols > 3) _tile_stored(3, c + 48, c_stride);
}

// Blocks of 16 x 64. Blocks of 32 x 32 would need fewer loads. But with strips of 16 rows more keys
// fit in L1, which matters more (docs/kernels/cpu.md).
void Multiply(const Bf16Product& x) {
  for (std::int64_t row = 0; row < x.rows; row += kBf16Rows) {
    std::int64_t col = 0;
    for (; col + 4 * kPackedCols <= x.cols; col += 4 * kPackedCols) MultiplyBlock<4>(x, row, col);
    switch ((x.cols - col) / kPackedCols) {
      case 3: MultiplyBlock<3>(x, row, col); break;
      case 2: MultiplyBlock<2>(x, row, col); break;
      case 1: MultiplyBlock<1>(x, row, col); break;
      default: break;
    }
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
                                 transpose_sums_avx512};
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
