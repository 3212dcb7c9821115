// Bf16Engine::gradient and what stores its sums, for each engine that this processor has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "core/float16.hpp"
#include "cpu/kernels/kernels.hpp"
#include "tests/unit/bf16_engines.hpp"

namespace attn::cpu {
namespace {

// P and dS with softcap. Rows: products far below the cap; some beyond it; a NaN. A second call has
// a cap and a scale that are too far apart for the short polynomial. One pair of each row is
// hidden.
TEST_F(Bf16Engines, GradientWithSoftcap) {
  constexpr std::int64_t kCols = 32, kRows = 5;
  const std::vector<std::uint32_t> words(kRows, ~(1U << 9));
  for (const Bf16Engine* engine : engines()) {
    if (!engine->caps) continue;
    SCOPED_TRACE(engine->name);
    for (const float cap : {20.0F, 1e-4F}) {
      const float scale = cap == 20.0F ? 0.25F : 1e2F;
      std::vector<float> s(kPackedDepth * kCols), dp(kPackedDepth * kCols);
      for (std::int64_t n = 0; n < kRows * kCols; ++n) {
        const auto at = static_cast<std::size_t>(n);
        s[at] = (static_cast<float>(n % 37) - 20.0F) * (n < 2 * kCols ? 2 : 9);
        dp[at] = static_cast<float>(n % 11) - 4.0F;
      }
      s[4 * kCols + 5] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> lse(kPackedDepth, 0.9F * cap), delta(kPackedDepth, 0.5F);
      std::vector<Bf16Bits> p(2 * kPackedBlock), ds(2 * kPackedBlock), rows(kPackedDepth * kCols);
      engine->gradient({.s = s.data(),
                        .dp = dp.data(),
                        .count = kRows,
                        .cols = kCols,
                        .scale = scale,
                        .addend = {},
                        .lse = lse.data(),
                        .delta = delta.data(),
                        .tanh = nullptr,
                        .softcap = cap,
                        .dropout = {},
                        .visible = {words.data(), 1},
                        .p = p.data(),
                        .ds = ds.data(),
                        .packed_cols = kPackedBlock,
                        .ds_rows = rows.data(),
                        .ds_f32 = nullptr,
                        .dbias = {}});
      for (std::int64_t n = 0; n < kRows * kCols; ++n) {
        const auto at = static_cast<std::size_t>(n);
        const double tanh = std::tanh(double{scale} * s[at] / cap);
        const double prob = n % kCols == 9 ? 0.0 : std::exp(cap * tanh - 0.9 * cap);
        const double want = prob * (dp[at] - 0.5) * (1.0 - tanh * tanh);
        const float got = core::bf16_to_f32(rows[at]);
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(got)) << n;
        } else {
          // tanh is off by 1.5e-7 of 1, so the derivative by 3e-7.
          EXPECT_NEAR(got, want, std::fabs(want) * 0x1p-8 + prob * std::fabs(dp[at] - 0.5) * 1e-6)
              << n;
        }
      }
    }
  }
}

// Keys of a tile are visited in the order of columns that `gradient` writes. Each key's sum is the
// number of the key then.
TEST_F(Bf16Engines, StoresSumsInTheOrderOfGradient) {
  constexpr std::int64_t kKeys = kPackedDepth;
  constexpr std::int64_t kFrom = kKeys + 16;
  constexpr std::int64_t kDim = 16;
  constexpr std::int64_t kTo = kDim + 4;
  for (const Bf16Engine* engine : engines()) {
    // One row of P: P = 2^0 / (key + 1) by scores of -log(key + 1); the packed row has its order.
    std::vector<float> s(kPackedDepth * kKeys), dp(kPackedDepth * kKeys, 0.0F);
    for (std::int64_t j = 0; j < kKeys; ++j) {
      s[static_cast<std::size_t>(j)] = -std::log(static_cast<float>(j + 1));
    }
    const float zero[kPackedDepth] = {};
    std::vector<Bf16Bits> p(2 * kPackedBlock), ds(2 * kPackedBlock), rows(kPackedDepth * kKeys);
    engine->gradient({.s = s.data(),
                      .dp = dp.data(),
                      .count = 1,
                      .cols = kKeys,
                      .scale = 1.0F,
                      .addend = {},
                      .lse = zero,
                      .delta = zero,
                      .tanh = nullptr,
                      .dropout = {},
                      .visible = {},
                      .p = p.data(),
                      .ds = ds.data(),
                      .packed_cols = kPackedBlock,
                      .ds_rows = rows.data(),
                      .ds_f32 = nullptr,
                      .dbias = {}});
    std::vector<Bf16Bits> a(kBf16Rows * kPackedDepth, 0);
    for (std::int64_t r = 0; r < kBf16Rows; ++r) {  // C is row 0 of P
      a[static_cast<std::size_t>(r * kPackedDepth)] = 0x3F80;
    }
    alignas(64) float sums[kDim * 2 * kFrom] = {};
    engine->begin();
    engine->multiply({.a = a.data(),
                      .lda = kPackedDepth,
                      .b = p.data(),
                      .b_depth = kPackedBlock,
                      .b_cols = kPackedBlock,
                      .c = sums + 16,
                      .ldc = kFrom,
                      .rows = kBf16Rows,
                      .cols = kKeys,
                      .depth = kPackedDepth,
                      .accumulate = false});
    engine->end();
    std::vector<float> to(kKeys * kTo, -1.0F);
    engine->transpose_sums(sums + 16, kFrom, to.data(), kTo);
    for (std::int64_t j = 0; j < kKeys; ++j) {
      for (std::int64_t c = 0; c < kTo; ++c) {
        const float want = c < kDim ? 1.0F / static_cast<float>(j + 1) : -1.0F;
        EXPECT_NEAR(to[static_cast<std::size_t>(j * kTo + c)], want, want > 0 ? want / 128 : 0)
            << j << " " << c;
      }
    }
    if (engine->store_sums == nullptr) continue;
    std::vector<Bf16Bits> stored(kKeys * kTo, 7);
    char* address[kKeys] = {};
    for (std::int64_t j = 1; j < kKeys; ++j) {
      address[j] = reinterpret_cast<char*>(stored.data() + j * kTo);
    }
    engine->store_sums(sums + 16, kFrom, 2.0F, kDim - 1, address);
    for (std::int64_t j = 0; j < kKeys; ++j) {
      for (std::int64_t c = 0; c < kTo; ++c) {
        const Bf16Bits got = stored[static_cast<std::size_t>(j * kTo + c)];
        if (j == 0 || c >= kDim - 1) {
          EXPECT_EQ(got, 7) << j << " " << c;
        } else {
          const float want = 2 * to[static_cast<std::size_t>(j * kTo + c)];
          EXPECT_EQ(got, core::f32_to_bf16(want)) << j << " " << c;
        }
      }
    }
  }
}

