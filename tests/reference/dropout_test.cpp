// Dropout: Philox against the published vectors, the index of the byte, the threshold, placement.
#include "reference/dropout.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "compare.hpp"
#include "sample.hpp"

namespace attn::reference::test {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Random123 1.14, tests/kat_vectors, "philox4x32 10".
TEST(Dropout, PhiloxKnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, Threshold) {
  EXPECT_EQ(keep_threshold(0.0), 256);
  EXPECT_EQ(keep_threshold(0.1), 230);  // 230.4
  EXPECT_EQ(keep_threshold(0.5), 128);
  EXPECT_EQ(keep_threshold(1.0 / 512), 256);
  EXPECT_EQ(keep_threshold(0.9999), 1);
}

// The bytes of one Philox call, written out from the definition: counter (i without bits 0 and 3, j
// without bits 0 and 3, b * heads_q + h, offset_lo), key (seed_lo, seed_hi ^ offset_hi).
TEST(Dropout, ByteOfEachPair) {
  Setting setting = small_setting();
  Problem& p = setting.problem;
  Arguments& a = setting.numbers;
  p.dropout = true;
  a.dropout_p = 0.25;
  a.seed = 0x1111222233334444;
  a.offset = 0x5555666677778888;
  const int t = 192;
  const Entry entry{.batch = 1};
  int kept = 0;
  for (std::int64_t i = 32; i < 48; ++i) {
    for (std::int64_t j = 80; j < 96; ++j) {
      const std::uint32_t head = 1 * 4 + 2;
      const auto i_block = static_cast<std::uint32_t>(32 + (i & 6));
      const auto j_block = static_cast<std::uint32_t>(80 + (j & 6));
      const Words words =
          philox({i_block, j_block, head, 0x77778888}, {0x33334444, 0x11112222 ^ 0x55556666});
      const int index = (i >= 40 ? 8 : 0) + (i % 2 ? 4 : 0) + (j >= 88 ? 2 : 0) + (j % 2 ? 1 : 0);
      const std::uint32_t word = words[static_cast<std::size_t>(index / 4)];
      const int byte = static_cast<int>((word >> (index % 4 * 8)) & 0xff);
      const double expected = byte < t ? 256.0 / t : 0.0;
      EXPECT_EQ(drop_factor(p, a, entry, 2, i, j), expected) << i << " " << j;
      kept += byte < t;
    }
  }
  EXPECT_GT(kept, 192 - 40);
  EXPECT_LT(kept, 192 + 40);
}

TEST(Dropout, KeepsTheShareItSays) {
  Setting setting = small_setting();
  setting.problem.dropout = true;
  for (const double p : {0.1, 0.5, 0.9}) {
    setting.numbers.dropout_p = p;
    const double share = keep_threshold(p) / 256.0;
    double sum = 0.0;
    const int side = 256;
    for (int i = 0; i < side; ++i) {
      for (int j = 0; j < side; ++j) {
        sum += drop_factor(setting.problem, setting.numbers, Entry{}, 0, i, j);
      }
    }
    const double mean = sum / (side * side);  // expected 1
    const double deviation = std::sqrt((1.0 - share) / share) / side;
    EXPECT_TRUE(std::abs(mean - 1.0) < 4.0 * deviation) << p << " " << mean;
  }
}

TEST(Dropout, SeedFromMemory) {
  Setting setting = small_setting();
  setting.problem.dropout = true;
  Setting by_pointer = setting;
  const std::uint64_t seed = setting.numbers.seed.host;
  const std::uint64_t offset = setting.numbers.offset.host;
  by_pointer.numbers.seed = &seed;
  by_pointer.numbers.offset = &offset;
  Sample a(setting, 1);
  Sample b(by_pointer, 1);
  ASSERT_EQ(a.run_forward(), "");
  ASSERT_EQ(b.run_forward(), "");
  EXPECT_TRUE(same(a.o, b.o));
}

// lse is computed without dropout.
TEST(Dropout, LeavesLseAlone) {
  Setting setting = small_setting();
  Sample plain(setting, 3);
  setting.problem.dropout = true;
  Sample dropped(setting, 3);
  ASSERT_EQ(plain.run_forward(), "");
  ASSERT_EQ(dropped.run_forward(), "");
  EXPECT_TRUE(same(plain.lse, dropped.lse));
  EXPECT_FALSE(same(plain.o, dropped.o));
}

}  // namespace
}  // namespace attn::reference::test
