// Buffers, their pool, and copies to and from the host.
#include <numeric>

#include "support.hpp"

namespace attn::webgpu {
namespace {

using test::fails;
using test::is_ok;

using BuffersTest = test::OnDevice;

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::uint32_t state = 12345;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

TEST_F(BuffersTest, CopyBothWays) {
  for (const std::size_t size : {1UL, 3UL, 4UL, 1000UL, 1UL << 20, (1UL << 20) + 7}) {
    const std::vector<std::byte> in = pattern(size);
    std::vector<std::byte> out(size);
    Buffer buffer;
    ASSERT_TRUE(is_ok(Buffer::create(device(), size + 8, kStorageUsage, buffer)));
    ASSERT_TRUE(is_ok(upload(device(), buffer.handle(), 8, in)));
    ASSERT_TRUE(is_ok(download(device(), buffer.handle(), 8, out)));
    EXPECT_EQ(in, out) << size;
  }
}

TEST_F(BuffersTest, CopyInSteps) {
  const std::size_t size = (std::size_t{130} << 20) + 1;
  const std::vector<std::byte> in = pattern(size);
  std::vector<std::byte> out(size);
  Buffer buffer;
  ASSERT_TRUE(is_ok(Buffer::create(device(), size, kStorageUsage, buffer)));
  ASSERT_TRUE(is_ok(upload(device(), buffer.handle(), 0, in)));
  ASSERT_TRUE(is_ok(download(device(), buffer.handle(), 0, out)));
  EXPECT_TRUE(in == out);
}

TEST_F(BuffersTest, LeaveTheirSurroundings) {
  Buffer buffer;
  ASSERT_TRUE(is_ok(Buffer::create(device(), 32, kStorageUsage, buffer)));
  ASSERT_TRUE(is_ok(upload(device(), buffer.handle(), 0, std::vector(32, std::byte{0xff}))));
  ASSERT_TRUE(is_ok(upload(device(), buffer.handle(), 8, std::vector(5, std::byte{1}))));
  std::vector<std::byte> out(32);
  ASSERT_TRUE(is_ok(download(device(), buffer.handle(), 0, out)));
  for (std::size_t i = 0; i < 32; ++i) {
    const int expected = i >= 8 && i < 13 ? 1 : i >= 13 && i < 16 ? 0 : 0xff;
    EXPECT_EQ(std::to_integer<int>(out[i]), expected) << i;
  }
}

TEST_F(BuffersTest, RefuseRangesOutside) {
  Buffer buffer;
  ASSERT_TRUE(is_ok(Buffer::create(device(), 64, kStorageUsage, buffer)));
  std::vector<std::byte> bytes(68);
  const auto both = [&](WGPUBuffer handle, std::uint64_t offset, const std::string& text) {
    EXPECT_TRUE(fails(upload(device(), handle, offset, bytes), ErrorCode::invalid_argument, text));
    EXPECT_TRUE(
        fails(download(device(), handle, offset, bytes), ErrorCode::invalid_argument, text));
  };
  both(buffer.handle(), 0, "accepted up to 64, the buffer's size");
  bytes.resize(63);
  both(buffer.handle(), 4, "accepted up to 64");
  both(buffer.handle(), ~std::uint64_t{0} - 3, "accepted up to 64");
  both(buffer.handle(), 2, "accepted multiples of 4");
  both(nullptr, 0, "a null buffer");
  bytes.resize(0);
  EXPECT_TRUE(is_ok(upload(device(), buffer.handle(), 0, bytes)));
  EXPECT_TRUE(is_ok(download(device(), buffer.handle(), 0, bytes)));
}

TEST_F(BuffersTest, RefuseCopiesThatTheirUsageForbids) {
  Buffer buffer;
  ASSERT_TRUE(is_ok(Buffer::create(device(), 64, WGPUBufferUsage_Storage, buffer)));
  std::vector<std::byte> bytes(16);
  EXPECT_TRUE(fails(upload(device(), buffer.handle(), 0, bytes), ErrorCode::invalid_argument,
                    "without usage CopyDst"));
  EXPECT_TRUE(fails(download(device(), buffer.handle(), 0, bytes), ErrorCode::invalid_argument,
                    "without usage CopySrc"));
}

TEST_F(BuffersTest, TooLargeAreOutOfMemory) {
  Buffer buffer;
  const std::uint64_t most = device().facts().max_buffer_bytes;
  EXPECT_TRUE(fails(Buffer::create(device(), most + 1, kStorageUsage, buffer),
                    ErrorCode::out_of_memory, "takes " + std::to_string(most)));
  EXPECT_TRUE(fails(Buffer::create(device(), ~std::uint64_t{0}, kStorageUsage, buffer),
                    ErrorCode::out_of_memory, "bytes"));
  EXPECT_FALSE(buffer);
}

TEST_F(BuffersTest, AreFoundAgainInThePool) {
  Pool& pool = device().pool();
  pool.clear();
  Buffer first;
  ASSERT_TRUE(is_ok(pool.take(1000, kStorageUsage, first)));
  WGPUBuffer handle = first.handle();
  EXPECT_EQ(first.size(), 1008U);
  first.reset();
  EXPECT_EQ(pool.kept_bytes(), 1008U);
  Buffer other;
  ASSERT_TRUE(is_ok(pool.take(900, kUniformUsage, other)));
  EXPECT_NE(other.handle(), handle) << "of another usage";
  Buffer small;
  ASSERT_TRUE(is_ok(pool.take(400, kStorageUsage, small)));
  EXPECT_NE(small.handle(), handle) << "more than twice too large";
  Buffer again;
  ASSERT_TRUE(is_ok(pool.take(900, kStorageUsage, again)));
  EXPECT_EQ(again.handle(), handle);
  EXPECT_EQ(pool.kept_bytes(), 0U);
  Buffer moved = std::move(again);
  EXPECT_EQ(moved.handle(), handle);
  moved.discard();
  EXPECT_EQ(pool.kept_bytes(), 0U);
}

TEST_F(BuffersTest, PoolKeepsNoMoreThanItMay) {
  Pool pool(device(), 100);
  Buffer buffer;
  ASSERT_TRUE(is_ok(pool.take(112, kStorageUsage, buffer)));
  EXPECT_EQ(pool.kept_bytes(), 0U);
}

}  // namespace
}  // namespace attn::webgpu
