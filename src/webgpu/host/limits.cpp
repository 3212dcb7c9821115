// Implements limits.hpp.
#include "webgpu/host/limits.hpp"

#include <algorithm>
#include <cmath>

#include "core/divide_up.hpp"

namespace attn::webgpu {
namespace {

constexpr double kSeconds = 0.1;
// The fraction of the FMA rate that kernels reach: 0.2 to 0.35 on an H200. Chosen lower.
constexpr double kReached = 0.16;
// Minimum number of loop iterations per dispatch, so that loading and storing its accumulators
// costs little.
constexpr std::int64_t kLeastVisits = 8;

// Calls attempt(chunks) for each number of chunks that changes the size of the largest chunk.
template <class Try>
void for_each_cut(std::int64_t n, Try&& attempt) {
  for (std::int64_t chunks = 1; chunks <= n;) {
    attempt(chunks);
    const std::int64_t size = core::divide_up(n, chunks);
    if (size == 1) return;
    chunks = std::max(core::divide_up(n, size - 1), chunks + 1);
  }
}

}  // namespace

double flops_of_submission(AdapterType type, double fma_rate) {
  double least = 2e9;
  if (type == AdapterType::discrete) least = 2e12;
  if (type == AdapterType::integrated) least = 1e11;
  return std::max(least, fma_rate * kReached) * kSeconds;
}

Extents num_chunks(const Extents& whole, double flops, double most) {
  Extents chunks;
  if (!(flops > most)) return chunks;
  const double loops = std::ceil(flops / most);
  const auto most_loops =
      static_cast<double>(std::max<std::int64_t>(whole.visits / kLeastVisits, 1));
  chunks.visits = static_cast<std::int64_t>(std::min(loops, most_loops));
  const double left = flops / static_cast<double>(chunks.visits);
  if (!(left > most)) return chunks;

  const auto workgroups = static_cast<double>(whole.batches * whole.heads * whole.tiles);
  const double workgroups_per_chunk = most / (left / workgroups);
  std::int64_t fewest = 0;
  for_each_cut(whole.batches, [&](std::int64_t batches) {
    for_each_cut(whole.heads, [&](std::int64_t heads) {
      const std::int64_t across =
          core::divide_up(whole.batches, batches) * core::divide_up(whole.heads, heads);
      const auto tiles = std::max<std::int64_t>(
          static_cast<std::int64_t>(workgroups_per_chunk / static_cast<double>(across)),
          across == 1 ? 1 : 0);
      if (tiles == 0) return;
      const std::int64_t of_tiles = core::divide_up(whole.tiles, std::min(tiles, whole.tiles));
      const std::int64_t count = batches * heads * of_tiles;
      if (fewest != 0 && count > fewest) return;
      // For equal counts, prefers chunks along batches, then heads: these keep a tensor contiguous.
      fewest = count;
      chunks.batches = batches;
      chunks.heads = heads;
      chunks.tiles = of_tiles;
    });
  });
  return chunks;
}

}  // namespace attn::webgpu
