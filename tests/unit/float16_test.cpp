// Conversions of 16-bit floats: every f16 value, also where the processor flushes subnormal f32.
#include "core/float16.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace attn {
namespace {

// f32 subnormals read and written as zero while it lives, where the processor can (x86 here).
class FlushSubnormals {
 public:
#if defined(__SSE2__)
  FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

// The value by its definition, in f64, where no f16 is subnormal.
double value_of(unsigned bits) {
  const int exponent = static_cast<int>(bits >> 10 & 31u);
  const double fraction = static_cast<double>(bits & 1023u) / 1024;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return bits & 0x8000u ? -magnitude : magnitude;
}

int wrong_conversions() {
  int wrong = 0;
  for (unsigned bits = 0; bits < 0x10000u; ++bits) {
    const auto f16 = static_cast<std::uint16_t>(bits);
    const float value = core::f16_to_f32(f16);
    if ((bits & 0x7C00u) == 0x7C00u) {  // infinity, NaN
      wrong += (bits & 1023u) ? !std::isnan(value) : !std::isinf(value);
      continue;
    }
    wrong += static_cast<double>(value) != value_of(bits);
    wrong += core::f32_to_f16(value) != f16;
  }
  return wrong;
}

TEST(Float16, EveryValueConvertsThereAndBack) {
  EXPECT_EQ(wrong_conversions(), 0);
}

TEST(Float16, EveryValueConvertsWhereSubnormalsAreFlushed) {
  const FlushSubnormals flush;
  EXPECT_EQ(wrong_conversions(), 0);
}

}  // namespace
}  // namespace attn
