// The dispatches of the backward: {lse, delta} of rows, dq, dk and dv, dbias, dsink.
#include <algorithm>

#include "core/divide_up.hpp"
#include "webgpu/passes/attention.hpp"
#include "webgpu/passes/tiling.hpp"

namespace attn::webgpu {
namespace {

constexpr std::uint32_t kDeltaRows = 8;      // per workgroup of delta.wgsl
constexpr std::int64_t kWantedGroups = 512;  // workgroups of bias_gradient.wgsl that fill a device
constexpr std::int64_t kLeastGroups = 256;   // the same per dispatch of backward_q_bias.wgsl
constexpr std::int64_t kMostPartElements = std::int64_t{1} << 24;

// Only sequences may share the bias here. They then add to dbias in order, one dispatch each, and
// each dispatch must still fill the device (CPUs have few threads). The kernel has no binding left
// for a mask.
bool can_write_dbias(const Problem& p, const Tiles& tiles, const DeviceFacts& facts) {
  const bool has_rows = (p.layout_q == Layout::packed ? p.total_q : p.batch) > 0 && p.dim_qk > 0;
  if (!p.dq || !p.dbias || p.mask.given || !has_rows || p.batch == 0) return false;
  const auto is_full = [](bool full, std::int64_t size) { return size > 0 && (full || size == 1); };
  if (!is_full(p.bias.kv, p.len_kv) || !is_full(p.bias.q, p.len_q) ||
      !is_full(p.bias.head, p.heads_q)) {
    return false;
  }
  return is_full(p.bias.batch && p.bias.per_entry == 1, p.batch) ||
         facts.type == AdapterType::cpu || p.heads_q * tiles.count_q(p) >= kLeastGroups;
}

PlannedKernel plan_kernel(BackwardKernel of, const char* name, const Problem& p,
                          const DeviceFacts& facts) {
  const BackwardTiling tiling = backward_tiling(of, p, facts);
  PlannedKernel x{.runs = true,
                  .spec = kernel_spec(name),
                  .tiles = {.q = tiling.tile_q()},
                  .tile_kv = tiling.tile_kv()};
  if (of != BackwardKernel::q) x.tiles.kv = tiling.tile_kv();
  add_input_constants(Pass::backward, p, x.spec);
  x.spec.add_constant("TYPE_DOUT", number_of(p.out_type()));
  x.spec.add_constant("OPTIONS", score_options(p, facts));
  add_tiling_constants(of, tiling, p, x.spec);
  return x;
}

KernelSpec plan_delta(const Problem& p) {
  KernelSpec spec = kernel_spec("delta", "write_lse_delta");
  spec.add_constant("TYPE_O", number_of(p.out_type()));
  spec.add_constant("TYPE_DOUT", number_of(p.out_type()));
  spec.add_constant("DLSE", p.dlse ? 1 : 0);
  spec.add_constant("DELTA", p.delta ? 1 : 0);
  return spec;
}

// Binds q, k, v, dout and info of a chunk.
void bind_rows(const PreparedCall& prepared, const Chunk& chunk, Dispatch& dispatch,
               AttentionParameters& p) {
  bind_qkv(prepared, chunk.q, chunk.kv, dispatch, p);
  bind_tensor(prepared, dispatch, "dout", prepared.dout, chunk.q, 16, p.dout);
}

// The same with bias and mask.
void bind_inputs(const PreparedCall& prepared, const Chunk& chunk, Dispatch& dispatch,
                 AttentionParameters& p) {
  bind_rows(prepared, chunk, dispatch, p);
  bind_bias(prepared, chunk.q, dispatch, p);
  bind_mask(prepared, chunk.q, dispatch, p);
}

Workload workload_of(const PreparedCall& prepared, std::int64_t tiles, double flops) {
  return {.by_heads_q = {&prepared.q, &prepared.dout, &prepared.bias, &prepared.mask},
          .by_heads_kv = {&prepared.k, &prepared.v},
          .tiles = tiles,
          .flops = flops};
}

core::Status add_delta(const PreparedCall& prepared, Work& work) {
  const Problem& problem = prepared.problem();
  const Arguments& a = prepared.arguments;
  const View o = rows_view(a.o);
  const View dout = rows_view(a.dout);
  const View lse = row_scalars_view(a.lse);
  const View dlse = row_scalars_view(a.dlse);
  const View delta = row_scalars_view(a.delta);
  Workload workload{.by_heads_q = {&o, &dout, &lse, &dlse, &delta},
                    .by_heads_kv = {},
                    .tiles = core::divide_up(problem.len_q, kDeltaRows),
                    .flops = 0.0};
  std::vector<Chunk> chunks;
  core::Status status = cut(prepared, workload, chunks);
  for (const Chunk& chunk : chunks) {
    Dispatch dispatch(prepared.attention().delta.spec);
    AttentionParameters p = parameters_of(prepared, chunk, {.q = 1});
    p.first_tile_q = u32(chunk.first_tile);
    const auto bind_view = [&](const char* name, const View& view, StridedTensor& place) {
      bind_tensor(prepared, dispatch, name, view, chunk.q, size_of(view.dtype), place);
    };
    bind_view("o", o, p.o);
    bind_view("dout", dout, p.dout);
    bind_view("lse", lse, p.lse);
    bind_view("dlse", dlse, p.dlse);
    bind_view("delta", delta, p.delta);
    dispatch.bind("info", prepared.info);
    dispatch.grid = {u32(chunk.tiles), u32(chunk.q.heads), u32(chunk.q.batches)};
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
  return status;
}

// dbias in `staged`, as backward_q_bias.wgsl writes it: rows padded to a multiple of 4.
View stage_dbias(const View& dbias, Work& work) {
  const std::int64_t dim = (dbias.dim + 3) / 4 * 4;
  const Operand part = work.reserve(
      Memory::staged, static_cast<std::uint64_t>(dbias.batch * dbias.heads * dbias.rows * dim * 4));
  return scratch_view(part, DType::f32, dbias.batch, dbias.heads, dbias.rows, dim);
}

core::Status add_dq(const PreparedCall& prepared, Work& work) {
  const PlannedKernel& kernel = prepared.attention().dq;
  const Tiles& tiles = kernel.tiles;
  const View dq = rows_view(prepared.arguments.dq);
  if (!dq.given()) return {};
  const View written = place_output(prepared, dq, work);
  Workload workload =
      workload_of(prepared, tiles.count_q(prepared.problem()), flops_of(prepared, 2, 1));
  workload.by_heads_q.push_back(&written);
  const View dbias = score_view(prepared.arguments.dbias);
  const bool with_bias = prepared.attention().dq_writes_dbias;
  View staged{.rows = 0};
  if (with_bias) staged = stage_dbias(dbias, work);
  workload.by_heads_q.push_back(&staged);
  workload.sequences_apart = with_bias && dbias.batch < prepared.problem().batch;
  std::vector<Chunk> chunks;
  core::Status status = cut(prepared, workload, chunks);
  if (!status.ok()) return status;
  for (const Chunk& chunk : chunks) {
    Dispatch dispatch(kernel.spec);
    AttentionParameters p = parameters_of(prepared, chunk, tiles);
    p.first_tile_q = u32(chunk.first_tile);
    p.out_type = number_of(written.dtype);
    if (with_bias) {
      bind_rows(prepared, chunk, dispatch, p);
      bind_bias(prepared, chunk.q, dispatch, p);
      const Extent& extent = prepared.problem().bias;
      bind_tensor(prepared, dispatch, "dbias", staged, block_of_entries(extent, chunk.q), 16,
                  p.dbias);
      const std::int64_t sharers = extent.sharers(prepared.problem().batch);
      p.accumulate = workload.sequences_apart && chunk.q.batch % sharers > 0 ? 1 : 0;
    } else {
      bind_inputs(prepared, chunk, dispatch, p);
    }
    bind_tensor(prepared, dispatch, "dq", written, chunk.q, 4, p.dq);
    dispatch.grid = {u32(chunk.tiles), u32(chunk.q.heads), u32(chunk.q.batches)};
    dispatch.flops = chunk.flops;
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
  if (with_bias) {
    staged.dim = dbias.dim;
    status = finish_output(prepared, dbias, staged, Copy::Which::all, false, work);
  }
  return status.ok() ? finish_output(prepared, dq, written, Copy::Which::queries, true, work)
                     : status;
}

// dk and dv in `staged`, adjacent for each key head of a sequence, so that one binding holds both.
struct StagedGradients {
  View both, dk, dv;
};

StagedGradients stage_gradients(const PreparedCall& prepared, Work& work) {
  const Problem& p = prepared.problem();
  const bool packed = p.layout_kv == Layout::packed;
  const std::int64_t batch = packed ? 1 : p.batch;
  const std::int64_t rows = packed ? p.total_kv : p.len_kv;
  const auto in_fours = [](std::int64_t dim) { return (dim + 3) / 4 * 4; };
  const std::int64_t dim_k = in_fours(p.dim_qk);
  const std::int64_t dim_v = in_fours(p.dim_vo);
  const Operand part = work.reserve(
      Memory::staged, static_cast<std::uint64_t>(batch * p.heads_kv * rows * (dim_k + dim_v) * 4));
  StagedGradients x;
  x.both = scratch_view(part, DType::f32, batch, p.heads_kv, rows, dim_k + dim_v);
  x.dk = x.both;
  x.dk.dim = p.dim_qk;
  x.dk.stride_row = dim_k;
  x.dv = x.both;
  x.dv.offset_bytes += rows * dim_k * 4;
  x.dv.dim = p.dim_vo;
  x.dv.stride_row = dim_v;
  return x;
}

core::Status add_dkv(const PreparedCall& prepared, Work& work) {
  const PlannedKernel& kernel = prepared.attention().dkv;
  const Tiles& tiles = kernel.tiles;
  const View dk = rows_view(prepared.arguments.dk);
  const View dv = rows_view(prepared.arguments.dv);
  if (!dk.given() && !dv.given()) return {};
  const StagedGradients staged = stage_gradients(prepared, work);
  Workload workload =
      workload_of(prepared, tiles.count_kv(prepared.problem()), flops_of(prepared, 2, 2));
  workload.by_heads_kv.push_back(&staged.both);
  workload.visits = tiles.count_q(prepared.problem()) * prepared.numbers.heads_per_kv;
  std::vector<Chunk> chunks;
  core::Status status = cut(prepared, workload, chunks);
  if (!status.ok()) return status;
  for (const Chunk& chunk : chunks) {
    Dispatch dispatch(kernel.spec);
    AttentionParameters p = parameters_of(prepared, chunk, tiles);
    p.first_tile_kv = u32(chunk.first_tile);
    p.first_split = u32(chunk.first_visit);
    p.split_tiles = u32(chunk.visits);
    bind_inputs(prepared, chunk, dispatch, p);
    StridedTensor first;
    bind_tensor(prepared, dispatch, "gradients", staged.both, chunk.kv, 4, first);
    p.dk = first;
    p.dk.row = u32(staged.dk.stride_row);
    p.dv = first;
    p.dv.base += u32((staged.dv.offset_bytes - staged.dk.offset_bytes) / 4);
    p.dv.row = u32(staged.dv.stride_row);
    dispatch.grid = {u32(chunk.tiles), u32(chunk.kv.heads), u32(chunk.kv.batches)};
    dispatch.flops = chunk.flops;
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
  status = finish_output(prepared, dk, staged.dk, Copy::Which::keys, true, work);
  return status.ok() ? finish_output(prepared, dv, staged.dv, Copy::Which::keys, false, work)
                     : status;
}

// Number of partial sums of dbias, each computed by different workgroups: enough to fill a device,
// within a limit on memory.
std::int64_t parts_of(std::int64_t places, std::int64_t visits, std::int64_t elements) {
  const std::int64_t wanted = core::divide_up(kWantedGroups, std::max<std::int64_t>(places, 1));
  const std::int64_t most = std::max<std::int64_t>(kMostPartElements / elements, 1);
  return std::clamp<std::int64_t>(visits, 1, std::min(wanted, most));
}

void add_parts_sum(Work& work, const Operand& staged, std::int64_t elements, std::int64_t parts) {
  if (parts < 2) return;
  Dispatch dispatch("bias_gradient_sum");
  dispatch.bind("dbias", staged);
  PartSumParameters p;
  p.part_elements = u32(elements);
  p.parts = u32(parts);
  dispatch.set_parameters(p);
  dispatch.set_elements(elements);
  work.dispatches.push_back(dispatch);
}

core::Status add_dbias(const PreparedCall& prepared, Work& work) {
  const PlannedKernel& kernel = prepared.attention().dbias;
  const Tiles& tiles = kernel.tiles;
  const View dbias = score_view(prepared.arguments.dbias);
  if (!dbias.given()) return {};
  const Problem& problem = prepared.problem();
  Extent full = problem.bias;
  // If sequences share an entry, all sequences of a chunk share the same one.
  if (full.per_entry > 1) full.batch = false;
  const std::int64_t elements = dbias.batch * dbias.heads * dbias.rows * dbias.dim;
  std::vector<Chunk> chunks;
  core::Status status = cut(prepared, workload_of(prepared, 1, flops_of(prepared, 1, 1)), chunks);
  if (!status.ok()) return status;
  if (chunks.empty()) {  // no sequences: the sum is zero
    if (!problem.accumulate) add_fill(prepared, dbias, Copy::Which::all, 0, work);
    return {};
  }
  const std::int64_t tiles_q = tiles.count_q(problem);
  const std::int64_t tiles_kv = tiles.count_kv(problem);
  const auto places = [](bool is_full, std::int64_t n) { return is_full ? n : 1; };
  const auto visits = [](bool is_full, std::int64_t n) { return is_full ? 1 : n; };
  const Block& block = chunks.front().q;  // the largest
  const std::int64_t tile_visits = visits(full.kv, tiles_kv) * visits(full.q, tiles_q);
  const std::int64_t all_visits =
      tile_visits * visits(full.head, block.heads) * visits(full.batch, block.batches);
  const std::int64_t all_places = places(full.kv, tiles_kv) * places(full.q, tiles_q) *
                                  places(full.head, block.heads) *
                                  places(full.batch, block.batches);
  std::int64_t parts = parts_of(all_places, all_visits, elements);
  const std::int64_t split = std::max<std::int64_t>(core::divide_up(all_visits, parts), 1);
  parts = std::max<std::int64_t>(core::divide_up(all_visits, split), 1);
  const Operand staged =
      work.reserve(Memory::staged, static_cast<std::uint64_t>(elements * parts * 4));
  View written = scratch_view(staged, DType::f32, dbias.batch, dbias.heads, dbias.rows, dbias.dim);
  for (const Chunk& chunk : chunks) {
    Dispatch dispatch(kernel.spec);
    AttentionParameters p = parameters_of(prepared, chunk, tiles);
    bind_inputs(prepared, chunk, dispatch, p);
    dispatch.bind("dbias", staged);
    p.dbias = {0, u32(written.stride_batch), u32(written.stride_row), u32(written.stride_head)};
    p.dbias.base = u32(problem.bias.entry_of(chunk.q.batch) * written.stride_batch +
                       (full.head ? chunk.q.head * written.stride_head : 0));
    p.dbias_part = u32(elements);
    p.dbias_full =
        (full.kv ? 1u : 0u) | (full.q ? 2u : 0u) | (full.head ? 4u : 0u) | (full.batch ? 8u : 0u);
    p.split_tiles = u32(split);
    p.batch = u32(chunk.q.batches);
    p.heads = u32(chunk.q.heads);
    const bool added = chunk.q.batch % problem.bias.sharers(problem.batch) > 0;
    p.accumulate = added || (chunk.q.head > 0 && !full.head) ? 1 : 0;
    dispatch.grid = {
        u32(places(full.kv, tiles_kv)), u32(places(full.q, tiles_q)),
        u32(parts * places(full.head, chunk.q.heads) * places(full.batch, chunk.q.batches))};
    dispatch.flops = chunk.flops;
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
  add_parts_sum(work, staged, elements, parts);
  return finish_output(prepared, dbias, written, Copy::Which::all, false, work);
}

void add_dsink(const PreparedCall& prepared, Work& work) {
  const TensorView& dsink = prepared.arguments.dsink;
  if (!dsink.given()) return;
  const Problem& problem = prepared.problem();
  Chunk chunk;
  chunk.q = {0, problem.batch, 0, problem.heads_q};
  Dispatch dispatch("sink_gradient");
  AttentionParameters p = parameters_of(prepared, chunk, {.q = 1});
  dispatch.bind("info", prepared.info);
  bind_tensor(prepared, dispatch, "dsink", list_view(dsink), {}, 4, p.dsink);
  p.dsink.head = p.dsink.row;
  p.batch = u32(problem.batch);
  p.accumulate = problem.accumulate ? 1 : 0;
  dispatch.grid = {u32(problem.heads_q), 1, 1};
  dispatch.set_parameters(p);
  work.dispatches.push_back(dispatch);
}

}  // namespace

void plan_backward(const Problem& problem, AttentionPlan& plan) {
  plan.delta = {.runs = true, .spec = plan_delta(problem), .tiles = {.q = kDeltaRows}};
  if (problem.dq) {
    plan.dq = plan_kernel(BackwardKernel::q, "backward_q", problem, plan.facts);
    plan.dq_writes_dbias = can_write_dbias(problem, plan.dq.tiles, plan.facts);
    if (plan.dq_writes_dbias) plan.dq.spec.source = plan.dq.spec.entry = "backward_q_bias";
  }
  if (problem.dk || problem.dv) {
    plan.dkv = plan_kernel(BackwardKernel::kv, "backward_kv", problem, plan.facts);
  }
  if (problem.dbias && !plan.dq_writes_dbias) {
    plan.dbias = plan_kernel(BackwardKernel::bias, "bias_gradient", problem, plan.facts);
  }
}

core::Status add_backward(const PreparedCall& prepared, Work& work) {
  const AttentionPlan& plan = prepared.attention();
  core::Status status = add_delta(prepared, work);
  if (status.ok() && plan.dq.runs) status = add_dq(prepared, work);
  if (status.ok() && plan.dkv.runs) status = add_dkv(prepared, work);
  if (status.ok() && plan.dbias.runs) status = add_dbias(prepared, work);
  if (status.ok() && prepared.problem().dsink) add_dsink(prepared, work);
  add_fill_uncovered(prepared, work);
  return status;
}

}  // namespace attn::webgpu
