// Divides a pass into chunks that a device accepts; see attention.hpp and limits.hpp.
#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "core/divide_up.hpp"
#include "webgpu/host/limits.hpp"
#include "webgpu/passes/attention.hpp"

namespace attn::webgpu {
namespace {

// Upper bound on visible pairs, from the key ranges of up to 64 queries (the range is piecewise
// linear in the query). Shorter sequences see fewer, but only the device may know their lengths.
double visible_pairs(const PreparedCall& prepared) {
  constexpr std::int64_t kSamples = 64;
  const Problem& p = prepared.problem();
  const core::Band& band = prepared.numbers.band;
  if (p.len_q == 0 || p.len_kv == 0) return 0.0;
  const std::int64_t corner = band.bottom_right ? p.len_kv - p.len_q : 0;
  const std::int64_t samples = std::min(p.len_q, kSamples);
  std::int64_t seen = 0;
  for (std::int64_t n = 0; n < samples; ++n) {
    const std::int64_t i = (2 * n + 1) * p.len_q / (2 * samples) + corner;
    const std::int64_t low = std::max<std::int64_t>(core::saturating_add(i, band.low()), 0);
    const std::int64_t high = std::min(core::saturating_add(i + 1, band.high()), p.len_kv);
    seen += std::max<std::int64_t>(high - low, 1);
  }
  const std::int64_t rows =
      p.layout_q == Layout::packed ? std::min(p.batch * p.len_q, p.total_q) : p.batch * p.len_q;
  return static_cast<double>(seen) / static_cast<double>(samples) *
         static_cast<double>(rows * p.heads_q);
}

// Number of consecutive sequences (starting at a multiple of it) that share an entry of bias and
// mask; the batch size if none is shared by only a part of the sequences.
std::int64_t sequences_together(const Problem& p) {
  return std::gcd(p.bias.per_entry == 1 ? p.batch : p.bias.per_entry,
                  p.mask.per_entry == 1 ? p.batch : p.mask.per_entry);
}

// The largest block that bindings and grids allow: sequences and key heads.
struct Largest {
  std::int64_t batches = 0;
  std::int64_t heads = 0;
};

core::Status largest_block(const PreparedCall& prepared, const Workload& workload,
                           Largest& largest) {
  const Problem& p = prepared.problem();
  const DeviceFacts& facts = prepared.facts();
  const std::int64_t heads_per_kv = prepared.numbers.heads_per_kv;
  auto& [batches, heads] = largest;
  batches =
      std::min<std::int64_t>(sequences_together(p), facts.max_grid / workload.groups_per_sequence);
  if (workload.sequences_apart) batches = std::min<std::int64_t>(batches, 1);
  if (batches == 0) {
    return core::Status::unsupported(
        "webgpu: splits: found " + std::to_string(workload.groups_per_sequence) +
        "; this device's grids have at most " + std::to_string(facts.max_grid));
  }
  heads = std::min<std::int64_t>(p.heads_kv, facts.max_grid / heads_per_kv);
  const auto largest_bytes = [&] {
    std::uint64_t bytes = 0;
    const auto add = [&](const std::vector<const View*>& views, std::int64_t num_heads) {
      for (const View* view : views) {
        if (!view->given()) continue;
        const Block block{0, largest.batches, 0, num_heads};
        bytes = std::max(bytes, bind(prepared, *view, block, 1).operand.size);
      }
    };
    add(workload.by_heads_q, largest.heads * heads_per_kv);
    add(workload.by_heads_kv, largest.heads);
    return bytes + facts.storage_alignment;
  };
  while (largest_bytes() > facts.max_storage_binding_bytes) {
    if (batches == 1 && heads == 1) {
      return core::Status::unsupported(
          "webgpu: a tensor's bytes of one sequence and key head: found " +
          std::to_string(largest_bytes()) + "; this device binds at most " +
          std::to_string(facts.max_storage_binding_bytes) + " at once");
    }
    std::int64_t& n = batches > 1 ? batches : heads;
    n = (n + 1) / 2;
  }
  return {};
}

}  // namespace

double flops_of(const PreparedCall& prepared, double products_qk, double products_vo) {
  const Problem& p = prepared.problem();
  return 2.0 * visible_pairs(prepared) *
         (products_qk * static_cast<double>(p.dim_qk) +
          products_vo * static_cast<double>(p.dim_vo));
}

core::Status cut(const PreparedCall& prepared, const Workload& workload,
                 std::vector<Chunk>& chunks) {
  const Problem& p = prepared.problem();
  const DeviceFacts& facts = prepared.facts();
  const std::int64_t heads_per_kv = prepared.numbers.heads_per_kv;
  if (workload.tiles == 0 || p.batch == 0) return {};
  Largest largest;
  core::Status status = largest_block(prepared, workload, largest);
  if (!status.ok()) return status;
  const auto [batches, heads] = largest;
  const std::int64_t tiles = std::min<std::int64_t>(workload.tiles, facts.max_grid);
  // The largest block is divided further until it fits a submission.
  const double share = static_cast<double>(batches * heads) /
                       static_cast<double>(p.batch * p.heads_kv) * static_cast<double>(tiles) /
                       static_cast<double>(workload.tiles);
  Extents num = num_chunks({batches, heads, tiles, workload.visits}, workload.flops * share,
                           facts.submission_flops);
  const std::int64_t together = sequences_together(p);
  num.batches *= core::divide_up(together, batches) * (p.batch / together);
  num.heads *= core::divide_up(p.heads_kv, heads);
  num.tiles *= core::divide_up(workload.tiles, tiles);
  const double flops = workload.flops / static_cast<double>(num.batches * num.heads) /
                       static_cast<double>(num.tiles * num.visits);
  const auto range = [](std::int64_t n, std::int64_t all, std::int64_t of) {
    const std::int64_t begin = begin_of_chunk(n, all, of);
    return std::pair(begin, begin_of_chunk(n + 1, all, of) - begin);
  };
  for (std::int64_t b = 0; b < num.batches; ++b) {
    for (std::int64_t g = 0; g < num.heads; ++g) {
      for (std::int64_t t = 0; t < num.tiles; ++t) {
        for (std::int64_t v = 0; v < num.visits; ++v) {
          Chunk chunk;
          std::tie(chunk.kv.batch, chunk.kv.batches) = range(b, p.batch, num.batches);
          std::tie(chunk.kv.head, chunk.kv.heads) = range(g, p.heads_kv, num.heads);
          std::tie(chunk.first_tile, chunk.tiles) = range(t, workload.tiles, num.tiles);
          std::tie(chunk.first_visit, chunk.visits) = range(v, workload.visits, num.visits);
          chunk.q = {chunk.kv.batch, chunk.kv.batches, chunk.kv.head * heads_per_kv,
                     chunk.kv.heads * heads_per_kv};
          chunk.flops = flops;
          if (chunk.kv.batches * chunk.kv.heads * chunk.tiles > 0) chunks.push_back(chunk);
        }
      }
    }
  }
  return {};
}

}  // namespace attn::webgpu
