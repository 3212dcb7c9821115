// Dropout's random bits: Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1,
// 2, 3", section 4.3) indexed by position, so that any pass, tile and backend draws the same mask.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace attn::core {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline constexpr std::uint32_t kPhiloxMul0 = 0xD2511F53u;
inline constexpr std::uint32_t kPhiloxMul1 = 0xCD9E8D57u;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9u;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85u;
inline constexpr int kPhiloxRounds = 10;

constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kPhiloxMul0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kPhiloxMul1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return counter;
}

// A probability is kept if its random byte is below the threshold t, so with probability t / 256.
// p is the probability to drop, in [0, 1).
inline std::uint32_t dropout_threshold(double p) {
  const double t = std::floor(256.0 * (1.0 - p) + 0.5);
  return t < 1.0 ? 1u : static_cast<std::uint32_t>(t);
}

// The Philox key of a call. The low half of `offset` is the counter's last word.
constexpr PhiloxKey dropout_key(std::uint64_t seed, std::uint64_t offset) {
  return {static_cast<std::uint32_t>(seed),
          static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32)};
}

// One Philox block covers the 2 x 2 x 2 x 2 scores of rows {i, i+1, i+8, i+9} and columns {j, j+1,
// j+8, j+9}: bits 0 and 3 of i and j choose the byte.
inline constexpr std::uint32_t kDropoutIndexMask = ~std::uint32_t{9};

constexpr std::uint32_t dropout_byte_index(std::uint32_t i, std::uint32_t j) {
  return ((i >> 3) & 1u) << 3 | (i & 1u) << 2 | ((j >> 3) & 1u) << 1 | (j & 1u);
}

// The random byte of query i and key j, with head = b * heads_q + h. All indices are those of the
// larger problem (attn::Origin).
constexpr std::uint32_t dropout_byte(PhiloxKey key, std::uint32_t offset_lo, std::uint32_t head,
                                     std::uint32_t i, std::uint32_t j) {
  const PhiloxCounter bits =
      philox4x32_10({i & kDropoutIndexMask, j & kDropoutIndexMask, head, offset_lo}, key);
  const std::uint32_t index = dropout_byte_index(i, j);
  return (bits[index >> 2] >> (8 * (index & 3u))) & 0xFFu;
}

}  // namespace attn::core
