// Which pairs dropout keeps: see dropout.hpp.
#include "reference/dropout.hpp"

#include <algorithm>
#include <cmath>

namespace attn::reference {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t left = counter[0] * std::uint64_t{0xD2511F53};
    const std::uint64_t right = counter[2] * std::uint64_t{0xCD9E8D57};
    const auto high = [](std::uint64_t product) {
      return static_cast<std::uint32_t>(product >> 32);
    };
    const auto low = [](std::uint64_t product) { return static_cast<std::uint32_t>(product); };
    counter = {high(right) ^ counter[1] ^ key[0], low(right), high(left) ^ counter[3] ^ key[1],
               low(left)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

int keep_threshold(double dropout_p) {
  return std::max(1, static_cast<int>(std::floor(256.0 * (1.0 - dropout_p) + 0.5)));
}

double drop_factor(const Problem& problem, const Arguments& arguments, const Entry& entry,
                   std::int64_t head_q, std::int64_t i, std::int64_t j) {
  if (!problem.dropout) return 1.0;
  const auto value = [](const Value<std::uint64_t>& v) { return v.device ? *v.device : v.host; };
  const auto low = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  const auto high = [](std::uint64_t word) { return static_cast<std::uint32_t>(word >> 32); };
  const std::uint64_t seed = value(arguments.seed);
  const std::uint64_t offset = value(arguments.offset);

  const Origin& origin = arguments.origin;
  const std::int64_t heads = origin.heads_q > 0 ? origin.heads_q : problem.heads_q;
  const auto placed_i = static_cast<std::uint32_t>(Wide{i} + origin.q);
  const auto placed_j = static_cast<std::uint32_t>(Wide{j} + origin.kv);
  const auto placed_head =
      static_cast<std::uint32_t>((Wide{entry.batch} + origin.batch) * heads + head_q + origin.head);

  const std::uint32_t bits_0_and_3 = 1u | 8u;
  const std::array<std::uint32_t, 4> words =
      philox({placed_i & ~bits_0_and_3, placed_j & ~bits_0_and_3, placed_head, low(offset)},
             {low(seed), high(seed) ^ high(offset)});

  // Byte (i3 i0 j3 j0) of the sixteen.
  const auto bit = [](std::uint32_t number, int which) { return (number >> which) & 1u; };
  const std::uint32_t byte_index =
      8 * bit(placed_i, 3) + 4 * bit(placed_i, 0) + 2 * bit(placed_j, 3) + bit(placed_j, 0);
  const std::uint32_t byte = (words[byte_index / 4] >> (8 * (byte_index % 4))) % 256;

  const int t = keep_threshold(arguments.dropout_p);
  return static_cast<int>(byte) < t ? 256.0 / t : 0.0;
}

}  // namespace attn::reference
