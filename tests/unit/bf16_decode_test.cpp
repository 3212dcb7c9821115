// Products of a few rows with a bf16 cache (tile_ops/bf16_decode.hpp) against plain loops, on each
// engine that the machine has.
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <new>
#include <random>
#include <vector>

#include "core/float16.hpp"

namespace attn::cpu {
namespace {

constexpr std::int64_t kKeys = 96;
constexpr std::int64_t kMostDim = 128;
constexpr std::int64_t kRow = kMostDim + 3;  // elements between rows of the cache

// A cache, a query tile, P and O.
struct Decode {
  std::vector<Bf16Bits> cache = std::vector<Bf16Bits>(kKeys * kRow);
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
    for (std::int64_t j = 0; j < kKeys; ++j) rows.push_back(row(j));
    // Rows [48, 64) are in reverse order. Two others change places, as where a page ends.
    std::reverse(rows.begin() + 48, rows.begin() + 64);
    std::swap(rows[70], rows[80]);
  }
  [[nodiscard]] const char* row(std::int64_t j) const {
    return reinterpret_cast<const char*>(cache.data() + j * kRow);
  }
  [[nodiscard]] float value(std::int64_t key, std::int64_t c) const {
    const auto* row = reinterpret_cast<const Bf16Bits*>(rows[static_cast<std::size_t>(key)]);
    return core::bf16_to_f32(row[c]);
  }
  [[nodiscard]] Bf16Ahead counter() {
    return {[](void* count, std::int64_t keys) {
              EXPECT_EQ(keys % 2, 0);
              *static_cast<std::int64_t*>(count) += keys;
            },
            &ahead};
  }
};

class Bf16DecodeOf : public testing::TestWithParam<const Bf16Decode* (*)()> {
 protected:
  void SetUp() override {
    if (GetParam()() == nullptr) GTEST_SKIP() << "the processor has no such instructions";
    decode = GetParam()();
  }
  const Bf16Decode* decode = nullptr;
};

void expect_scores(const Bf16Decode& decode, Decode& x, std::int64_t rows, std::int64_t dim) {
  std::vector<Bf16Bits> q(static_cast<std::size_t>(rows * dim));
  for (std::int64_t r = 0; r < rows; ++r)
    std::copy_n(x.q.data() + r * kMostDim, dim, q.data() + r * dim);
  std::vector<Bf16Bits> packed(static_cast<std::size_t>(kMostDecodeRows * dim), 0x7FC0);  // NaN
  decode.pack_queries(q.data(), rows, dim, packed.data());
  std::vector<float> s(static_cast<std::size_t>(rows * kKeys), NAN);
  x.ahead = 0;
  decode.begin(rows);
  decode.dot_rows({packed.data(), rows, x.rows.data(), kKeys, dim, s.data(), kKeys}, x.counter());
  decode.end();
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
      ASSERT_NEAR(s[static_cast<std::size_t>(r * kKeys + j)], expected, most) << dim << " " << r;
    }
  }
}

TEST_P(Bf16DecodeOf, ScoresOfEachNumberOfRows) {
  Decode x;
  for (const std::int64_t dim : {32, 64, 96, 128}) {
    for (std::int64_t rows = 1; rows <= kMostDecodeRows; ++rows) {
      expect_scores(*decode, x, rows, dim);
    }
  }
}

