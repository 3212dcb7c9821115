// Products of a few rows with a bf16 cache (tile_ops/bf16_decode.hpp) against plain loops.
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "core/float16.hpp"

namespace attn::cpu {
namespace {

constexpr std::int64_t kKeys = 32;
constexpr std::int64_t kMostDim = 128;

// A cache whose rows are 3 elements further apart than they are long, a query tile, P and O.
struct Decode {
  std::vector<Bf16Bits> cache = std::vector<Bf16Bits>(kKeys * (kMostDim + 3));
  std::vector<const char*> rows;
  std::vector<Bf16Bits> q = std::vector<Bf16Bits>(kMostDecodeRows * kMostDim);
  std::vector<float> p = std::vector<float>(kMostDecodeRows * kKeys);
  struct alignas(64) Rows {
    float o[kMostDecodeRows * kMostDim];
  } sums;
  std::int64_t ahead = 0;

  Decode() {
    std::mt19937 random(1);
    std::normal_distribution<float> draw;
    for (Bf16Bits& value : cache) value = core::f32_to_bf16(draw(random));
    for (Bf16Bits& value : q) value = core::f32_to_bf16(draw(random));
    for (float& value : p) value = std::abs(draw(random));
    for (float& value : sums.o) value = draw(random);
    for (std::int64_t j = 0; j < kKeys; ++j) {
      rows.push_back(reinterpret_cast<const char*>(cache.data() + j * (kMostDim + 3)));
    }
  }
  [[nodiscard]] float value(std::int64_t key, std::int64_t c) const {
    return core::bf16_to_f32(cache[static_cast<std::size_t>(key * (kMostDim + 3) + c)]);
  }
  [[nodiscard]] Bf16Ahead counter() {
    return {[](void* count, std::int64_t keys) { *static_cast<std::int64_t*>(count) += keys; },
            &ahead};
  }
};

TEST(Bf16Decode, ScoresOfEachNumberOfRows) {
  if (bf16_dot_engine() == nullptr) GTEST_SKIP() << "no AVX-512 with VDPBF16PS";
  Decode x;
  for (const std::int64_t dim : {32, 64, 96, 128}) {
    for (std::int64_t rows = 1; rows <= kMostDecodeRows; ++rows) {
      std::vector<float> s(static_cast<std::size_t>(rows * kKeys), NAN);
      x.ahead = 0;
      dot_rows_avx512({x.q.data(), kMostDim, rows, x.rows.data(), kKeys, dim, s.data(), kKeys},
                      x.counter());
      EXPECT_EQ(x.ahead, kKeys);
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t j = 0; j < kKeys; ++j) {
          double expected = 0;
          double size = 0;
          for (std::int64_t c = 0; c < dim; ++c) {
            const auto at = static_cast<std::size_t>(r * kMostDim + c);
            const double product = static_cast<double>(core::bf16_to_f32(x.q[at])) * x.value(j, c);
            expected += product;
            size += std::abs(product);
          }
          // Each of the dim / 2 sums of a pair and the reduction round.
          const double most = size * static_cast<double>(dim) * 0x1p-24;
          ASSERT_NEAR(s[static_cast<std::size_t>(r * kKeys + j)], expected, most)
              << dim << " " << r;
        }
      }
    }
  }
}

TEST(Bf16Decode, ValuesOfEachNumberOfRowsAndKeys) {
  if (bf16_dot_engine() == nullptr) GTEST_SKIP() << "no AVX-512 with VDPBF16PS";
  Decode x;
  for (const std::int64_t cols : {32, 64, 96, 128}) {
    for (std::int64_t rows = 1; rows <= kMostDecodeRows; ++rows) {
      for (const std::int64_t keys : {1, 2, 15, 16, 17, 31, 32}) {
        Decode::Rows o = x.sums;
        add_values_avx512({x.p.data(), kKeys, rows, x.rows.data(), keys, cols, o.o, kMostDim},
                          x.counter());
        for (std::int64_t r = 0; r < rows; ++r) {
          // The sums that it adds to are in the order of o too.
          float before[kMostDim];
          std::copy_n(x.sums.o + r * kMostDim, kMostDim, before);
          Decode::Rows ordered{};
          std::copy_n(before, cols, ordered.o);
          order_values_avx512(ordered.o, cols);
          order_values_avx512(o.o + r * kMostDim, cols);
          for (std::int64_t c = 0; c < cols; ++c) {
            double expected = ordered.o[c];
            double size = std::abs(expected);
            for (std::int64_t j = 0; j < keys; ++j) {
              const double product =
                  static_cast<double>(x.p[static_cast<std::size_t>(r * kKeys + j)]) * x.value(j, c);
              expected += product;
              size += std::abs(product);
            }
            // P has 8 bits.
            ASSERT_NEAR(o.o[r * kMostDim + c], expected, size * 0x1.1p-8)
                << cols << " " << rows << " " << keys;
          }
        }
      }
    }
  }
}

TEST(Bf16Decode, RowsPastTheLastKeyAreNotRead) {
  if (bf16_dot_engine() == nullptr) GTEST_SKIP() << "no AVX-512 with VDPBF16PS";
  Decode x;
  const Bf16Bits nan = core::f32_to_bf16(std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t c = 0; c < 32; ++c)
    x.cache[static_cast<std::size_t>(5 * (kMostDim + 3) + c)] = nan;
  Decode::Rows o{};
  add_values_avx512({x.p.data(), kKeys, 2, x.rows.data(), 5, 32, o.o, 32}, x.counter());
  for (std::int64_t n = 0; n < 64; ++n) EXPECT_TRUE(std::isfinite(o.o[n])) << n;
}

}  // namespace
}  // namespace attn::cpu
