// Dropout's bits: the published vectors of Philox4x32-10 and the index rules of docs/semantics.md.
#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <set>

namespace attn::core {
namespace {

// kat_vectors of Random123 1.14 (D. E. Shaw Research): "philox 4x32 10".
TEST(Philox, PublishedVectors) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                          {0xa4093822u, 0x299f31d0u}),
            (PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, Threshold) {
  EXPECT_EQ(dropout_threshold(0.0), 256u);
  EXPECT_EQ(dropout_threshold(0.5), 128u);
  EXPECT_EQ(dropout_threshold(0.1), 230u);
  EXPECT_EQ(dropout_threshold(1.0 / 512.0), 256u);
  EXPECT_EQ(dropout_threshold(1.0 / 256.0), 255u);
  EXPECT_EQ(dropout_threshold(0.9999), 1u);
}

TEST(Philox, KeyMixesTheHighHalfOfTheOffset) {
  EXPECT_EQ(dropout_key(0x1122334455667788u, 0xAABBCCDD00000007u),
            (PhiloxKey{0x55667788u, 0x11223344u ^ 0xAABBCCDDu}));
}

// Little-endian bytes of one call, indexed by the bits i3 i0 j3 j0.
TEST(Philox, BytesOfACall) {
  const PhiloxKey key{3, 4};
  const PhiloxCounter bits = philox4x32_10({32, 16, 5, 7}, key);
  std::set<std::uint32_t> indices;
  for (const std::uint32_t i : {32u, 33u, 40u, 41u}) {
    for (const std::uint32_t j : {16u, 17u, 24u, 25u}) {
      const std::uint32_t index = (i >= 40 ? 8u : 0u) + (i % 2) * 4 + (j >= 24 ? 2u : 0u) + j % 2;
      EXPECT_EQ(dropout_byte_index(i, j), index);
      EXPECT_EQ(dropout_byte(key, 7, 5, i, j), bits[index / 4] >> (8 * (index % 4)) & 0xFFu);
      indices.insert(index);
    }
  }
  EXPECT_EQ(indices.size(), 16u);
}

}  // namespace
}  // namespace attn::core
