// Tiles; see tiling.hpp.
#include "webgpu/host/tiling.hpp"

#include <algorithm>
#include <array>

#include "webgpu/host/geometry.hpp"

namespace attn::webgpu {
namespace {

std::uint32_t divided_up(std::int64_t n, std::uint32_t by) {
  return static_cast<std::uint32_t>((n + by - 1) / by);
}

}  // namespace

std::uint64_t forward_bytes(const Tiling& t, bool dropout) {
  const std::uint64_t q = std::uint64_t{t.tile_q()} * (t.slice / 4 + 1);
  const std::uint64_t k = q + std::uint64_t{t.slice} * t.columns;
  const std::uint64_t v =
      (t.keep_q ? q : 0) + std::uint64_t{t.tile_kv()} * t.blocks_at_once * t.columns;
  const std::uint64_t scores = std::uint64_t{t.tile_q()} * (t.columns + 1);
  const std::uint64_t keep =
      dropout ? std::uint64_t{t.tile_q() / 16 + 1} * (t.tile_kv() / 16 + 1) * 16 : 1;
  return 16 * (std::max(k, v) + scores) + 4 * (t.tile_q() + keep);
}

// From the fastest to the smallest: 48 KiB, 32 KiB and 16 KiB.
Tiling forward_tiling(const Problem& problem, const DeviceFacts& facts) {
  const bool wide = problem.dim_vo > 128;  // 8 rows of more than 128 accumulators would not fit
  const std::array<Tiling, 5> choices{{
      {8, 16, 32, 1, false},
      {8, 8, 64, 2, false},
      {8, 8, 32, 2, false},
      {4, 16, 32, 1, false},
      {4, 8, 32, 1, false},
  }};
  for (Tiling t : choices) {
    if (t.columns == 16 && !wide) continue;
    if (t.columns == 8 && wide && t.rows == 8) continue;
    t.blocks_at_once = std::min(t.blocks_at_once, divided_up(problem.dim_vo, t.tile_kv()));
    t.keep_q = problem.dim_qk <= t.slice && t.slice == 64;
    if (forward_bytes(t, problem.dropout) <= facts.workgroup_bytes) return t;
  }
  return choices.back();
}

void add_option_constants(const Problem& problem, Step& step) {
  step.add_constant("TYPE_Q", number_of(problem.dtype));
  step.add_constant("TYPE_KV", number_of(problem.kv_type()));
  step.add_constant("BIAS", problem.bias.given ? 1 + number_of(problem.bias_type()) : 0);
  step.add_constant("MASK", problem.mask.given ? 1 : 0);
  step.add_constant("SOFTCAP", problem.softcap ? 1 : 0);
  step.add_constant("ALIBI", problem.alibi ? 1 : 0);
  step.add_constant("DROPOUT", problem.dropout ? 1 : 0);
}

}  // namespace attn::webgpu
