// The dispatches of the forward pass.
#include "webgpu/passes/attention.hpp"
#include "webgpu/passes/tiling.hpp"

namespace attn::webgpu {

void plan_forward(Pass pass, const Problem& problem, AttentionPlan& plan) {
  const Tiling tiling = forward_tiling(problem, plan.facts);
  plan.forward = {.runs = true,
                  .spec = kernel_spec("forward"),
                  .tiles = {.q = tiling.tile_q()},
                  .tile_kv = tiling.tile_kv()};
  KernelSpec& spec = plan.forward.spec;
  add_input_constants(pass, problem, spec);
  spec.add_constant("OPTIONS", score_options(problem, plan.facts));
  add_tiling_constants(tiling, problem, spec);
}

core::Status add_forward(const PreparedCall& prepared, Work& work) {
  const PlannedKernel& kernel = prepared.attention().forward;
  const Tiles& tiles = kernel.tiles;
  const View o = rows_view(prepared.arguments.o);
  const View lse = row_scalars_view(prepared.arguments.lse);
  const View written = place_output(prepared, o, work);
  const View written_lse = place_lse(prepared, lse, o, work);

  std::vector<Chunk> chunks;
  core::Status status = cut(prepared,
                            {.by_heads_q = {&prepared.q, &prepared.bias, &prepared.mask, &written},
                             .by_heads_kv = {&prepared.k, &prepared.v},
                             .tiles = tiles.count_q(prepared.problem()),
                             .flops = flops_of(prepared, 1, 1)},
                            chunks);
  if (!status.ok()) return status;
  for (const Chunk& chunk : chunks) {
    Dispatch dispatch(kernel.spec);
    AttentionParameters p = parameters_of(prepared, chunk, tiles);
    p.first_tile_q = static_cast<U32>(chunk.first_tile);
    p.out_type = number_of(written.dtype);
    bind_qkv(prepared, chunk.q, chunk.kv, dispatch, p);
    bind_bias(prepared, chunk.q, dispatch, p);
    bind_mask(prepared, chunk.q, dispatch, p);
    bind_tensor(prepared, dispatch, "o", written, chunk.q, 4, p.o);
    bind_tensor(prepared, dispatch, "lse", written_lse, chunk.q, 4, p.lse);
    dispatch.grid = {static_cast<U32>(chunk.tiles), static_cast<U32>(chunk.q.heads),
                     static_cast<U32>(chunk.q.batches)};
    dispatch.flops = chunk.flops;
    dispatch.set_parameters(p);
    work.dispatches.push_back(dispatch);
  }
  status = finish_output(prepared, o, written, Copy::Which::queries, false, work);
  if (status.ok()) status = finish_lse(prepared, lse, written_lse, work);
  add_fill_uncovered(prepared, work);
  return status;
}

}  // namespace attn::webgpu
