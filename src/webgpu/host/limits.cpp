// Limits; see limits.hpp.
#include "webgpu/host/limits.hpp"

#include <algorithm>
#include <cmath>

#include "core/divide_up.hpp"

namespace attn::webgpu {
namespace {

constexpr double kSeconds = 0.1;
// Of the rate that nothing but multiplying and adding reaches: kernels on an H200 reach 0.2 to
// 0.35.
constexpr double kReached = 0.16;
// A dispatch that goes on with a loop loads and stores its sums once: of little weight for so many
// turns of it.
constexpr std::int64_t kLeastVisits = 8;

// Calls try(parts) for the numbers of parts of n that differ in the size of the largest.
template <class Try>
void for_each_cut(std::int64_t n, Try&& attempt) {
  for (std::int64_t parts = 1; parts <= n;) {
    attempt(parts);
    const std::int64_t size = core::divide_up(n, parts);
    if (size == 1) return;
    parts = std::max(core::divide_up(n, size - 1), parts + 1);
  }
}

}  // namespace

double flops_of_submission(AdapterType type, double fma_rate) {
  double least = 2e9;
  if (type == AdapterType::discrete) least = 2e12;
  if (type == AdapterType::integrated) least = 1e11;
  return std::max(least, fma_rate * kReached) * kSeconds;
}

Extents parts_of(const Extents& whole, double flops, double most) {
  Extents parts;
  if (!(flops > most)) return parts;
  const double loops = std::ceil(flops / most);
  const auto most_loops =
      static_cast<double>(std::max<std::int64_t>(whole.visits / kLeastVisits, 1));
  parts.visits = static_cast<std::int64_t>(std::min(loops, most_loops));
  const double left = flops / static_cast<double>(parts.visits);
  if (!(left > most)) return parts;

  const auto turns = static_cast<double>(whole.batches * whole.heads * whole.tiles);
  const double room = most / (left / turns);  // workgroups of a piece
  std::int64_t fewest = 0;
  for_each_cut(whole.batches, [&](std::int64_t batches) {
    for_each_cut(whole.heads, [&](std::int64_t heads) {
      const std::int64_t across =
          core::divide_up(whole.batches, batches) * core::divide_up(whole.heads, heads);
      const auto tiles = std::max<std::int64_t>(
          static_cast<std::int64_t>(room / static_cast<double>(across)), across == 1 ? 1 : 0);
      if (tiles == 0) return;
      const std::int64_t of_tiles = core::divide_up(whole.tiles, std::min(tiles, whole.tiles));
      const std::int64_t count = batches * heads * of_tiles;
      if (fewest != 0 && count > fewest) return;
      // Of as many pieces those that are cut along batches, then along heads: whoever reads a
      // tensor then reads it in one piece.
      fewest = count;
      parts.batches = batches;
      parts.heads = heads;
      parts.tiles = of_tiles;
    });
  });
  return parts;
}

}  // namespace attn::webgpu
