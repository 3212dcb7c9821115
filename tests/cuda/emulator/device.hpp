// What CUDA declares without a header, for translated kernels on the CPU.
#pragma once

#include <math.h>
#include <string.h>

#include "ptx.hpp"

#define __device__
#define __host__
#define __global__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx (emulator::ids->thread)
#define blockIdx (emulator::ids->block)
#define blockDim (emulator::ids->block_dim)
#define gridDim (emulator::ids->grid_dim)

struct uint2 {
  unsigned x, y;
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) {
  return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return C(b) < C(a) ? C(b) : C(a);
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return C(a) < C(b) ? C(b) : C(a);
}
inline unsigned __float_as_uint(float x) {
  return emulator::bits<unsigned>(x);
}
inline float __saturatef(float x) {
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;  // NaN becomes 0
}
inline int __float_as_int(float x) {
  return emulator::bits<int>(x);
}
inline float __uint_as_float(unsigned x) {
  return emulator::bits<float>(x);
}
inline float __int_as_float(int x) {
  return emulator::bits<float>(x);
}
// volatile: the compiler fuses neither into an FMA.
inline float __fmul_rn(float a, float b) {
  volatile float product = a * b;
  return product;
}
inline float __fadd_rn(float a, float b) {
  volatile float sum = a + b;
  return sum;
}
inline void sincospif(float x, float* sine, float* cosine) {
  *sine = static_cast<float>(sin(M_PI * x));
  *cosine = static_cast<float>(cos(M_PI * x));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const emulator::u64 bytes = static_cast<emulator::u64>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned select = selector >> (4 * i) & 0xf;
    unsigned byte = bytes >> (8 * (select & 7)) & 0xff;
    if (select & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __clz(int x) {
  return x != 0 ? __builtin_clz(x) : 32;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<emulator::u64>(a) * b >> 32;
}
template <class T>
T __ldg(const T* pointer) {
  return *pointer;
}
inline unsigned __cvta_generic_to_shared(const void* pointer) {
  return emulator::shared_address(pointer);
}

inline void __syncthreads() {
  emulator::sync_threads();
}
inline int __syncthreads_or(int value) {
  return emulator::sync_threads_vote(emulator::Vote::kOr, value);
}
inline int __syncthreads_and(int value) {
  return emulator::sync_threads_vote(emulator::Vote::kAnd, value);
}
inline int __syncthreads_count(int value) {
  return emulator::sync_threads_vote(emulator::Vote::kCount, value);
}
inline void __syncwarp(unsigned mask = ~0u) {
  emulator::sync_warp(mask);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {
  emulator::poll();
}

namespace emulator {
template <class T>
T shuffle_value(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8);
  u64 word = 0;
  memcpy(&word, &value, sizeof value);
  word = shuffle(mask, word, source);
  memcpy(&value, &word, sizeof value);
  return value;
}
inline int lane() {
  return static_cast<int>(threadIdx.x % 32);
}
inline u64 widen(int value) {
  return static_cast<u64>(static_cast<long long>(value));
}
}  // namespace emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int first = emulator::lane() & ~(width - 1);
  return emulator::shuffle_value(mask, value, first | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int = 32) {
  return emulator::shuffle_value(mask, value, emulator::lane() ^ lanes);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, int delta, int width = 32) {
  const int lane = emulator::lane();
  const int source = lane + delta;
  const bool inside = (source & ~(width - 1)) == (lane & ~(width - 1));
  return emulator::shuffle_value(mask, value, inside ? source : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, int delta, int width = 32) {
  const int lane = emulator::lane();
  const int source = lane - delta;
  return emulator::shuffle_value(mask, value, source >= (lane & ~(width - 1)) ? source : lane);
}
inline unsigned __ballot_sync(unsigned mask, int value) {
  return emulator::ballot(mask, value);
}
inline int __any_sync(unsigned mask, int value) {
  return emulator::ballot(mask, value) != 0;
}
inline int __all_sync(unsigned mask, int value) {
  return emulator::ballot(mask, !value) == 0;
}
inline int __reduce_min_sync(unsigned mask, int value) {
  return static_cast<int>(
      emulator::reduce(mask, emulator::widen(value), [](emulator::u64 a, emulator::u64 b) {
        return static_cast<long long>(a) < static_cast<long long>(b) ? a : b;
      }));
}
inline int __reduce_max_sync(unsigned mask, int value) {
  return static_cast<int>(
      emulator::reduce(mask, emulator::widen(value), [](emulator::u64 a, emulator::u64 b) {
        return static_cast<long long>(a) > static_cast<long long>(b) ? a : b;
      }));
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return static_cast<int>(emulator::reduce(mask, emulator::widen(value),
                                           [](emulator::u64 a, emulator::u64 b) { return a + b; }));
}

// Fibers of one thread: a read and a write are atomic as they are.
template <class T, class U>
T atomicAdd(T* pointer, U value) {
  const T old = *pointer;
  *pointer = old + static_cast<T>(value);
  return old;
}
template <class T, class U>
T atomicMax(T* pointer, U value) {
  const T old = *pointer;
  if (old < static_cast<T>(value)) *pointer = static_cast<T>(value);
  return old;
}
template <class T, class U>
T atomicMin(T* pointer, U value) {
  const T old = *pointer;
  if (static_cast<T>(value) < old) *pointer = static_cast<T>(value);
  return old;
}
template <class T, class U>
T atomicExch(T* pointer, U value) {
  const T old = *pointer;
  *pointer = static_cast<T>(value);
  return old;
}
template <class T, class U, class V>
T atomicCAS(T* pointer, U expected, V value) {
  const T old = *pointer;
  if (old == static_cast<T>(expected)) *pointer = static_cast<T>(value);
  return old;
}
inline unsigned atomicInc(unsigned* pointer, unsigned limit) {
  const unsigned old = *pointer;
  *pointer = old >= limit ? 0 : old + 1;
  return old;
}
