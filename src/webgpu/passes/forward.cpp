// The dispatches of the forward pass.
#include "webgpu/passes/attention.hpp"
#include "webgpu/passes/tiling.hpp"

namespace attn::webgpu {
namespace {

// forward.wgsl with its constants, before anything is bound.
Dispatch forward_dispatch(const PreparedCall& prepared, const Tiling& tiling) {
  Dispatch dispatch("forward");
  add_input_constants(prepared, dispatch);
  dispatch.add_constant("OPTIONS", score_options(prepared));
  add_tiling_constants(tiling, prepared.problem(), dispatch);
  return dispatch;
}

}  // namespace

core::Status add_forward(PreparedCall& prepared, Work& work) {
  const Problem& problem = prepared.problem();
  const Tiling tiling = forward_tiling(problem, prepared.facts());
  Tiles tiles{.q = tiling.tile_q()};
  add_prepare(prepared, false, {&tiles}, work);
  core::Status status = add_inputs(prepared, work);
  if (!status.ok()) return status;
  const View o = rows_view(prepared.arguments().o);
  const View lse = row_scalars_view(prepared.arguments().lse);
  const View written = place_output(prepared, o, work);
  const View written_lse = place_lse(prepared, lse, o, work);

  std::vector<Chunk> chunks;
  status = cut(prepared,
               {.by_heads_q = {&prepared.q, &prepared.bias, &prepared.mask, &written},
                .by_heads_kv = {&prepared.k, &prepared.v},
                .tiles = tiles.count_q(problem),
                .flops = flops_of(prepared, 1, 1)},
               chunks);
  if (!status.ok()) return status;
  const Dispatch unbound = forward_dispatch(prepared, tiling);
  for (const Chunk& chunk : chunks) {
    Dispatch dispatch = unbound;
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
