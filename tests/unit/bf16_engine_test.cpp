// The bf16 engines of the CPU against plain loops, and what happens where one is missing.
#include "cpu/kernels/tile_ops/bf16_engine.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include "core/float16.hpp"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/tile_ops/bf16_decode.hpp"
#include "tests/unit/bf16_engines.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#endif

namespace attn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<Bf16Bits> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<Bf16Bits> values(count);
  for (Bf16Bits& value : values) value = core::f32_to_bf16(draw(random));
  return values;
}

std::vector<const char*> rows_of(const std::vector<Bf16Bits>& values, std::int64_t dim) {
  std::vector<const char*> rows;
  for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(dim)) {
    rows.push_back(reinterpret_cast<const char*>(values.data() + at));
  }
  return rows;
}

float element(const std::vector<Bf16Bits>& values, std::int64_t at) {
  return core::bf16_to_f32(values[static_cast<std::size_t>(at)]);
}

// S = Q K^T with a dim that is no whole block, and a key without memory.
TEST_F(Bf16Engines, ProductWithPackedKeys) {
  constexpr std::int64_t kRows = 16, kKeys = 48, kDim = 40, kPadded = 64;
  const std::vector<Bf16Bits> keys = normal(kKeys * kDim, 1);
  std::vector<Bf16Bits> q = normal(kRows * kPadded, 2);
  for (std::int64_t at = 0; at < kRows * kPadded; ++at) {
    if (at % kPadded >= kDim) q[static_cast<std::size_t>(at)] = 0;
  }
  for (const Bf16Engine* engine : engines()) {
    SCOPED_TRACE(engine->name);
    std::vector<const char*> rows = rows_of(keys, kDim);
    rows[17] = nullptr;
    std::vector<Bf16Bits> packed(kKeys * kPadded, 0x7FC0);
    for (std::int64_t n = 0; n < kKeys; n += kPackedCols) {
      engine->pack_keys(rows.data() + n, kDim, packed.data() + n * kPadded);
    }
    std::vector<float> s(kRows * kKeys, kInfinity);
    engine->begin();
    engine->multiply({q.data(), kPadded, packed.data(), kPackedBlock, kPackedCols * kPadded,
                      s.data(), kKeys, kRows, kKeys, kPadded, false});
    engine->end();
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t n = 0; n < kKeys; ++n) {
        double expected = 0.0;
        double size = 0.0;
        for (std::int64_t c = 0; c < kDim && n != 17; ++c) {
          const double term = double{element(q, r * kPadded + c)} * element(keys, n * kDim + c);
          expected += term;
          size += std::fabs(term);
        }
        EXPECT_NEAR(s[static_cast<std::size_t>(r * kKeys + n)], expected, size * kDim * 0x1p-24);
      }
    }
  }
}

// O (+)= P V for a dim of an odd number of blocks, and for more keys than stay in tiles.
TEST_F(Bf16Engines, ProductWithPackedValuesAccumulates) {
  constexpr std::int64_t kRows = 32;
  struct Shape {
    std::int64_t keys, dim;
    bool accumulate;
  };
  for (const auto& [keys, dim, accumulate] :
       {Shape{64, 48, true}, Shape{288, 64, false}, Shape{160, 128, true}}) {
    const std::int64_t padded = (dim + 31) / 32 * 32;
    const std::vector<Bf16Bits> values = normal(static_cast<std::size_t>(keys * dim), 3);
    const std::vector<Bf16Bits> p = normal(static_cast<std::size_t>(kRows * keys), 4);
    for (const Bf16Engine* engine : engines()) {
      SCOPED_TRACE(engine->name);
      const std::vector<const char*> rows = rows_of(values, dim);
      std::vector<Bf16Bits> packed(static_cast<std::size_t>(keys * padded));
      for (std::int64_t k = 0; k < keys; k += kPackedDepth) {
        engine->pack_values(rows.data() + k, dim, packed.data() + k * padded);
      }
      std::vector<float> o(static_cast<std::size_t>(kRows * dim), 2.0F);
      engine->begin();
      engine->multiply({p.data(), keys, packed.data(), kPackedDepth * padded, kPackedBlock,
                        o.data(), dim, kRows, dim, keys, accumulate});
      engine->end();
      for (std::int64_t r = 0; r < kRows; ++r) {
        for (std::int64_t c = 0; c < dim; ++c) {
          double expected = accumulate ? 2.0 : 0.0;
          double size = 2.0;
          for (std::int64_t k = 0; k < keys; ++k) {
            const double term = double{element(p, r * keys + k)} * element(values, k * dim + c);
            expected += term;
            size += std::fabs(term);
          }
          EXPECT_NEAR(o[static_cast<std::size_t>(r * dim + c)], expected,
                      size * static_cast<double>(keys) * 0x1p-24);
        }
      }
    }
  }
}

