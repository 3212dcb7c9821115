// Detects AVX-512's bf16 instructions with CPUID. __builtin_cpu_supports() relies on the compiler's
// run-time library, and the one of zig, which builds the wheels, always returns 0. This is not in
// bf16_avx512.cpp because that file is compiled for AVX-512.
#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_avx512.hpp"

#if HWY_ARCH_X86_64
#include <cpuid.h>

namespace attn::cpu {
namespace {

struct Registers {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
};

// All zero where the processor has no such leaf.
Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

// XCR0: the register state that the operating system saves at a context switch.
std::uint32_t saved_state() {
  constexpr unsigned kOsXsave = 1U << 27;
  if ((cpuid(1, 0).ecx & kOsXsave) == 0) return 0;
  std::uint32_t low = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

bool is_amd() {
  const Registers vendor = cpuid(0, 0);
  return vendor.ebx == signature_AMD_ebx && vendor.ecx == signature_AMD_ecx &&
         vendor.edx == signature_AMD_edx;
}

bool has_avx512_bf16() {
  constexpr std::uint32_t kSaved = 0xE6;  // SSE, AVX, mask registers, and both halves of ZMM
  constexpr unsigned kF = 1U << 16, kDq = 1U << 17, kBw = 1U << 30, kVl = 1U << 31;
  constexpr unsigned kParts = kF | kDq | kBw | kVl;
  constexpr unsigned kBf16 = 1U << 5;
  return (saved_state() & kSaved) == kSaved && (cpuid(7, 0).ebx & kParts) == kParts &&
         (cpuid(7, 1).eax & kBf16) != 0;
}

bool bf16_dot_is_fast() {
  return bf16_dot_engine() != nullptr && is_amd();
}

}  // namespace attn::cpu

#else

namespace attn::cpu {
bool is_amd() {
  return false;
}
bool bf16_dot_is_fast() {
  return false;
}
}  // namespace attn::cpu

#endif
