// Cutting attention's work into pieces that a device can take; see attention.hpp and limits.hpp.
#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "core/divide_up.hpp"
#include "webgpu/host/attention.hpp"
#include "webgpu/host/limits.hpp"

namespace attn::webgpu {

// At most; of a few queries' ranges, for they change evenly. Entries that are shorter than the
// longest, which only the device may know, see fewer: theirs is a corner of these pairs.
double AttentionWork::visible_pairs() const {
  constexpr std::int64_t kSamples = 64;
  const Problem& p = problem;
  if (p.len_q == 0 || p.len_kv == 0) return 0.0;
  const std::int64_t corner = prepare_.bottom_right != 0 ? p.len_kv - p.len_q : 0;
  const std::int64_t samples = std::min(p.len_q, kSamples);
  std::int64_t seen = 0;
  for (std::int64_t n = 0; n < samples; ++n) {
    const std::int64_t i = (2 * n + 1) * p.len_q / (2 * samples) + corner;
    const std::int64_t low = std::max<std::int64_t>(i + prepare_.low_band, 0);
    const std::int64_t high = std::min<std::int64_t>(i + prepare_.high_band + 1, p.len_kv);
    seen += std::max<std::int64_t>(high - low, 1);
  }
  const std::int64_t rows =
      p.layout_q == Layout::packed ? std::min(p.batch * p.len_q, p.total_q) : p.batch * p.len_q;
  return static_cast<double>(seen) / static_cast<double>(samples) *
         static_cast<double>(rows * p.heads_q);
}

double AttentionWork::flops(double products_qk, double products_vo) const {
  return 2.0 * visible_pairs() *
         (products_qk * static_cast<double>(problem.dim_qk) +
          products_vo * static_cast<double>(problem.dim_vo));
}

core::Status AttentionWork::cut(const Whole& whole, std::vector<Piece>& pieces) const {
  const Problem& p = problem;
  const std::int64_t group = p.heads_q / p.heads_kv;
  if (whole.tiles == 0 || p.batch == 0) return {};
  std::int64_t batches =
      std::min<std::int64_t>(p.batch, call.facts.max_grid / whole.groups_per_entry);
  if (whole.entries_apart) batches = std::min<std::int64_t>(batches, 1);
  if (batches == 0) {
    return core::Status::unsupported(
        "webgpu: splits: found " + std::to_string(whole.groups_per_entry) +
        "; this device's grids have at most " + std::to_string(call.facts.max_grid));
  }
  std::int64_t heads = std::min<std::int64_t>(p.heads_kv, call.facts.max_grid / group);
  std::int64_t tiles = std::min<std::int64_t>(whole.tiles, call.facts.max_grid);
  const auto largest_bytes = [&] {
    std::uint64_t bytes = 0;
    for (const View* view : whole.of_queries) {
      if (!view->given()) continue;
      bytes = std::max(bytes, bound(*view, {0, batches, 0, heads * group}, 1).operand.size);
    }
    for (const View* view : whole.of_keys) {
      if (!view->given()) continue;
      bytes = std::max(bytes, bound(*view, {0, batches, 0, heads}, 1).operand.size);
    }
    return bytes + call.facts.storage_alignment;
  };
  const auto halve = [](std::int64_t& n) { n = (n + 1) / 2; };
  while (largest_bytes() > call.facts.max_storage_binding_bytes) {
    if (batches > 1) {
      halve(batches);
    } else if (heads > 1) {
      halve(heads);
    } else {
      return core::Status::unsupported(
          "webgpu: a tensor's bytes of one batch entry and key head: found " +
          std::to_string(largest_bytes()) + "; this device binds at most " +
          std::to_string(call.facts.max_storage_binding_bytes) + " at once");
    }
  }
  // What bindings and grids allow is a block that is cut further for the submission's sake.
  const double share = static_cast<double>(batches * heads) /
                       static_cast<double>(p.batch * p.heads_kv) * static_cast<double>(tiles) /
                       static_cast<double>(whole.tiles);
  Extents parts = parts_of({batches, heads, tiles, whole.visits}, whole.flops * share,
                           call.facts.submission_flops);
  parts.batches *= core::divide_up(p.batch, batches);
  parts.heads *= core::divide_up(p.heads_kv, heads);
  parts.tiles *= core::divide_up(whole.tiles, tiles);
  const double flops = whole.flops / static_cast<double>(parts.batches * parts.heads) /
                       static_cast<double>(parts.tiles * parts.visits);
  const auto range = [](std::int64_t n, std::int64_t all, std::int64_t of) {
    const std::int64_t begin = begin_of_part(n, all, of);
    return std::pair(begin, begin_of_part(n + 1, all, of) - begin);
  };
  for (std::int64_t b = 0; b < parts.batches; ++b) {
    for (std::int64_t g = 0; g < parts.heads; ++g) {
      for (std::int64_t t = 0; t < parts.tiles; ++t) {
        for (std::int64_t v = 0; v < parts.visits; ++v) {
          Piece piece;
          std::tie(piece.kv.batch, piece.kv.batches) = range(b, p.batch, parts.batches);
          std::tie(piece.kv.head, piece.kv.heads) = range(g, p.heads_kv, parts.heads);
          std::tie(piece.first_tile, piece.tiles) = range(t, whole.tiles, parts.tiles);
          std::tie(piece.first_visit, piece.visits) = range(v, whole.visits, parts.visits);
          piece.q = {piece.kv.batch, piece.kv.batches, piece.kv.head * group,
                     piece.kv.heads * group};
          piece.flops = flops;
          if (piece.kv.batches * piece.kv.heads * piece.tiles > 0) pieces.push_back(piece);
        }
      }
    }
  }
  return {};
}

}  // namespace attn::webgpu