// Factors, a dim that is no full vector, and a row without an address.
TEST_F(Bf16Engines, StoresRows) {
  constexpr std::int64_t kRows = 3, kDim = 40, kFrom = 48;
  std::vector<float> sums(kRows * kFrom);
  for (std::size_t n = 0; n < sums.size(); ++n) sums[n] = 0.01F * static_cast<float>(n);
  const float factors[kRows] = {2.0F, 3.0F, 0.5F};
  for (const Bf16Engine* engine : engines()) {
    if (engine->store_rows == nullptr) continue;
    SCOPED_TRACE(engine->name);
    std::vector<Bf16Bits> stored(kRows * kFrom, 7);
    char* rows[kRows] = {reinterpret_cast<char*>(stored.data()), nullptr,
                         reinterpret_cast<char*>(stored.data() + 2 * kFrom)};
    engine->store_rows(sums.data(), kFrom, factors, kRows, kDim, rows);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kFrom; ++c) {
        const auto at = static_cast<std::size_t>(r * kFrom + c);
        const bool written = r != 1 && c < kDim;
        EXPECT_EQ(stored[at], written ? core::f32_to_bf16(factors[r] * sums[at]) : 7)
            << r << " " << c;
      }
    }
  }
}

// Rows: ordinary scores; nothing visible; a NaN; a sum that a larger maximum rescales.
TEST_F(Bf16Engines, Softmax) {
  constexpr std::int64_t kCols = 64, kDim = 16;
  for (const Bf16Engine* engine : engines()) {
    SCOPED_TRACE(engine->name);
    std::vector<float> s(4 * kCols);
    for (std::int64_t n = 0; n < 4 * kCols; ++n) {
      s[static_cast<std::size_t>(n)] = static_cast<float>(n % 37) - 20.0F;
    }
    for (std::int64_t n = 0; n < kCols; ++n) s[static_cast<std::size_t>(kCols + n)] = -kInfinity;
    s[2 * kCols + 5] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> scores = s;
    std::vector<float> row_max{-kInfinity, -kInfinity, -kInfinity, 1.0F};
    std::vector<float> row_sum{0.0F, 0.0F, 0.0F, 3.0F};
    std::vector<float> acc(4 * kDim, 1.0F);
    constexpr float kScale = 0.25F;
    engine->softmax({s.data(),
                     kCols,
                     4,
                     kCols,
                     kScale,
                     row_max.data(),
                     row_sum.data(),
                     acc.data(),
                     kDim,
                     {},
                     {},
                     0.0F,
                     {}});
    EXPECT_EQ(row_max[0], kScale * 16.0F);
    EXPECT_EQ(row_max[1], -kInfinity);
    EXPECT_EQ(row_sum[1], 0.0F);
    EXPECT_TRUE(std::isnan(row_sum[2]));
    EXPECT_EQ(row_max[3], 4.0F);
    EXPECT_NEAR(acc[3 * kDim], std::exp(1.0 - 4.0), 1e-7);
    for (const std::int64_t r : {0, 3}) {
      double sum = r == 3 ? 3.0 * std::exp(1.0 - 4.0) : 0.0;
      const auto* p = reinterpret_cast<const Bf16Bits*>(s.data() + r * kCols);
      for (std::int64_t n = 0; n < kCols; ++n) {
        const double expected =
            std::exp(double{kScale} * scores[static_cast<std::size_t>(r * kCols + n)] - 4.0);
        EXPECT_NEAR(core::bf16_to_f32(p[n]), expected, expected * 0x1p-8);
        sum += expected;
      }
      EXPECT_NEAR(row_sum[static_cast<std::size_t>(r)], sum, sum * 1e-6);
    }
  }
}

