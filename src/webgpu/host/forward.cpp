// The forward's steps.
#include "webgpu/host/attention.hpp"
#include "webgpu/host/tiling.hpp"

namespace attn::webgpu {
namespace {

// forward.wgsl with its constants, before anything is bound.
Step forward_step(const AttentionWork& attention, const Tiling& tiling) {
  Step step;
  step.spec.source = "forward";
  step.spec.entry = "forward";
  attention.add_constants(step);
  step.add_constant("OPTIONS", attention.options_of_scores());
  add_tiling_constants(tiling, attention.problem, step);
  return step;
}

}  // namespace

core::Status add_forward(AttentionWork& attention) {
  const Problem& problem = attention.problem;
  const Tiling tiling = forward_tiling(problem, attention.call.facts);
  Tiles tiles{.q = tiling.tile_q()};
  attention.prepare(false, {&tiles});
  core::Status status = attention.take_inputs();
  if (!status.ok()) return status;
  const View o = rows_view(attention.arguments.o);
  const View lse = statistics_view(attention.arguments.lse);
  const View written = attention.place_output(o);
  const View written_lse = attention.place_statistics(lse, o);

  std::vector<Piece> pieces;
  status = attention.cut({.of_queries = {&attention.q, &attention.bias, &attention.mask, &written},
                          .of_keys = {&attention.k, &attention.v},
                          .tiles = tiles.count_q(problem),
                          .flops = attention.flops(1, 1)},
                         pieces);
  if (!status.ok()) return status;
  const Step plain = forward_step(attention, tiling);
  for (const Piece& piece : pieces) {
    Step step = plain;
    Parameters p = attention.parameters_of(piece, tiles);
    p.first_tile_q = static_cast<U32>(piece.first_tile);
    p.out_type = number_of(written.dtype);
    attention.bind_rows(step, Access::read, attention.q, piece.q, 16, p.q);
    attention.bind_rows(step, Access::read, attention.k, piece.kv, 16, p.k);
    attention.bind_rows(step, Access::read, attention.v, piece.kv, 16, p.v);
    step.bind(Access::read, attention.info);
    attention.bind_pairs(step, p, piece.q);
    attention.bind_rows(step, Access::write, written, piece.q, 4, p.o);
    attention.bind_rows(step, Access::write, written_lse, piece.q, 4, p.lse);
    step.grid = {static_cast<U32>(piece.tiles), static_cast<U32>(piece.q.heads),
                 static_cast<U32>(piece.q.batches)};
    step.flops = piece.flops;
    step.set_parameters(p);
    attention.work.steps.push_back(step);
  }
  status = attention.finish_output(o, written, Copy::Which::queries);
  if (status.ok()) status = attention.finish_statistics(lse, written_lse);
  attention.fill_uncovered();
  return status;
}

}  // namespace attn::webgpu
