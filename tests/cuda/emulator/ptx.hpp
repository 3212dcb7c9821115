// What translated kernels call in place of PTX instructions. translate.py writes these calls.
// Addresses of shared memory are 32 bits, as in PTX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace emulator {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = unsigned long long;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct ThreadIds {
  Dim3 thread, block, block_dim, grid_dim;
};
// The ids of the fiber that runs.
extern ThreadIds* ids;

// What cuTensorMapEncodeTiled writes into a CUtensorMap (128 bytes).
struct TensorMap {
  u64 address;
  u64 dims[5];
  u64 strides[4];  // in bytes, from the second dimension on
  u32 box[5];
  u8 rank, type, swizzle, element_bytes;
};
static_assert(sizeof(TensorMap) <= 128);

// Prints the message and where the fiber is, and ends the process with status 97.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Shared memory.
void* shared_static(const void* key, std::size_t bytes, std::size_t alignment);
unsigned char* shared_dynamic();
u32 shared_address(const void* pointer);
// The host's pointer for an access of the fiber that runs.
u8* access(u32 address, u32 bytes, bool write);
template <class T>
T load_shared(u32 address) {
  if (address % sizeof(T) != 0) fail("misaligned shared load %#x", address);
  return *reinterpret_cast<T*>(access(address, sizeof(T), false));
}
template <class T>
void store_shared(u32 address, T value) {
  if (address % sizeof(T) != 0) fail("misaligned shared store %#x", address);
  *reinterpret_cast<T*>(access(address, sizeof(T), true)) = value;
}

// Clusters: addresses in the shared memory of another block are those of map_shared().
u32 cluster_rank();
u32 cluster_blocks();
u32 map_shared(u32 address, u32 rank);
void sync_cluster();
void store_async(u32 to, const void* values, u32 bytes, u32 barrier);

// Barriers.
void mbarrier_init(u32 address, u32 count);
void mbarrier_arrive(u32 address, u32 count);
void mbarrier_expect(u32 address, u32 bytes, bool arrive);
bool mbarrier_wait(u32 address, u32 parity);
void barrier_sync(u32 id, u32 threads);
void barrier_arrive(u32 id, u32 threads);
void sync_threads();
void set_registers(u32 registers);
enum class Vote { kOr, kAnd, kCount };
int sync_threads_vote(Vote vote, int value);

// Warp collectives.
void sync_warp(u32 mask);
u64 shuffle(u32 mask, u64 value, int source);
u32 ballot(u32 mask, bool value);
u64 reduce(u32 mask, u64 value, u64 (*combine)(u64, u64));
void ldmatrix(u32** registers, int count, bool transposed, u32 address);
void stmatrix(const u32* registers, int count, bool transposed, u32 address);
void mma_m16n8k16(bool bf16, float** d, const u32* a, const u32* b, const float* c);
void mma_m16n8k32(bool e5m2_a, bool e5m2_b, float** d, const u32* a, const u32* b, const float* c);
void mma_m16n8k8_tf32(float** d, const u32* a, const u32* b, const float* c);

// Elements of products. The 8-bit ones come last.
enum class Element : u8 { f16, bf16, e4m3, e5m2 };

// wgmma m64nNk16, or k32 of 8-bit elements: A from a descriptor or from four registers a lane, B
// from a descriptor.
struct Wgmma {
  int n;
  Element type_a, type_b;
  u64 a, b;
  bool accumulate;
  float scale_a, scale_b;
  int transpose_a, transpose_b;
};
void wgmma(const Wgmma& instruction, float** d, const u32* a_registers);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int in_flight);

// Bulk and tensor copies.
void tma_load(u32 to, u64 map, const int* coordinates, int rank, u32 barrier);
void tma_store(u64 map, u32 from, const int* coordinates, int rank, bool add);
void bulk_load(u32 to, u64 from, u32 bytes, u32 barrier);
void bulk_store(u64 to, u32 from, u32 bytes, bool add);
void bulk_commit();
void bulk_wait(int in_flight, bool read);
void fence_proxy_async();

// cp.async copies at once: its commits and waits do nothing.
void cp_async(u32 to, u64 from, u32 bytes, u32 bytes_read);

// A poll of global memory: other fibers run.
void poll();
u64 timer();

// Arithmetic.
float ex2(float x);
float lg2(float x);
float rcp(float x);
float tanh_approx(float x);
float min_nan(float x, float y);
float max_nan(float x, float y);
u32 pack_bf16(float high, float low);
u32 pack_f16(float high, float low);
u16 pack_e4m3(float high, float low);
u32 permute_bytes(u32 x, u32 y, u32 selector);
float f16_to_f32(u16 x);
u32 round_to_tf32(float x);
u32 fma_bf16x2(u32 a, u32 b, u32 c);
u32 mul_f16x2(u32 a, u32 b);
u32 sub_f16x2(u32 a, u32 b);
u32 sub_sat_f16x2(u32 a, u32 b);
u32 e4m3x2_to_f16x2(u16 x);

template <class To, class From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

// A kernel has one parameter.
template <class P>
void call_kernel(void (*kernel)(P), void* parameter) {
  kernel(*static_cast<std::remove_cv_t<P>*>(parameter));
}
template <class P>
constexpr unsigned parameter_bytes(void (*)(P)) {
  return sizeof(P);
}

}  // namespace emulator