// Rows: products far below the cap; some beyond it; nothing visible; a NaN. A second call has a cap
// and a scale that are too far apart for the short polynomial.
TEST_F(Bf16Engines, SoftmaxWithSoftcap) {
  constexpr std::int64_t kRows = 4, kCols = 64, kDim = 16;
  for (const Bf16Engine* engine : engines()) {
    if (!engine->caps) continue;
    SCOPED_TRACE(engine->name);
    for (const float cap : {20.0F, 1e-4F}) {
      const float scale = cap == 20.0F ? 0.25F : 1e2F;
      std::vector<float> s(kRows * kCols);
      for (std::int64_t n = 0; n < kRows * kCols; ++n) {
        s[static_cast<std::size_t>(n)] = (static_cast<float>(n % 37) - 20.0F) * (n < kCols ? 2 : 9);
      }
      s[3 * kCols + 5] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> products = s;
      const std::vector<std::uint32_t> words{~0U, ~0U, 0x7FFF0FFFU, ~0U, 0, 0, ~0U, ~0U};
      std::vector<float> row_max(kRows, -kInfinity);
      std::vector<float> row_sum(kRows, 0.0F);
      std::vector<float> acc(kRows * kDim, 1.0F);
      engine->softmax({.s = s.data(),
                       .lds = kCols,
                       .rows = kRows,
                       .cols = kCols,
                       .scale = scale,
                       .row_max = row_max.data(),
                       .row_sum = row_sum.data(),
                       .o = acc.data(),
                       .ldo = kDim,
                       .dropout = {},
                       .visible = {words.data(), kCols / kVisibleBits},
                       .softcap = cap,
                       .addend = {}});
      EXPECT_EQ(row_max[2], -kInfinity);
      EXPECT_EQ(row_sum[2], 0.0F);
      EXPECT_TRUE(std::isnan(row_sum[3]));
      for (const std::int64_t r : {0, 1}) {
        const auto score = [&](std::int64_t n) {
          const double raw = products[static_cast<std::size_t>(r * kCols + n)];
          return cap * std::tanh(scale * raw / cap);
        };
        const auto visible = [&](std::int64_t n) {
          return ((words[static_cast<std::size_t>(2 * r + n / 32)] >> (n % 32)) & 1U) != 0;
        };
        double largest = -kInfinity;
        for (std::int64_t n = 0; n < kCols; ++n) {
          if (visible(n)) largest = std::max(largest, score(n));
        }
        EXPECT_NEAR(row_max[static_cast<std::size_t>(r)], largest, cap * 6e-7);
        double sum = 0.0;
        const auto* p = reinterpret_cast<const Bf16Bits*>(s.data() + r * kCols);
        for (std::int64_t n = 0; n < kCols; ++n) {
          const double expected = visible(n) ? std::exp(score(n) - largest) : 0.0;
          EXPECT_NEAR(core::bf16_to_f32(p[n]), expected, expected * 0x1p-8);
          sum += expected;
        }
        EXPECT_NEAR(row_sum[static_cast<std::size_t>(r)], sum, sum * 1e-5);
      }
    }
  }
}

