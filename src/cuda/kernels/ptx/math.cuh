// Arithmetic: one function per instruction.
#pragma once
#include "config.cuh"

namespace ptx {

// 2^x with an error of at most 2 ulp; subnormal results are flushed to 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// log2(x) with an absolute error of at most 2^-22 or a relative error of at most 2 ulp.
__device__ __forceinline__ float Log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / x with an error of at most 1 ulp.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Minimum and maximum that return NaN if either operand is NaN.
__device__ __forceinline__ float MinKeepNan(float x, float y) {
  float z;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}
__device__ __forceinline__ float MaxKeepNan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// Rounds two f32 to 16-bit elements; `low` comes first in memory.
template <int dtype>
__device__ __forceinline__ unsigned Pack(float low, float high) {
  unsigned pair;
  if constexpr (dtype == config::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}
// Rounds four f32 to e4m3; larger values saturate to the largest finite one. `a` comes first in
// memory.
__device__ __forceinline__ unsigned PackE4m3(float a, float b, float c, float d) {
  unsigned four;
  asm("{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h}; }"
      : "=r"(four)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
}
// Selects four of the eight bytes of x (0 to 3) and y (4 to 7); each nibble of `selector` names
// one.
__device__ __forceinline__ unsigned PermuteBytes(unsigned x, unsigned y, unsigned selector) {
  unsigned four;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(four) : "r"(x), "r"(y), "r"(selector));
  return four;
}
// The two elements of a pair as f32.
template <int dtype>
__device__ __forceinline__ float Low(unsigned pair) {
  if constexpr (dtype == config::bf16) return __uint_as_float(pair << 16);
  float value;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(value) : "r"(pair));
  return value;
}
template <int dtype>
__device__ __forceinline__ float High(unsigned pair) {
  if constexpr (dtype == config::bf16) return __uint_as_float(pair & 0xffff0000u);
  float value;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(value) : "r"(pair));
  return value;
}

// f16: subtracts each element of the pair y from the low element of x; clamps the results to [0,
// 1].
__device__ __forceinline__ unsigned SubtractSaturated(unsigned x, unsigned y) {
  unsigned z;
  asm("{ .reg .b16 l, h; .reg .b32 x; mov.b32 {l, h}, %1; mov.b32 x, {l, l};\n"
      "sub.sat.f16x2 %0, x, %2; }"
      : "=r"(z)
      : "r"(x), "r"(y));
  return z;
}
// Subtracts f16 pairs.
__device__ __forceinline__ unsigned SubtractF16(unsigned x, unsigned y) {
  unsigned z;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
// Multiplies pairs of 16-bit elements. Compute capability 8.0 has no bf16 multiplication, only fma;
// adding -0 changes no product.
template <int dtype>
__device__ __forceinline__ unsigned MultiplyPair(unsigned x, unsigned y) {
  unsigned z;
  if constexpr (dtype == config::bf16) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "r"(0x80008000u));
  } else {
    asm("mul.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  }
  return z;
}

// Converts four e4m3 to f16: bytes 0 and 1 to pairs[0], bytes 2 and 3 to pairs[1]. 8.9 and later
// have an instruction for two elements.
__device__ __forceinline__ void UnpackE4m3(unsigned word, unsigned (&pairs)[2]) {
#if __CUDA_ARCH__ >= 890
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(word));
#else
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    // Moves the fields of e4m3 into f16. The exponents are then too small by 8, the difference of
    // the biases; multiplying by 2^8 corrects this, also for subnormals. The code of NaN is all
    // ones: it sets the sign bit in `nan`, from which nan - (nan >> 5) makes the exponent of a NaN.
    const unsigned bits = __byte_perm(word, 0, n == 0 ? 0x1404 : 0x3424);
    const unsigned shifted = (bits & 0x80008000u) | (bits & 0x7f007f00u) >> 1;
    const unsigned nan = ((bits & 0x7f007f00u) + 0x01000100u) & 0x80008000u;
    pairs[n] = MultiplyPair<config::f16>(shifted, 0x5c005c00u) | (nan - (nan >> 5));
  }
#endif
}

// Returns the 64-bit product as two words, the low one in x.
__device__ __forceinline__ uint2 MultiplyWide(unsigned x, unsigned y) {
  uint2 z;
  asm("{ .reg .b64 z; mul.wide.u32 z, %2, %3; mov.b64 {%0, %1}, z; }"
      : "=r"(z.x), "=r"(z.y)
      : "r"(x), "r"(y));
  return z;
}
}  // namespace ptx