// dS is stored as dbias, only where keys exist, or added to sums that the last sequence rounds.
TEST_F(Bf16Engines, GradientWritesDbias) {
  constexpr std::int64_t kKeys = 64;
  constexpr std::int64_t kRows = 3;
  constexpr Bf16Bits kUntouched = 0x7FC1;
  for (const Bf16Engine* engine : {amx_bf16_engine(), bf16_dot_engine()}) {
    if (engine == nullptr) continue;
    ASSERT_TRUE(engine->writes_dbias);
    std::vector<float> s(kPackedDepth * kKeys, 0.0F), dp(s.size());  // P is 1, so dS is dP
    for (std::size_t n = 0; n < dp.size(); ++n) dp[n] = static_cast<float>(n % 250) + 1.0F;
    const float zero[kPackedDepth] = {};
    std::vector<Bf16Bits> p(4 * kPackedBlock), ds(4 * kPackedBlock), rows(kPackedDepth * kKeys);
    std::vector<float> sums(kRows * kKeys, 1e9F);
    alignas(64) Bf16Bits out[kRows * kKeys];
    char* addresses[kPackedDepth] = {};
    for (std::int64_t r = 0; r < kRows; ++r)
      addresses[r] = reinterpret_cast<char*>(out + r * kKeys);
    const auto written = [&](const Bf16Dbias& dbias) {
      std::fill_n(out, kRows * kKeys, kUntouched);
      engine->gradient({.s = s.data(),
                        .dp = dp.data(),
                        .count = kRows,
                        .cols = kKeys,
                        .scale = 1.0F,
                        .addend = {},
                        .lse = zero,
                        .delta = zero,
                        .tanh = nullptr,
                        .dropout = {},
                        .visible = {},
                        .p = p.data(),
                        .ds = ds.data(),
                        .packed_cols = kPackedBlock,
                        .ds_rows = rows.data(),
                        .ds_f32 = nullptr,
                        .dbias = dbias});
      engine->begin();
      engine->end();
      return std::vector<Bf16Bits>(out, out + kRows * kKeys);
    };
    Bf16Dbias to;
    to.rows = addresses;
    to.keys = kKeys;
    const std::vector<Bf16Bits> all = written(to);
    EXPECT_TRUE(std::equal(all.begin(), all.end(), rows.begin()));
    EXPECT_EQ(all[63], 0x4280);  // 64
    to.stream = true;
    EXPECT_EQ(written(to), all);
    to.keys = 40;
    const std::vector<Bf16Bits> some = written(to);
    for (std::size_t n = 0; n < some.size(); ++n) {
      EXPECT_EQ(some[n], n % kKeys < 40 ? all[n] : kUntouched) << n;
    }
    to.keys = kKeys;
    to.sums = sums.data();
    to.row = kKeys;
    const std::vector<Bf16Bits> none(kRows * kKeys, kUntouched);
    for (const bool first : {true, false, false}) {
      to.first = first;
      EXPECT_EQ(written(to), none);
    }
    to.last = true;
    const std::vector<Bf16Bits> total = written(to);  // 4 dS: the exponent grows by 2
    for (std::size_t n = 0; n < total.size(); ++n) EXPECT_EQ(total[n], all[n] + 2 * 128) << n;
  }
}

}  // namespace
}  // namespace attn::cpu
