// The dispatches of decode: partial results of splits of the keys, and their merge.
#include <algorithm>
#include <array>
#include <string>

#include "core/divide_up.hpp"
#include "webgpu/passes/attention.hpp"
#include "webgpu/passes/tiling.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kFewRows = 16;            // per key head
constexpr std::int64_t kLeastSplit = 512;        // keys
constexpr std::int64_t kWantedGroupsGpu = 2000;  // to fill a large device
constexpr std::int64_t kWantedGroupsCpu = 8;

// Tiles of the rows that share a key head.
std::int64_t num_tiles(const Problem& p, std::uint32_t rows) {
  return core::divide_up(p.len_q * (p.heads_q / p.heads_kv), rows);
}

Splits split(const Problem& p, const DecodeTiling& tiling, std::int64_t tiles,
             const DeviceFacts& facts) {
  const std::int64_t len = std::max<std::int64_t>(p.len_kv, 1);
  std::int64_t keys = len;
  if (p.split_keys > 0) {
    keys = std::min(p.split_keys, len);
  } else if (p.split_keys == kSplitAuto) {
    const std::int64_t groups = std::max<std::int64_t>(p.batch * p.heads_kv * tiles, 1);
    const std::int64_t wanted =
        facts.type == AdapterType::cpu ? kWantedGroupsCpu : kWantedGroupsGpu;
    const std::int64_t even = core::divide_up(len, core::divide_up(wanted, groups));
    const auto tile = static_cast<std::int64_t>(tiling.tile());
    keys = std::max(kLeastSplit, core::divide_up(even, tile) * tile);
  }
  return {keys, core::divide_up(len, keys)};
}

// Partial results of each row: o [splits, dim_vo], then lse [splits].
struct Partials {
  View view;
  std::int64_t lse_at = 0;  // word of a row at which lse begins

  [[nodiscard]] StridedTensor lse(StridedTensor rows) const {
    rows.base += u32(lse_at);
    return rows;
  }
};

Partials stage(const PreparedCall& prepared, std::int64_t splits, Work& work) {
  const Problem& p = prepared.problem();
  const bool packed = p.layout_q == Layout::packed;
  const std::int64_t batch = packed ? 1 : p.batch;
  const std::int64_t rows = packed ? p.total_q : p.len_q;
  const std::int64_t words = splits * (p.dim_vo + 1);
  const Operand part = work.reserve(
      Memory::staged, static_cast<std::uint64_t>(batch * p.heads_q * rows * words * 4));
  return {scratch_view(part, DType::f32, batch, p.heads_q, rows, words), splits * p.dim_vo};
}

// Any sequence may use any page, so all pages are bound.
core::Status check_pages(const PreparedCall& prepared) {
  const std::uint64_t most = prepared.facts().max_storage_binding_bytes;
  for (const View* view : {&prepared.k, &prepared.v}) {
    if (!view->given()) continue;
    const std::uint64_t bytes =
        bind(prepared, *view, {0, view->batch, 0, view->heads}, 16).operand.size;
    if (bytes > most) {
      return core::Status::unsupported("webgpu: a paged cache's bytes: found " +
                                       std::to_string(bytes) + "; this device binds at most " +
                                       std::to_string(most) + " at once");
    }
  }
  return {};
}

void add_combine(const PreparedCall& prepared, const Chunk& chunk, const Partials& partials,
                 const Splits& splits, const View& lse, Work& work) {
  const Problem& problem = prepared.problem();
  const View o = rows_view(prepared.arguments.o);
  Dispatch dispatch("combine");
  dispatch.add_constant("TYPE_TO", number_of(o.dtype));
  CombineParameters p;
  bind_tensor(prepared, dispatch, "partials", partials.view, chunk.q, 4, p.partial_o);
  p.partial_lse = partials.lse(p.partial_o);
  dispatch.bind("info", prepared.info);
  bind_tensor(prepared, dispatch, "to", o, chunk.q, size_of(o.dtype), p.o);
  const Operand spare{Memory::spare, nullptr, 0, 16};
  if (lse.given()) {
    bind_tensor(prepared, dispatch, "lse", lse, chunk.q, 4, p.lse);
  } else {
    dispatch.bind("lse", spare);
  }
  StridedTensor count;
  if (problem.nonfinite_zero) {
    bind_tensor(prepared, dispatch, "count", list_view(prepared.arguments.nonfinite_count), {}, 4,
                count);
  } else {
    dispatch.bind("count", Operand{Memory::spare, nullptr, 256, 16});
  }
  p.dim = u32(problem.dim_vo);
  p.splits = u32(splits.count);
  p.sequences_at = prepared.common.sequences_at;
  p.sinks_at = prepared.common.sinks_at;
  p.first_batch = u32(chunk.q.batch);
  p.first_head = u32(chunk.q.head);
  p.packed = prepared.common.packed & 1u;
  p.lse_given = lse.given() ? 1 : 0;
  p.nonfinite_zero = problem.nonfinite_zero ? 1 : 0;
  const std::int64_t most = prepared.facts().max_grid;
  for (std::int64_t row = 0; row < problem.len_q; row += most) {
    p.first_row = u32(row);
    dispatch.grid = {u32(std::min(most, problem.len_q - row)), u32(chunk.q.heads),
                     u32(chunk.q.batches)};
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
}

}  // namespace

