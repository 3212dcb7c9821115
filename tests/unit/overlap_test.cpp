// Overlap of views and the rules on single ones, against marking every byte.
#include "core/overlap.hpp"

#include <gtest/gtest.h>

#include <array>
#include <attn/attn.hpp>
#include <chrono>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor_rules.hpp"

namespace attn::core {
namespace {

// How often each byte of a small arena, large enough for all of Views, is touched.
std::vector<int> touched(const TensorView& view) {
  std::vector<int> bytes(1024, 0);
  std::array<std::int64_t, kMaxRank> at{};
  const auto& n = view.shape;
  for (at[0] = 0; at[0] < n[0]; ++at[0]) {
    for (at[1] = 0; at[1] < n[1]; ++at[1]) {
      for (at[2] = 0; at[2] < n[2]; ++at[2]) {
        for (at[3] = 0; at[3] < n[3]; ++at[3]) {
          std::int64_t element = 0;
          for (std::size_t d = 0; d < at.size(); ++d) element += at[d] * view.strides[d];
          const std::int64_t first = view.offset_bytes + element * size_of(view.dtype);
          for (std::int64_t b = 0; b < size_of(view.dtype); ++b) {
            ++bytes.at(static_cast<std::size_t>(first + b));
          }
        }
      }
    }
  }
  return bytes;
}

bool marked_share(const TensorView& a, const TensorView& b) {
  const auto x = touched(a);
  const auto y = touched(b);
  for (std::size_t at = 0; at < x.size(); ++at) {
    if (x[at] > 0 && y[at] > 0) return true;
  }
  return false;
}

bool marked_twice(const TensorView& view) {
  for (const int count : touched(view)) {
    if (count > 1) return true;
  }
  return false;
}

class Views {
 public:
  TensorView next() {
    TensorView view = TensorView::contiguous(arena_, DType::u8, {1, 1, 1, 1});
    view.dtype = pick(0, 1) == 0 ? DType::u8 : DType::f16;
    view.offset_bytes = pick(0, 30) * size_of(view.dtype);
    for (std::size_t d = 0; d < view.shape.size(); ++d) {
      view.shape[d] = pick(0, 20) == 0 ? 0 : pick(1, 4);
      view.strides[d] = pick(0, 40);
    }
    if (pick(0, 2) > 0) view.strides[3] = 1;
    return view;
  }
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }

 private:
  alignas(8) char arena_[8] = {};
  std::mt19937 random_{1234};
};

TEST(Overlap, RandomViewsAgreeWithMarkedBytes) {
  Views views;
  int shared = 0;
  int twice = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    const TensorView a = views.next();
    TensorView b = views.next();
    if (views.pick(0, 1) == 0) b.strides = a.strides;
    const bool expected = marked_share(a, b);
    ASSERT_EQ(share_bytes(a, b), expected) << to_string(a) << " + " << a.offset_bytes << ", "
                                           << to_string(b) << " + " << b.offset_bytes;
    ASSERT_EQ(share_bytes(b, a), expected);
    const bool self = marked_twice(a);
    ASSERT_EQ(overlaps_itself(a), self) << to_string(a);
    shared += expected ? 1 : 0;
    twice += self ? 1 : 0;
  }
  // Both answers are common, or the test says nothing.
  EXPECT_GT(shared, kRounds / 10);
  EXPECT_LT(shared, kRounds * 9 / 10);
  EXPECT_GT(twice, kRounds / 10);
  EXPECT_LT(twice, kRounds * 9 / 10);
}

// The pass over all rules and the rules one by one accept the same views.
TEST(TensorRules, RandomViewsAgreeWithMarkedBytes) {
  Views views;
  int taken = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    TensorView view = views.next();
    view.offset_bytes += views.pick(0, 8) == 0 ? 1 : 0;
    const auto& n = view.shape;
    const bool empty = n[0] * n[1] * n[2] * n[3] == 0;
    const bool contiguous = n[3] <= 1 || view.strides[3] == 1;
    const bool aligned = empty || view.offset_bytes % size_of(view.dtype) == 0;
    const bool apart = !marked_twice(view);
    for (const bool written : {false, true}) {
      TensorRules rules("test");
      const Shape shape(view.dtype, {{n[0]}, {n[1]}, {n[2]}, {n[3]}});
      const bool ok = rules.check("t", view, shape, written, Use::needed).ok();
      ASSERT_EQ(ok, contiguous && aligned && (apart || !written)) << to_string(view);
      taken += ok ? 1 : 0;
    }
    const Shape other(view.dtype, {{n[0]}, {n[1] + 1}, {n[2]}, {n[3]}});
    ASSERT_FALSE(TensorRules("test").check("t", view, other, false, Use::needed).ok());
  }
  EXPECT_GT(taken, kRounds / 2);
  EXPECT_LT(taken, kRounds * 3 / 2);
}

TEST(Overlap, OtherMemoryIsNeverShared) {
  char arena[64] = {};
  const TensorView a = TensorView::contiguous(arena, DType::u8, {64});
  TensorView b = a;
  EXPECT_TRUE(share_bytes(a, b));
  EXPECT_TRUE(same_view(a, b));
  b.device = Device::cuda;
  EXPECT_FALSE(share_bytes(a, b));
  EXPECT_FALSE(same_view(a, b));
  TensorView buffer = a;
  buffer.device = Device::webgpu;
  TensorView other = buffer;
  EXPECT_TRUE(share_bytes(buffer, other));
  other.data = &other;
  EXPECT_FALSE(share_bytes(buffer, other));
  other = buffer;
  other.offset_bytes = 64;
  EXPECT_FALSE(share_bytes(buffer, other));
}

TEST(Overlap, HugeViews) {
  TensorView a = TensorView::contiguous(nullptr, DType::f32, {1 << 20, 1 << 20, 16, 256});
  ByteRange range;
  EXPECT_TRUE(byte_range(a, range));
  EXPECT_EQ(range.end - range.begin, std::int64_t{1} << 54);
  EXPECT_FALSE(overlaps_itself(a));
  a.strides[0] = std::int64_t{1} << 61;
  EXPECT_FALSE(byte_range(a, range));
  a.shape[2] = 0;  // nothing in it
  EXPECT_TRUE(byte_range(a, range));
}

TEST(Overlap, TheStrideOfALengthOfOneIsNotRead) {
  float arena[4] = {};
  TensorView a = TensorView::contiguous(arena, DType::f32, {1, 4});
  a.strides[0] = std::numeric_limits<std::int64_t>::max();
  EXPECT_TRUE(share_bytes(a, a));
  EXPECT_FALSE(overlaps_itself(a));
}

// Strides that defeat the search: the answer is the safe one, and comes soon.
TEST(Overlap, HardStridesAreTakenToOverlap) {
  TensorView a = TensorView::contiguous(nullptr, DType::u8, {2000, 2000, 2000, 1});
  a.strides = {999983, 1000003, 1000033, 1};
  TensorView b = a;
  b.strides = {999979, 1000037, 1000039, 1};
  b.offset_bytes = 500000;
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(share_bytes(a, b));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace attn::core
