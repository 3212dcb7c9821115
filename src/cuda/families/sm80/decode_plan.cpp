// Plans of sm80/decode.cu; see decode_plan.hpp.
#include "cuda/families/sm80/decode_plan.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>

#include "core/access.hpp"
#include "core/divide_up.hpp"
#include "cuda/families/cache_params.hpp"
#include "cuda/families/few_queries.hpp"
#include "cuda/families/passes.hpp"
#include "cuda/families/sm80/decode_splits.hpp"
#include "cuda/families/sm80/heuristics.hpp"
#include "cuda/kernels/sm80/decode_params.cuh"

namespace attn::cuda::sm80 {
namespace {

constexpr std::int64_t kMaxRows = (std::int64_t{1} << 30) - 1;  // kernels count rows in 32 bits
constexpr std::int64_t kRowsPerWarp = 16;
constexpr int kSmallSlice = 4096;  // bytes of K and V that a warp loads per tile

// Parameters of a call's kernels.
struct DecodeBlocks {
  device::DecodeParams decode;
  device::append_rows::Params append;
};
static_assert(sizeof(DecodeBlocks) <= sizeof(ParameterMemory) && alignof(DecodeBlocks) <= 64);

struct DecodeTiles {
  int tile_q = 0;
  int tile_kv = 0;
  int warps = 0;
  int stages = 0;
  int blocks = 0;
  int dim = 0;
  bool quantized = false;
  bool descale_rows = false;

