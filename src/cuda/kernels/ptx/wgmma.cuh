// Warpgroup matrix products (wgmma, target sm_90a): d[64 x n] (+)= A[64 x 16] B, asynchronous, one
// function per instruction.
//
// Rules (PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply"): WgmmaFence() must precede the
// first product and follow any access to the accumulators. Until WgmmaWait() reports that a
// product's group is complete, neither its accumulators nor its register fragments of A may be
// accessed.
//
// Accumulators: register 4 i + 2 h + e of lane l in warp w of the warpgroup is row 16 w + l / 4 + 8
// h, column 8 i + 2 (l % 4) + e. Packed pairwise, registers 8 k .. 8 k + 7 are the fragment of A
// for columns 16 k .. 16 k + 15.
#pragma once
#include "config.cuh"

namespace ptx {

__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `groups` of this warpgroup's groups are pending.
template <int groups>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(groups) : "memory");
}

// Descriptor of a matrix in shared memory: swizzled rows of 128 or 64 bytes, 8 rows per block of
// 1024 or 512 bytes. Matrices begin at multiples of 1024 bytes. `chunk_bytes` is the distance
// between blocks of 64 columns; K-major operands (rows of the matrix are contiguous along K) ignore
// it. At() adds an offset to the low word. If each product built its descriptor from an address,
// the compiler would keep all of them as loop invariants and spill.
template <int row_bytes>
struct SwizzledDescriptor {
  static_assert(row_bytes == 128 || row_bytes == 64);
  // Distance between groups of 8 rows, and the swizzle mode (128-byte or 64-byte).
  static constexpr unsigned kHigh = 8 * row_bytes / 16 | (row_bytes == 128 ? 1u : 2u) << 30;
  unsigned low;

  __device__ __forceinline__ SwizzledDescriptor(unsigned address, unsigned chunk_bytes)
      : low(address >> 4 | chunk_bytes / 16 << 16) {}
  __device__ __forceinline__ unsigned long long At(unsigned offset_bytes) const {
    return static_cast<unsigned long long>(kHigh) << 32 | (low + offset_bytes / 16);
  }
};
using MatrixDescriptor = SwizzledDescriptor<128>;

// Operand lists of the instructions. %0 to %(n/2 - 1) are the accumulators.
#define ATTN_R8_0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define ATTN_R8_1 "%8,%9,%10,%11,%12,%13,%14,%15"
#define ATTN_R8_2 "%16,%17,%18,%19,%20,%21,%22,%23"
#define ATTN_R8_3 "%24,%25,%26,%27,%28,%29,%30,%31"
#define ATTN_R8_4 "%32,%33,%34,%35,%36,%37,%38,%39"
#define ATTN_R8_5 "%40,%41,%42,%43,%44,%45,%46,%47"
#define ATTN_R8_6 "%48,%49,%50,%51,%52,%53,%54,%55"
#define ATTN_R8_7 "%56,%57,%58,%59,%60,%61,%62,%63"
#define ATTN_R8_8 "%64,%65,%66,%67,%68,%69,%70,%71"
#define ATTN_R8_9 "%72,%73,%74,%75,%76,%77,%78,%79"
#define ATTN_R8_10 "%80,%81,%82,%83,%84,%85,%86,%87"
#define ATTN_R8_11 "%88,%89,%90,%91,%92,%93,%94,%95"
#define ATTN_R8_12 "%96,%97,%98,%99,%100,%101,%102,%103"
#define ATTN_R8_13 "%104,%105,%106,%107,%108,%109,%110,%111"
#define ATTN_R8_14 "%112,%113,%114,%115,%116,%117,%118,%119"
#define ATTN_R8_15 "%120,%121,%122,%123,%124,%125,%126,%127"
#define ATTN_R16 ATTN_R8_0 "," ATTN_R8_1
#define ATTN_R32 ATTN_R16 "," ATTN_R8_2 "," ATTN_R8_3
#define ATTN_R40 ATTN_R32 "," ATTN_R8_4
#define ATTN_R48 ATTN_R40 "," ATTN_R8_5
#define ATTN_R64 ATTN_R48 "," ATTN_R8_6 "," ATTN_R8_7
#define ATTN_R80 ATTN_R64 "," ATTN_R8_8 "," ATTN_R8_9
#define ATTN_R96 ATTN_R64 "," ATTN_R8_8 "," ATTN_R8_9 "," ATTN_R8_10 "," ATTN_R8_11
#define ATTN_R112 ATTN_R96 "," ATTN_R8_12 "," ATTN_R8_13
#define ATTN_R128 ATTN_R96 "," ATTN_R8_12 "," ATTN_R8_13 "," ATTN_R8_14 "," ATTN_R8_15
#define ATTN_D8(b)                                                                            \
  "+f"(d[b]), "+f"(d[b + 1]), "+f"(d[b + 2]), "+f"(d[b + 3]), "+f"(d[b + 4]), "+f"(d[b + 5]), \
      "+f"(d[b + 6]), "+f"(d[b + 7])