// Hidden products that are larger than all visible ones, infinite or NaN change nothing. Two tiles:
// rows have seen keys before the second one. Its maximum grows in rows 0 and 1 alone.
TEST_F(Bf16Engines, SoftmaxIgnoresHiddenProducts) {
  constexpr std::int64_t kRows = 5, kCols = 64, kDim = 16;
  constexpr float kHidden[kRows] = {1e6F, kInfinity, kInfinity, 1e30F,
                                    std::numeric_limits<float>::quiet_NaN()};
  const std::vector<std::uint32_t> words(kRows * kCols / kVisibleBits, 0x7FFFFFF5U);
  for (const Bf16Engine* engine : engines()) {
    SCOPED_TRACE(engine->name);
    const auto run = [&](bool replace) {
      std::vector<float> row_max(kRows, -kInfinity), row_sum(kRows, 0.0F);
      std::vector<float> acc(kRows * kDim, 1.0F);
      std::vector<double> results;
      for (const float step : {0.0F, 5.0F}) {
        std::vector<float> s(kRows * kCols);
        for (std::int64_t n = 0; n < kRows * kCols; ++n) {
          const std::int64_t r = n / kCols;
          s[static_cast<std::size_t>(n)] =
              static_cast<float>(n % kCols % 37) - 20.0F + (r < 2 ? step : -step);
          const bool hidden = ((words[0] >> (n % kVisibleBits)) & 1U) == 0;
          if (hidden && replace) s[static_cast<std::size_t>(n)] = kHidden[r];
        }
        engine->softmax({.s = s.data(),
                         .lds = kCols,
                         .rows = kRows,
                         .cols = kCols,
                         .scale = 0.25F,
                         .row_max = row_max.data(),
                         .row_sum = row_sum.data(),
                         .o = acc.data(),
                         .ldo = kDim,
                         .dropout = {},
                         .visible = {words.data(), kCols / kVisibleBits},
                         .softcap = 0.0F,
                         .addend = {}});
        for (std::int64_t r = 0; r < kRows; ++r) {
          const auto* p = reinterpret_cast<const Bf16Bits*>(s.data() + r * kCols);
          for (std::int64_t n = 0; n < kCols; ++n) results.push_back(core::bf16_to_f32(p[n]));
        }
      }
      for (const std::vector<float>* of : {&row_max, &row_sum, &acc}) {
        results.insert(results.end(), of->begin(), of->end());
      }
      return results;
    };
    EXPECT_EQ(run(true), run(false));
  }
}

// Ranges, masks and missing pages as bits; lengths that are no multiple of 64 columns.
TEST_F(Bf16Engines, FindsVisiblePairs) {
  constexpr std::int64_t kCols = 96;
  constexpr std::int64_t kSeenRows = 5;
  std::mt19937 random(3);
  std::vector<std::uint8_t> mask(kCols);
  std::vector<std::uint8_t> missing(kCols);
  for (std::uint8_t& byte : mask) byte = static_cast<std::uint8_t>(random() % 3 * 100);
  for (std::uint8_t& byte : missing) byte = static_cast<std::uint8_t>(random() % 4 == 0 ? 255 : 0);
  const SeenRow rows[kSeenRows] = {{0, kCols, nullptr, nullptr},
                                   {7, 71, mask.data(), nullptr},
                                   {0, 33, mask.data(), missing.data()},
                                   {64, 65, nullptr, missing.data()},
                                   {40, 40, mask.data(), nullptr}};
  for (const Bf16Engine* engine : engines()) {
    std::vector<std::uint32_t> words(kSeenRows * kCols / kVisibleBits, 0xAAAAAAAAU);
    EXPECT_TRUE(engine->find_visible(rows, kSeenRows, kCols, words.data()));
    for (std::int64_t r = 0; r < kSeenRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        const auto at = static_cast<std::size_t>(c);
        const SeenRow& row = rows[r];
        const bool seen = c >= row.begin && c < row.end && (row.mask == nullptr || mask[at] != 0) &&
                          (row.missing == nullptr || missing[at] == 0);
        const std::uint32_t word = words[static_cast<std::size_t>((r * kCols + c) / kVisibleBits)];
        EXPECT_EQ((word >> (c % kVisibleBits)) & 1U, seen ? 1U : 0U) << r << " " << c;
      }
    }
    EXPECT_FALSE(engine->find_visible(rows + 4, 1, kCols, words.data()));
  }
}

#if defined(__x86_64__) && defined(__linux__)
// Runs in the child below.
TEST(AmxEngine, DISABLED_IsMissing) {
  EXPECT_EQ(amx_bf16_engine(), nullptr);
  EXPECT_EQ(amx_bf16_decode(), nullptr);
  // A plan takes AMX for a decode only if it is the engine.
  EXPECT_NE(bf16_problems_engine(), Engine::amx_bf16);
}

// A kernel that refuses AMX's state, as one without support does: there is no AMX engine then. The
// child is a new program, because this one may have asked already.
TEST(AmxEngine, IsMissingWhereTheKernelRefusesItsState) {
  const pid_t child = fork();
  if (child == 0) {
    constexpr unsigned kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kRequestPermission, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      _exit(77);
    }
    execl("/proc/self/exe", "attn_unit_test", "--gtest_filter=AmxEngine.DISABLED_IsMissing",
          "--gtest_also_run_disabled_tests", nullptr);
    _exit(76);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this kernel takes no seccomp filter";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace attn::cpu