  [[nodiscard]] int shared_bytes() const {
    return device::DecodeSharedOf(tile_q, tile_kv, warps, stages, dim, quantized, descale_rows)
        .bytes;
  }
  // Keys that a block processes per step.
  [[nodiscard]] int step() const { return warps / (tile_q / 16) * tile_kv; }
};

// Rows of one key head of one sequence: its queries times the query heads that share it.
std::int64_t num_rows(const Problem& p) {
  return p.len_q * (p.heads_q / p.heads_kv);
}

// Whether tensors may allow loads of 16 bytes. Depends on the problem alone, not on the call's
// access, so that tiles and workspace are the same for every access.
bool may_load_vectors(const Problem& p) {
  return core::best_access(Pass::decode, p) != core::Access::element;
}

// Whether the problem needs the kernel that is compiled with all options.
bool has_options(const Problem& p) {
  return p.softcap || p.alibi || p.bias.given || p.mask.given || p.dropout;
}

// Every dim needs its own kernel. Dim 64 exists for plain calls only, to limit the number of
// kernels.
int dim_of(const Problem& p) {
  const std::int64_t dim = std::max(p.dim_qk, p.dim_vo);
  if (dim <= 64 && !has_options(p) && may_load_vectors(p)) return 64;
  return dim <= 128 ? 128 : 256;
}

// Throughput depends on the bytes in flight. The list therefore prefers two blocks per SM with
// three stages, then one block with as many stages as fit. Small tiles get twice the stages.
std::optional<DecodeTiles> tiles_of(const Problem& p, const DeviceFacts& facts) {
  constexpr std::array kRings{DecodeTiles{.warps = 4, .stages = 3, .blocks = 2},
                              DecodeTiles{.warps = 4, .stages = 4, .blocks = 1},
                              DecodeTiles{.warps = 4, .stages = 3, .blocks = 1},
                              DecodeTiles{.warps = 4, .stages = 2, .blocks = 1},
                              DecodeTiles{.warps = 2, .stages = 3, .blocks = 1},
                              DecodeTiles{.warps = 2, .stages = 2, .blocks = 1}};
  for (DecodeTiles tiles : kRings) {
    const int rows = num_rows(p) <= kRowsPerWarp && may_load_vectors(p) ? 1 : tiles.warps;
    tiles.dim = dim_of(p);
    tiles.quantized = has_quantized_cache(p);
    tiles.descale_rows = p.descale_rows;
    tiles.tile_q = 16 * rows;
    const int slice = device::DecodeSliceOf(tiles.dim, tiles.tile_q, tiles.quantized);
    tiles.tile_kv = rows * slice;
    if (2 * slice * tiles.dim * device::KvBytes(tiles.quantized) <= kSmallSlice) tiles.stages *= 2;
    const std::int64_t shared = tiles.shared_bytes();
    if (shared <= facts.shared_per_block &&
        tiles.blocks * (shared + kReservedShared) <= facts.shared_per_sm) {
      return tiles;
    }
  }
  return std::nullopt;
}

// The most keys that the rows of a tile can see together.
std::int64_t max_visible_keys(const Problem& p) {
  std::int64_t keys = p.len_kv;
  const bool bounded = p.causal || p.window_right.has_value();
  if (p.window_left && bounded) {
    const std::int64_t right = p.causal ? 0 : *p.window_right;
    keys = std::min(keys, std::min(*p.window_left, p.len_kv) + std::min(right, p.len_kv) + p.len_q);
  }
  return std::max<std::int64_t>(keys, 1);
}

// Whether the block may have other numbers of warps than tiles_of() chose: for 16 rows of 16-bit
// keys. The number of warps changes the order of additions, so calls with `split_keys`, whose
// results must not depend on the batch, keep it.
bool may_change_ring(const Problem& p, const DecodeTiles& tiles, const DeviceFacts& facts) {
  if (tiles.warps != 4 || tiles.stages != 3 || tiles.blocks != 2) return false;
  if (tiles.quantized || tiles.tile_q != 16 || p.split_keys != kSplitAuto) return false;
  const auto fits = [&](int warps, int blocks) {
    DecodeTiles other = tiles;
    other.warps = warps;
    const std::int64_t shared = other.shared_bytes();
    return shared <= facts.shared_per_block &&
           blocks * (shared + kReservedShared) <= facts.shared_per_sm;
  };
  return fits(8, 1) && fits(1, 8);
}

DecodeGrid grid_of(const Problem& p, const DecodeTiles& tiles, const DeviceFacts& facts) {
  DecodeGrid grid;
  const std::int64_t rows = num_rows(p);
  grid.row_tiles = core::divide_up(rows, tiles.tile_q);
  grid.tile_rows = std::min<std::int64_t>(rows, tiles.tile_q);
  grid.tiles = p.batch * p.heads_kv * grid.row_tiles;
  DecodeWork work;
  work.tiles = grid.tiles;
  work.rows = grid.tile_rows;
  work.keys = max_visible_keys(p);
  work.key_bytes = 2 * tiles.dim * device::KvBytes(tiles.quantized);
  work.step = tiles.step();
  work.blocks = tiles.blocks;
  work.sms = std::max(facts.num_sms, 1);
  work.eight_bits = tiles.quantized;
  // Blocks of a cluster have consecutive indices, as splits have if there is one tile of rows.
  work.clusters = facts.capability() == 90 && grid.row_tiles == 1;
  work.wide = may_change_ring(p, tiles, facts);
  if (p.split_keys > 0) {
    grid.split_keys = std::min(p.split_keys, std::max<std::int64_t>(p.len_kv, 1));
    grid.splits = std::max<std::int64_t>(core::divide_up(p.len_kv, grid.split_keys), 1);
    grid.cluster = makes_cluster(work, grid.splits);
  } else if (p.split_keys == kSplitAuto) {
    const DecodeSplits chosen = choose_splits(work);
    grid.splits = chosen.splits;
    grid.cluster = chosen.cluster;
    grid.wide = chosen.wide;
  }
  return grid;
}

// The tiles once the splits are known.
DecodeTiles refined(const Problem& p, DecodeTiles tiles, const DecodeGrid& grid,
                    const DeviceFacts& facts) {
  if (grid.wide) {
    tiles.warps = 8;
    tiles.blocks = 1;
  } else if (may_change_ring(p, tiles, facts) && tiles.dim == 64 && p.page_size == 0 &&
             grid.splits == 1 && 2 * grid.tiles >= 7 * facts.num_sms) {
    // Several waves of blocks: while one starts or ends, seven others read. At dim 128 it gains
    // nothing, and pages of one key take 1.5 times as long.
    tiles.warps = 1;
    tiles.blocks = 8;
  }
  return tiles;
}

// Offsets in bytes of the partial results in the workspace: rows of o, their statistics, arrival
// counters. A cluster needs none of them; they are there for launches that ignore clusters, as
// those of the tests' emulator.
struct PartialsLayout {
  std::int64_t stats = 0;
  std::int64_t arrivals = 0;
  std::int64_t bytes = 0;
};
PartialsLayout partials_of(const DecodeGrid& grid, std::int64_t dim) {
  constexpr std::int64_t kAlignment = 256;
  PartialsLayout layout;
  if (grid.splits == 1) return layout;
  const std::int64_t rows = grid.tiles * grid.splits * grid.tile_rows;
  layout.stats = core::round_up(rows * dim * 4, kAlignment);
  layout.arrivals = layout.stats + core::round_up(rows * 8, kAlignment);
  layout.bytes = layout.arrivals + core::round_up(grid.tiles * grid.splits * 8, kAlignment);
  return layout;
}

}  // namespace

bool uses_decode_kernel(Pass pass, const Problem& p) {
  if (pass == Pass::backward || p.batch <= 0) return false;
  if (p.dtype == DType::f32 || is_wide(p)) return false;
  if (has_cache(p) || has_quantized_cache(p)) return true;
  return has_few_queries(p) && num_rows(p) <= kMaxRows;
}

std::string decode_refusal(const Problem& p, const DeviceFacts& facts) {
  if (num_rows(p) > kMaxRows) {
    return "found len_q * heads_q / heads_kv=" + std::to_string(num_rows(p)) +
           "; paged and 8-bit caches take fewer than 2^30 on CUDA";
  }
  if (tiles_of(p, facts)) return {};
  return "no tiles of the decode kernel fit cuda:" + std::to_string(facts.ordinal) + ", " +
         to_string(facts) + ", with " + std::to_string(facts.shared_per_block) +
         " bytes of shared memory for a block";
}

CudaPlan plan_decode(Pass pass, const Problem& p, const DeviceFacts& facts, core::Access access) {
  CudaPlan plan(pass, p);
  add_uncovered_rows(plan, p);
  add_append(plan, p);
  DecodeTiles tiles = *tiles_of(p, facts);
  const bool by_element = access == core::Access::element;
  const bool options = has_options(p) || by_element;
  plan.decode = grid_of(p, tiles, facts);
  tiles = refined(p, tiles, plan.decode, facts);
  plan.workspace.decode.bytes = partials_of(plan.decode, tiles.dim).bytes;
  plan.workspace.bytes = plan.workspace.decode.bytes;
  plan.workspace_bytes = plan.workspace.bytes;
  plan.main = plan.num_kernels;
  KernelSpec& spec =
      plan.add("sm80/decode.cu", kDecodeEntry, static_cast<unsigned>(32 * tiles.warps),
               plan.decode.tiles * plan.decode.splits);
  spec.shared_bytes = static_cast<unsigned>(tiles.shared_bytes());
  spec.cluster = plan.decode.cluster ? static_cast<unsigned>(plan.decode.splits) : 1;
  spec.config.set("dtype", static_cast<int>(p.dtype))
      .set("kv_type", static_cast<int>(p.kv_type()))
      .set("descale_rows", p.descale_rows)
      .set("dim_qk", tiles.dim)
      .set("dim_vo", tiles.dim)
      .set("tile_q", tiles.tile_q)
      .set("tile_kv", tiles.tile_kv)
      .set("warps", tiles.warps)
      .set("stages", tiles.stages)
      .set("blocks", tiles.blocks)
      .set("paged", p.page_size > 0 || options)
      .set("options", options)
      .set("softcap", p.softcap)
      .set("dropout", p.dropout)
      .set("alibi", options)
      .set("bias_type", static_cast<int>(options ? DType::f32 : DType::none))
      .set("shared_entries", options)
      .set("element_access", by_element);
  return plan;
}

core::Status set_decode_params(const ParameterSources& from, std::span<KernelLaunch> launches,
                               ParameterMemory& memory) {
  const CudaPlan& plan = from.plan;
  const Problem& p = from.problem;
  const DecodeGrid& grid = plan.decode;
  DecodeBlocks& blocks = *std::construct_at(reinterpret_cast<DecodeBlocks*>(memory.bytes.data()));
  device::DecodeParams& params = blocks.decode;
  params.common = from.common;
  params.cache = cache_of(p, from.tensors);
  params.descale_k = descale_of(from.tensors.descale_k);
  params.descale_v = descale_of(from.tensors.descale_v);
  params.row_tiles = static_cast<int>(grid.row_tiles);
  params.tile_rows = static_cast<int>(grid.tile_rows);
  params.splits = static_cast<int>(grid.splits);
  params.split_keys = static_cast<int>(grid.split_keys);
  if (grid.splits > 1) {
    const PartialsLayout layout = partials_of(grid, *plan.kernels[plan.main].config.get("dim_vo"));
    params.partial_o = static_cast<char*>(from.workspace);
    params.partial_stats = params.partial_o + layout.stats;
    params.arrivals = reinterpret_cast<unsigned long long*>(params.partial_o + layout.arrivals);
  }
  blocks.append = {params.common, params.cache};
  for (KernelLaunch& launch : launches) {
    const std::string_view entry = launch.kernel->spec.entry;
    if (entry == kDecodeEntry) launch.parameters = block_of(params);
    if (entry == kAppendEntry) launch.parameters = block_of(blocks.append);
  }
  return {};
}

}  // namespace attn::cuda::sm80
