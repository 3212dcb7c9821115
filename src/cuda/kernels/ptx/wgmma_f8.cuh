// Warpgroup matrix products of 8-bit elements (wgmma, target sm_90a): d[64 x n] (+)= A[64 x 32] B,
// one function per instruction. Rules and accumulators: ptx/wgmma.cuh. Both operands are K-major.
//
// Fragments of A in lane l of warp w: register 0 has four bytes, k = 4 (l % 4) .. + 3, of row 16 w
// + l / 4. Register 1 has the same k of the row 8 below. Registers 2 and 3 have the same rows for k
// + 16.
//
// Precision: the tensor cores of 9.0 keep about 14 bits in accumulators of 8-bit products
// (docs/kernels/sm90_forward.md, "f8").
#pragma once
#include "ptx/wgmma.cuh"

namespace ptx {

#define ATTN_WGMMA_F8_SHARED(N, TA, TB, LIST, A, B, ACCUMULATE, ...)                 \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" ACCUMULATE                         \
               ", 0;\n"                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TA "." TB " {" LIST \
               "}, "                                                                 \
               "%" A ", %" B ", p, 1, 1; }"                                          \
               : __VA_ARGS__                                                         \
               : "l"(a), "l"(b), "r"(accumulate))
#define ATTN_WGMMA_F8_REGISTERS(N, TA, TB, LIST, A0, A1, A2, A3, B, ACCUMULATE, ...) \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" ACCUMULATE                         \
               ", 0;\n"                                                              \
               "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32." TA "." TB " {" LIST \
               "}, "                                                                 \
               "{%" A0 ",%" A1 ",%" A2 ",%" A3 "}, %" B ", p, 1, 1; }"               \
               : __VA_ARGS__                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define ATTN_F8_TYPES(WGMMA, N, ...)                                            \
  if constexpr (n == N && type_a == config::f8e4m3 && type_b == config::f8e4m3) \
    WGMMA(N, "e4m3", "e4m3", __VA_ARGS__);                                      \
  if constexpr (n == N && type_a == config::f8e4m3 && type_b == config::f8e5m2) \
    WGMMA(N, "e4m3", "e5m2", __VA_ARGS__);                                      \
  if constexpr (n == N && type_a == config::f8e5m2 && type_b == config::f8e4m3) \
    WGMMA(N, "e5m2", "e4m3", __VA_ARGS__);                                      \
  if constexpr (n == N && type_a == config::f8e5m2 && type_b == config::f8e5m2) \
    WGMMA(N, "e5m2", "e5m2", __VA_ARGS__);

// d[64 x n] (+)= A[64 x 32] B[n x 32]^T; a and b are descriptors.
template <int type_a, int type_b, int n>
__device__ __forceinline__ void WgmmaSharedF8(float* d, unsigned long long a, unsigned long long b,
                                              int accumulate) {
  static_assert(n == 64 || n == 128 || n == 160 || n == 192 || n == 224);
  ATTN_F8_TYPES(ATTN_WGMMA_F8_SHARED, 64, ATTN_R32, "32", "33", "34", ATTN_D32(0))
  ATTN_F8_TYPES(ATTN_WGMMA_F8_SHARED, 128, ATTN_R64, "64", "65", "66", ATTN_D32(0), ATTN_D32(32))
  ATTN_F8_TYPES(ATTN_WGMMA_F8_SHARED, 160, ATTN_R80, "80", "81", "82", ATTN_D32(0), ATTN_D32(32),
                ATTN_D16(64))
  ATTN_F8_TYPES(ATTN_WGMMA_F8_SHARED, 192, ATTN_R96, "96", "97", "98", ATTN_D32(0), ATTN_D32(32),
                ATTN_D32(64))
  ATTN_F8_TYPES(ATTN_WGMMA_F8_SHARED, 224, ATTN_R112, "112", "113", "114", ATTN_D32(0),
                ATTN_D32(32), ATTN_D32(64), ATTN_D16(96))
}
// d[64 x n] (+)= A[64 x 32] B[n x 32]^T; a is a register fragment, b a descriptor.
template <int type_a, int type_b, int n>
__device__ __forceinline__ void WgmmaRegistersF8(float* d, const unsigned* a, unsigned long long b,
                                                 int accumulate) {
  static_assert(n == 64 || n == 128 || n == 256);
  ATTN_F8_TYPES(ATTN_WGMMA_F8_REGISTERS, 64, ATTN_R32, "32", "33", "34", "35", "36", "37",
                ATTN_D32(0))
  ATTN_F8_TYPES(ATTN_WGMMA_F8_REGISTERS, 128, ATTN_R64, "64", "65", "66", "67", "68", "69",
                ATTN_D32(0), ATTN_D32(32))
  ATTN_F8_TYPES(ATTN_WGMMA_F8_REGISTERS, 256, ATTN_R128, "128", "129", "130", "131", "132", "133",
                ATTN_D32(0), ATTN_D32(32), ATTN_D32(64), ATTN_D32(96))
}

}  // namespace ptx