#define ATTN_D16(b) ATTN_D8(b), ATTN_D8(b + 8)
#define ATTN_D32(b) ATTN_D16(b), ATTN_D16(b + 16)
#define ATTN_WGMMA_SHARED(N, TYPE, LIST, A, B, ACCUMULATE, TA, TB, ...)                  \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" ACCUMULATE                             \
               ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST \
               "}, "                                                                     \
               "%" A ", %" B ", p, 1, 1, %" TA ", %" TB "; }"                            \
               : __VA_ARGS__                                                             \
               : "l"(a), "l"(b), "r"(accumulate), "n"(a_transposed), "n"(b_transposed))
#define ATTN_WGMMA_REGISTERS(N, TYPE, LIST, A0, A1, A2, A3, B, ACCUMULATE, ...)          \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" ACCUMULATE                             \
               ", 0;\n"                                                                  \
               "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" LIST \
               "}, "                                                                     \
               "{%" A0 ",%" A1 ",%" A2 ",%" A3 "}, %" B ", p, 1, 1, 1; }"                \
               : __VA_ARGS__                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate))
#define ATTN_BOTH_TYPES(WGMMA, N, ...)                                          \
  if constexpr (n == N && dtype == config::bf16) WGMMA(N, "bf16", __VA_ARGS__); \
  if constexpr (n == N && dtype == config::f16) WGMMA(N, "f16", __VA_ARGS__);

// d[64 x n] (+)= A[64 x 16] B[n x 16]^T; a and b are descriptors. Both matrices are K-major in
// memory, unless a_transposed (A is M-major) or b_transposed (B is N-major) is set.
template <int dtype, int n, int a_transposed = 0, int b_transposed = 0>
__device__ __forceinline__ void WgmmaShared(float* d, unsigned long long a, unsigned long long b,
                                            int accumulate) {
  static_assert(n == 32 || n == 64 || n == 80 || n == 96 || n == 128);
  ATTN_BOTH_TYPES(ATTN_WGMMA_SHARED, 32, ATTN_R16, "16", "17", "18", "19", "20", ATTN_D16(0))
  ATTN_BOTH_TYPES(ATTN_WGMMA_SHARED, 64, ATTN_R32, "32", "33", "34", "35", "36", ATTN_D32(0))
  ATTN_BOTH_TYPES(ATTN_WGMMA_SHARED, 80, ATTN_R40, "40", "41", "42", "43", "44", ATTN_D32(0),
                  ATTN_D8(32))
  ATTN_BOTH_TYPES(ATTN_WGMMA_SHARED, 96, ATTN_R48, "48", "49", "50", "51", "52", ATTN_D32(0),
                  ATTN_D16(32))
  ATTN_BOTH_TYPES(ATTN_WGMMA_SHARED, 128, ATTN_R64, "64", "65", "66", "67", "68", ATTN_D32(0),
                  ATTN_D32(32))
}
// d[64 x n] (+)= A[64 x 16] B[16 x n]; a is a register fragment, b the descriptor of an N-major
// matrix.
template <int dtype, int n>
__device__ __forceinline__ void WgmmaRegisters(float* d, const unsigned* a, unsigned long long b,
                                               int accumulate) {
  static_assert(n == 64 || n == 128 || n == 192 || n == 256);
  ATTN_BOTH_TYPES(ATTN_WGMMA_REGISTERS, 64, ATTN_R32, "32", "33", "34", "35", "36", "37",
                  ATTN_D32(0))
  ATTN_BOTH_TYPES(ATTN_WGMMA_REGISTERS, 128, ATTN_R64, "64", "65", "66", "67", "68", "69",
                  ATTN_D32(0), ATTN_D32(32))
  ATTN_BOTH_TYPES(ATTN_WGMMA_REGISTERS, 192, ATTN_R96, "96", "97", "98", "99", "100", "101",
                  ATTN_D32(0), ATTN_D32(32), ATTN_D32(64))
  ATTN_BOTH_TYPES(ATTN_WGMMA_REGISTERS, 256, ATTN_R128, "128", "129", "130", "131", "132", "133",
                  ATTN_D32(0), ATTN_D32(32), ATTN_D32(64), ATTN_D32(96))
}

}  // namespace ptx