// The sums that it adds to are in the order of o too.
void expect_values(const Bf16Decode& decode, Decode& x, std::int64_t rows, std::int64_t keys,
                   std::int64_t cols) {
  Decode::Rows o = x.sums;
  x.ahead = 0;
  decode.begin(rows);
  decode.add_values({x.p.data(), kKeys, rows, x.rows.data(), keys, cols, o.o, kMostDim},
                    x.counter());
  decode.end();
  EXPECT_EQ(x.ahead, (keys + 15) / 16 * 16);
  for (std::int64_t r = 0; r < rows; ++r) {
    Decode::Rows ordered{};
    std::copy_n(x.sums.o + r * kMostDim, cols, ordered.o);
    decode.order_values(ordered.o, cols);
    decode.order_values(o.o + r * kMostDim, cols);
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
  for (std::int64_t n = rows * kMostDim; n < kMostDecodeRows * kMostDim; ++n) {
    ASSERT_EQ(o.o[n], x.sums.o[n]) << "a row that the call does not have";
  }
}

TEST_P(Bf16DecodeOf, ValuesOfEachNumberOfRowsAndKeys) {
  Decode x;
  for (const std::int64_t cols : {32, 64, 96, 128}) {
    for (std::int64_t rows = 1; rows <= kMostDecodeRows; ++rows) {
      for (const std::int64_t keys : {1, 2, 15, 16, 17, 31, 32, 65, 96}) {
        expect_values(*decode, x, rows, keys, cols);
      }
    }
  }
}

TEST_P(Bf16DecodeOf, RowsPastTheLastKeyAreNotRead) {
  Decode x;
  const Bf16Bits nan = core::f32_to_bf16(std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t c = 0; c < 32; ++c) x.cache[static_cast<std::size_t>(5 * kRow + c)] = nan;
  Decode::Rows o{};
  decode->begin(2);
  decode->add_values({x.p.data(), kKeys, 2, x.rows.data(), 5, 32, o.o, 32}, x.counter());
  decode->end();
  for (std::int64_t n = 0; n < 64; ++n) EXPECT_TRUE(std::isfinite(o.o[n])) << n;
}

TEST_P(Bf16DecodeOf, AnInfiniteValueAffectsItsColumnAlone) {
  Decode x;
  x.cache[static_cast<std::size_t>(5 * kRow + 9)] =
      core::f32_to_bf16(std::numeric_limits<float>::infinity());
  Decode::Rows o{};
  decode->begin(2);
  decode->add_values({x.p.data(), kKeys, 2, x.rows.data(), kKeys, 32, o.o, 32}, x.counter());
  decode->end();
  for (std::int64_t r = 0; r < 2; ++r) {
    decode->order_values(o.o + 32 * r, 32);
    for (std::int64_t c = 0; c < 32; ++c) EXPECT_EQ(std::isfinite(o.o[32 * r + c]), c != 9) << c;
  }
}

// q, K, a running maximum and a running sum -> those after the tile, and P of the tile.
struct SoftmaxRow {
  double most, sum, factor;  // factor: of the earlier sums
  std::vector<double> p;
};
SoftmaxRow softmax_row(const Decode& x, std::int64_t r, std::int64_t keys, std::int64_t dim,
                       double scale, double before_max, double before_sum) {
  SoftmaxRow to{before_max, 0, 0, {}};
  for (std::int64_t j = 0; j < keys; ++j) {
    double score = 0;
    for (std::int64_t c = 0; c < dim; ++c) {
      score +=
          static_cast<double>(core::bf16_to_f32(x.q[static_cast<std::size_t>(r * kMostDim + c)])) *
          x.value(j, c);
    }
    to.p.push_back(scale * score);
    to.most = std::max(to.most, to.p.back());
  }
  to.factor = std::exp(before_max - to.most);
  to.sum = to.factor * before_sum;
  for (double& p : to.p) to.sum += p = std::exp(p - to.most);
  return to;
}

void expect_attend(const Bf16Decode& decode, const Decode& x, std::int64_t rows, std::int64_t keys,
                   std::int64_t dim) {
  constexpr float kScale = 0.125F;
  std::vector<Bf16Bits> packed(static_cast<std::size_t>(kMostDecodeRows * dim));
  std::vector<Bf16Bits> q(static_cast<std::size_t>(rows * dim));
  for (std::int64_t r = 0; r < rows; ++r)
    std::copy_n(x.q.data() + r * kMostDim, dim, q.data() + r * dim);
  decode.pack_queries(q.data(), rows, dim, packed.data());
  // The first row has seen nothing, the others have maxima below and above those of the tile.
  float row_max[kMostDecodeRows];
  float row_sum[kMostDecodeRows];
  float max_before[kMostDecodeRows];
  float sum_before[kMostDecodeRows];
  Decode::Rows o = x.sums;
  for (std::int64_t r = 0; r < rows; ++r) {
    row_max[r] = r == 0 ? -INFINITY : static_cast<float>(r % 2) * 8 - 4;
    row_sum[r] = r == 0 ? 0.0F : static_cast<float>(r);
    if (r == 0) std::fill_n(o.o, kMostDim, 0.0F);
  }
  const Decode::Rows before = o;
  std::copy_n(row_max, rows, max_before);
  std::copy_n(row_sum, rows, sum_before);
  decode.begin(rows);
  decode.attend({.scores = {packed.data(), rows, x.rows.data(), keys, dim, nullptr, 0},
                 .values = {nullptr, 0, rows, x.rows.data(), keys, dim, o.o, kMostDim},
                 .scale = kScale,
                 .row_max = row_max,
                 .row_sum = row_sum},
                {[](void*, std::int64_t) {}, nullptr});
  decode.end();
  for (std::int64_t r = 0; r < rows; ++r) {
    const SoftmaxRow expected = softmax_row(x, r, keys, dim, kScale, max_before[r], sum_before[r]);
    ASSERT_NEAR(row_max[r], expected.most, 1e-5) << rows << " " << keys;
    ASSERT_NEAR(row_sum[r], expected.sum, 1e-5 * expected.sum) << rows << " " << keys;
    Decode::Rows ordered = before;
    decode.order_values(ordered.o + r * kMostDim, dim);
    decode.order_values(o.o + r * kMostDim, dim);
    const double* const p = expected.p.data();
    for (std::int64_t c = 0; c < dim; ++c) {
      double sum = expected.factor * ordered.o[r * kMostDim + c];
      double size = std::abs(sum);
      for (std::int64_t j = 0; j < keys; ++j) {
        sum += p[j] * x.value(j, c);
        size += std::abs(p[j] * x.value(j, c));
      }
      ASSERT_NEAR(o.o[r * kMostDim + c], sum, size * 0x1.1p-8) << rows << " " << keys;
    }
  }
}

TEST_P(Bf16DecodeOf, AttendIsAStepOfTheOnlineSoftmax) {
  if (decode->attend == nullptr) GTEST_SKIP() << "has no such function";
  const Decode x;
  for (std::int64_t rows = decode->attend_above + 1; rows <= kMostDecodeRows; ++rows) {
    for (const std::int64_t keys : {16, 32, 48, 64, 80, 96}) {
      expect_attend(*decode, x, rows, keys, 64);
    }
  }
  expect_attend(*decode, x, 16, 32, 128);
}

INSTANTIATE_TEST_SUITE_P(Engines, Bf16DecodeOf, testing::Values(bf16_dot_decode, amx_bf16_decode),
                         [](const auto& x) { return x.index == 0 ? "Dot" : "Amx"; });

}  // namespace
}  // namespace attn::cpu