bool takes_decode(const Problem& p) {
  return p.page_size > 0 || p.split_keys > 0 || p.len_q * (p.heads_q / p.heads_kv) <= kFewRows;
}

void plan_decode(Pass pass, const Problem& problem, AttentionPlan& plan) {
  const DecodeTiling tiling = decode_tiling(problem, plan.facts);
  plan.splits = split(problem, tiling, num_tiles(problem, tiling.rows), plan.facts);
  plan.decode = {.runs = true,
                 .spec = kernel_spec(tiling.subgroups ? "decode_subgroups" : "decode"),
                 .tiles = {.q = tiling.rows},
                 .tile_kv = tiling.tile()};
  KernelSpec& spec = plan.decode.spec;
  spec.subgroups = tiling.subgroups;
  add_input_constants(pass, problem, spec);
  spec.add_constant("THREADS", tiling.threads);
  spec.add_constant("ROWS", tiling.rows);
  spec.add_constant("UNROLL", tiling.unroll);
  spec.add_constant("LANES", tiling.lanes);
}

core::Status add_decode(const PreparedCall& prepared, Work& work) {
  const Problem& problem = prepared.problem();
  const PlannedKernel& decode = prepared.attention().decode;
  const Splits& splits = prepared.attention().splits;
  core::Status status;
  const Partials partials = stage(prepared, splits.count, work);
  const View o = rows_view(prepared.arguments.o);
  const View lse = row_scalars_view(prepared.arguments.lse);
  const View written_lse = place_combined_lse(prepared, lse, o, work);

  const bool paged = problem.page_size > 0 && !prepared.gathered;
  Workload whole{.by_heads_q = {&prepared.q, &prepared.bias, &prepared.mask, &partials.view, &o},
                 .by_heads_kv = {},
                 .tiles = num_tiles(problem, decode.tiles.q),
                 .flops = flops_of(prepared, 1, 1),
                 .groups_per_sequence = splits.count};
  if (!paged) whole.by_heads_kv = {&prepared.k, &prepared.v};
  if (paged) status = check_pages(prepared);
  std::vector<Chunk> chunks;
  if (status.ok()) status = cut(prepared, whole, chunks);
  if (!status.ok()) return status;
  const View table = list_view(prepared.arguments.block_table);
  for (const Chunk& chunk : chunks) {
    Dispatch dispatch(decode.spec);
    AttentionParameters p = parameters_of(prepared, chunk, {.q = 1});
    p.first_tile_q = u32(chunk.first_tile);
    // All pages of a paged cache.
    Block keys = chunk.kv;
    if (paged) keys = {0, prepared.k.batch, chunk.kv.head, chunk.kv.heads};
    bind_qkv(prepared, chunk.q, keys, dispatch, p);
    bind_bias(prepared, chunk.q, dispatch, p);
    bind_mask(prepared, chunk.q, dispatch, p);
    StridedTensor pages;
    bind_tensor(prepared, dispatch, "block_table", table, {0, table.batch, 0, 1}, 4, pages);
    bind_tensor(prepared, dispatch, "partials", partials.view, chunk.q, 4, p.o);
    p.lse = partials.lse(p.o);
    p.splits = u32(splits.count);
    p.split_keys = u32(splits.keys);
    p.page_size = u32(problem.page_size);
    p.num_pages = problem.page_size > 0 ? u32(rows_view(prepared.arguments.k).batch) : 0;
    p.gathered = prepared.gathered ? 1 : 0;
    p.table_at = pages.base;
    p.table_batch = pages.batch;
    p.table_page = pages.row;
    dispatch.grid = {u32(chunk.tiles), u32(chunk.kv.heads), u32(chunk.kv.batches * splits.count)};
    dispatch.flops = chunk.flops;
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
  for (const Chunk& chunk : chunks) {
    if (chunk.first_tile == 0) add_combine(prepared, chunk, partials, splits, written_lse, work);
  }
  if (lse.given() && written_lse.memory != Memory::tensor) {
    status = add_copy(work, prepared.facts(), {.from = written_lse, .to = lse});
  }
  add_fill_uncovered(prepared, work);
  return status;
}

}  // namespace attn::webgpu
