// AMX's tile instructions, one function each, and who may use them.
#pragma once

#include <hwy/highway.h>

#if HWY_ARCH_X86_64 && defined(__linux__)
#include <immintrin.h>

#include <cstdint>

#include "cpu/kernels/tile_ops/bf16_avx512.hpp"

#define ATTN_AMX_BF16 ATTN_AVX512_BF16 ",amx-tile,amx-bf16"

HWY_PUSH_ATTRIBUTES(ATTN_AMX_BF16)
namespace attn::cpu::amx {

// LDTILECFG's operand (Intel 64 SDM): all eight tiles have 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// GCC's intrinsic tells the compiler of the first 8 bytes alone.
HWY_INLINE void Configure(const TileConfig& config) {
  asm volatile("ldtilecfg %0" ::"m"(config));
}

// GCC's intrinsics take literal tile numbers only.
template <int kTile>
HWY_INLINE void Load(const void* from, std::int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
HWY_INLINE void Store(void* to, std::int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
HWY_INLINE void Clear() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kC, int kA, int kB>
HWY_INLINE void AddProduct() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

}  // namespace attn::cpu::amx
HWY_POP_ATTRIBUTES
#endif
