// Tensor-core instructions of compute capability 8.0 and later: one function per instruction.
//
// Fragments of lane l, g = l / 4, t = l % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16"):
//   A 16 x 16: a0 (g, 2t..), a1 (g + 8, 2t..), a2 (g, 2t + 8..), a3 (g + 8, 2t + 8..)
//   B 16 x 8:  b0 (2t.., g), b1 (2t + 8.., g)
//   C 16 x 8:  c0 c1 (g, 2t..), c2 c3 (g + 8, 2t..)
// The C of two adjacent 16 x 8 tiles, packed pairwise, is therefore the A of a 16 x 16 tile.
// m16n8k8 of 32-bit elements has the same C, and
//   A 16 x 8: a0 (g, t), a1 (g + 8, t), a2 (g, t + 4), a3 (g + 8, t + 4)
//   B 8 x 8:  b0 (t, g), b1 (t + 4, g)
// LoadMatrix() loads these fragments from rows of 32-bit elements.
#pragma once
#include "config.cuh"

namespace ptx {

// d += a b, in f32. The type of a and b is config::f16 or config::bf16.
template <int dtype>
__device__ __forceinline__ void Mma(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                    unsigned b1) {
  if constexpr (dtype == config::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// d += a b of 8-bit elements, in f32 (8.9 and later). A 16 x 32: a0 (g, 4t..), a1 (g + 8, 4t..),
// a2 (g, 4t + 16..), a3 (g + 8, 4t + 16..); B 32 x 8: b0 (4t.., g), b1 (4t + 16.., g).
#define ATTN_MMA_F8(TA, TB)                                                 \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." TA "." TB           \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
template <int type_a, int type_b>
__device__ __forceinline__ void MmaF8(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                      unsigned b1) {
  if constexpr (type_a == config::f8e4m3 && type_b == config::f8e4m3) ATTN_MMA_F8("e4m3", "e4m3");
  if constexpr (type_a == config::f8e4m3 && type_b == config::f8e5m2) ATTN_MMA_F8("e4m3", "e5m2");
  if constexpr (type_a == config::f8e5m2 && type_b == config::f8e4m3) ATTN_MMA_F8("e5m2", "e4m3");
  if constexpr (type_a == config::f8e5m2 && type_b == config::f8e5m2) ATTN_MMA_F8("e5m2", "e5m2");
}

// d = a b.
template <int dtype>
__device__ __forceinline__ void MmaFirst(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1) {
  if constexpr (dtype == config::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
  }
}

// d += a b of tf32, in f32. The last 13 bits of an operand are ignored.
__device__ __forceinline__ void MmaTf32(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                        unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d = a b.
__device__ __forceinline__ void MmaTf32First(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// Loads four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l /
// 8.
__device__ __forceinline__ void LoadMatrix(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void LoadMatrixTransposed(unsigned (&r)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

}  // namespace ptx
