// The backward's steps: statistics of rows, dq, dk and dv together, the bias's and the sinks'
// gradients.
#include <algorithm>

#include "core/divide_up.hpp"
#include "webgpu/host/attention.hpp"
#include "webgpu/host/tiling.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kStatsRows = 8;       // of a workgroup of delta.wgsl
constexpr std::int64_t kWantedGroups = 512;  // of bias_gradient.wgsl, to fill a device
constexpr std::int64_t kLeastGroups = 256;   // of a dispatch of backward_q_bias.wgsl, likewise
constexpr std::int64_t kMostPartElements = std::int64_t{1} << 24;

U32 u32(std::int64_t value) {
  return static_cast<U32>(value);
}

bool wants_kv(const Problem& p) {
  return p.dk || p.dv;
}

struct Kernels {
  BackwardTiling q, kv, bias;
  Tiles tiles_q, tiles_kv, tiles_bias;
  bool q_with_bias = false;  // dq's kernel makes the bias's gradient, too
};

// Where the bias is broadcast along entries at most; they then add to its gradient one after the
// other, each in a dispatch that still fills a device (CPUs have few threads). The kernel has no
// binding left for a mask.
bool q_makes_dbias(const AttentionWork& attention, const Tiles& tiles) {
  const Problem& p = attention.problem;
  const View dbias = pairs_view(attention.arguments.dbias);
  if (!p.dq || !p.dbias || p.mask.given || !dbias.given() || p.batch == 0) return false;
  if (!rows_view(attention.arguments.dq).given()) return false;
  if (dbias.dim != p.len_kv || dbias.rows != p.len_q || dbias.heads != p.heads_q) return false;
  return dbias.batch == p.batch || attention.call.facts.type == AdapterType::cpu ||
         p.heads_q * tiles.count_q(p) >= kLeastGroups;
}

Kernels choose(const AttentionWork& attention) {
  const Problem& p = attention.problem;
  const DeviceFacts& facts = attention.call.facts;
  Kernels x;
  x.q = backward_tiling(BackwardKernel::q, p, facts);
  x.kv = backward_tiling(BackwardKernel::kv, p, facts);
  x.bias = backward_tiling(BackwardKernel::bias, p, facts);
  x.tiles_q = {.q = x.q.tile_q()};
  x.tiles_kv = {.q = x.kv.tile_q(), .kv = x.kv.tile_kv()};
  x.tiles_bias = {.q = x.bias.tile_q(), .kv = x.bias.tile_kv()};
  x.q_with_bias = q_makes_dbias(attention, x.tiles_q);
  return x;
}

Step kernel_step(BackwardKernel kernel, const char* name, const BackwardTiling& tiling,
                 const AttentionWork& attention) {
  Step step;
  step.spec.source = name;
  step.spec.entry = name;
  attention.add_constants(step);
  step.add_constant("TYPE_DOUT", number_of(attention.dout.dtype));
  step.add_constant("OPTIONS", attention.options_of_scores());
  add_tiling_constants(kernel, tiling, attention.problem, step);
  return step;
}

// q, k, v, dout and info of a piece.
void bind_rows(const AttentionWork& attention, const Piece& piece, Step& step, Parameters& p) {
  attention.bind_rows(step, Access::read, attention.q, piece.q, 16, p.q);
  attention.bind_rows(step, Access::read, attention.k, piece.kv, 16, p.k);
  attention.bind_rows(step, Access::read, attention.v, piece.kv, 16, p.v);
  attention.bind_rows(step, Access::read, attention.dout, piece.q, 16, p.dout);
  step.bind(Access::read, attention.info);
}

// The same with bias and mask.
void bind_inputs(const AttentionWork& attention, const Piece& piece, Step& step, Parameters& p) {
  bind_rows(attention, piece, step, p);
  attention.bind_pairs(step, p, piece.q);
}

Whole whole_of(const AttentionWork& attention, std::int64_t tiles, double flops) {
  return {.of_queries = {&attention.q, &attention.dout, &attention.bias, &attention.mask},
          .of_keys = {&attention.k, &attention.v},
          .tiles = tiles,
          .flops = flops};
}

core::Status add_stats(AttentionWork& attention) {
  const Problem& problem = attention.problem;
  const Arguments& a = attention.arguments;
  const View o = rows_view(a.o);
  const View dout = rows_view(a.dout);
  const View lse = statistics_view(a.lse);
  const View dlse = statistics_view(a.dlse);
  const View delta = statistics_view(a.delta);
  Whole whole{.of_queries = {&o, &dout, &lse, &dlse, &delta},
              .of_keys = {},
              .tiles = core::divide_up(problem.len_q, kStatsRows),
              .flops = 0.0};
  std::vector<Piece> pieces;
  core::Status status = attention.cut(whole, pieces);
  for (const Piece& piece : pieces) {
    Step step;
    step.spec.source = "delta";
    step.spec.entry = "write_stats";
    step.add_constant("TYPE_O", number_of(problem.out_type()));
    step.add_constant("TYPE_DOUT", number_of(problem.out_type()));
    step.add_constant("DLSE", problem.dlse ? 1 : 0);
    step.add_constant("DELTA", problem.delta ? 1 : 0);
    Parameters p = attention.parameters_of(piece, {.q = 1});
    p.first_tile_q = u32(piece.first_tile);
    const auto bind_view = [&](const View& view, Rows& rows) {
      attention.bind_rows(step, Access::read, view, piece.q, size_of(view.dtype), rows);
    };
    bind_view(o, p.o);
    bind_view(dout, p.dout);
    bind_view(lse, p.lse);
    bind_view(dlse, p.dlse);
    bind_view(delta, p.delta);
    step.bind(Access::write, attention.info);
    step.grid = {u32(piece.tiles), u32(piece.q.heads), u32(piece.q.batches)};
    step.set_parameters(p);
    attention.work.steps.push_back(step);
  }
  return status;
}

// dbias in `staged`, as backward_q_bias.wgsl writes it: rows in fours.
View stage_dbias(AttentionWork& attention, const View& dbias) {
  const std::int64_t dim = (dbias.dim + 3) / 4 * 4;
  const Operand part = attention.work.take(
      Memory::staged, static_cast<std::uint64_t>(dbias.batch * dbias.heads * dbias.rows * dim * 4));
  return scratch_view(part, DType::f32, dbias.batch, dbias.heads, dbias.rows, dim);
}

core::Status add_dq(AttentionWork& attention, const Kernels& kernels) {
  const View dq = rows_view(attention.arguments.dq);
  if (!dq.given()) return {};
  const View written = attention.place_output(dq);
  Whole whole =
      whole_of(attention, kernels.tiles_q.count_q(attention.problem), attention.flops(2, 1));
  whole.of_queries.push_back(&written);
  const View dbias = pairs_view(attention.arguments.dbias);
  const bool with_bias = kernels.q_with_bias;
  View staged{.rows = 0};
  if (with_bias) staged = stage_dbias(attention, dbias);
  whole.of_queries.push_back(&staged);
  whole.entries_apart = with_bias && dbias.batch < attention.problem.batch;
  std::vector<Piece> pieces;
  core::Status status = attention.cut(whole, pieces);
  if (!status.ok()) return status;
  const Step plain = kernel_step(BackwardKernel::q, with_bias ? "backward_q_bias" : "backward_q",
                                 kernels.q, attention);
  for (const Piece& piece : pieces) {
    Step step = plain;
    Parameters p = attention.parameters_of(piece, kernels.tiles_q);
    p.first_tile_q = u32(piece.first_tile);
    p.out_type = number_of(written.dtype);
    if (with_bias) {
      bind_rows(attention, piece, step, p);
      attention.bind_bias(step, p, piece.q);
      attention.bind_rows(step, Access::write, staged, piece.q, 16, p.dbias);
      p.accumulate = whole.entries_apart && piece.q.batch > 0 ? 1 : 0;
    } else {
      bind_inputs(attention, piece, step, p);
    }
    attention.bind_rows(step, Access::write, written, piece.q, 4, p.dq);
    step.grid = {u32(piece.tiles), u32(piece.q.heads), u32(piece.q.batches)};
    step.flops = piece.flops;
    step.set_parameters(p);
    attention.work.steps.push_back(step);
  }
  if (with_bias) {
    staged.dim = dbias.dim;
    status = attention.finish_output(dbias, staged, Copy::Which::all);
  }
  return status.ok() ? attention.finish_output(dq, written, Copy::Which::queries, true) : status;
}

// dk and dv in `staged`, side by side for each key head of an entry, so that one binding has both.
struct StagedGradients {
  View both, dk, dv;
};

StagedGradients stage_gradients(AttentionWork& attention) {
  const Problem& p = attention.problem;
  const bool packed = p.layout_kv == Layout::packed;
  const std::int64_t batch = packed ? 1 : p.batch;
  const std::int64_t rows = packed ? p.total_kv : p.len_kv;
  const auto in_fours = [](std::int64_t dim) { return (dim + 3) / 4 * 4; };
  const std::int64_t dim_k = in_fours(p.dim_qk);
  const std::int64_t dim_v = in_fours(p.dim_vo);
  const Operand part = attention.work.take(
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

core::Status add_dkv(AttentionWork& attention, const Kernels& kernels) {
  const View dk = rows_view(attention.arguments.dk);
  const View dv = rows_view(attention.arguments.dv);
  if (!dk.given() && !dv.given()) return {};
  const StagedGradients staged = stage_gradients(attention);
  Whole whole =
      whole_of(attention, kernels.tiles_kv.count_kv(attention.problem), attention.flops(2, 2));
  whole.of_keys.push_back(&staged.both);
  whole.visits = kernels.tiles_kv.count_q(attention.problem) *
                 (attention.problem.heads_q / attention.problem.heads_kv);
  std::vector<Piece> pieces;
  core::Status status = attention.cut(whole, pieces);
  if (!status.ok()) return status;
  const Step plain = kernel_step(BackwardKernel::kv, "backward_kv", kernels.kv, attention);
  for (const Piece& piece : pieces) {
    Step step = plain;
    Parameters p = attention.parameters_of(piece, kernels.tiles_kv);
    p.first_tile_kv = u32(piece.first_tile);
    p.first_split = u32(piece.first_visit);
    p.split_tiles = u32(piece.visits);
    bind_inputs(attention, piece, step, p);
    Rows first;
    attention.bind_rows(step, Access::write, staged.both, piece.kv, 4, first);
    p.dk = first;
    p.dk.row = u32(staged.dk.stride_row);
    p.dv = first;
    p.dv.base += u32((staged.dv.offset_bytes - staged.dk.offset_bytes) / 4);
    p.dv.row = u32(staged.dv.stride_row);
    step.grid = {u32(piece.tiles), u32(piece.kv.heads), u32(piece.kv.batches)};
    step.flops = piece.flops;
    step.set_parameters(p);
    attention.work.steps.push_back(step);
  }
  status = attention.finish_output(dk, staged.dk, Copy::Which::keys, true);
  return status.ok() ? attention.finish_output(dv, staged.dv, Copy::Which::keys) : status;
}

// Parts of the bias's gradient that different workgroups make: enough of these for a device, while
// the parts stay small.
std::int64_t parts_of(std::int64_t places, std::int64_t visits, std::int64_t elements) {
  const std::int64_t wanted = core::divide_up(kWantedGroups, std::max<std::int64_t>(places, 1));
  const std::int64_t most = std::max<std::int64_t>(kMostPartElements / elements, 1);
  return std::clamp<std::int64_t>(visits, 1, std::min(wanted, most));
}

void add_parts_sum(AttentionWork& attention, const Operand& staged, std::int64_t elements,
                   std::int64_t parts) {
  if (parts < 2) return;
  Step step;
  step.spec.source = "bias_gradient_sum";
  step.spec.entry = "bias_gradient_sum";
  step.bind(Access::write, staged);
  step.set_parameters(std::array<U32, 4>{0, u32(elements), u32(parts), 0});
  step.set_elements(elements);
  attention.work.steps.push_back(step);
}

core::Status add_dbias(AttentionWork& attention, const Kernels& kernels) {
  const View dbias = pairs_view(attention.arguments.dbias);
  if (!dbias.given()) return {};
  const Problem& problem = attention.problem;
  const Extent& full = problem.bias;
  const Tiles& tiles = kernels.tiles_bias;
  const std::int64_t elements = dbias.batch * dbias.heads * dbias.rows * dbias.dim;
  std::vector<Piece> pieces;
  core::Status status = attention.cut(whole_of(attention, 1, attention.flops(1, 1)), pieces);
  if (!status.ok()) return status;
  if (pieces.empty()) {  // no entries, whose sum is zero
    if (!problem.accumulate) attention.fill(dbias, Copy::Which::all, 0);
    return {};
  }
  const std::int64_t tiles_q = tiles.count_q(problem);
  const std::int64_t tiles_kv = tiles.count_kv(problem);
  const auto places = [](bool is_full, std::int64_t n) { return is_full ? n : 1; };
  const auto visits = [](bool is_full, std::int64_t n) { return is_full ? 1 : n; };
  const Block& block = pieces.front().q;  // the largest
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
      attention.work.take(Memory::staged, static_cast<std::uint64_t>(elements * parts * 4));
  View written = scratch_view(staged, DType::f32, dbias.batch, dbias.heads, dbias.rows, dbias.dim);
  const Step plain = kernel_step(BackwardKernel::bias, "bias_gradient", kernels.bias, attention);
  for (const Piece& piece : pieces) {
    Step step = plain;
    Parameters p = attention.parameters_of(piece, tiles);
    bind_inputs(attention, piece, step, p);
    step.bind(Access::write, staged);
    p.dbias = {0, u32(written.stride_batch), u32(written.stride_row), u32(written.stride_head)};
    p.dbias.base = u32((full.batch ? piece.q.batch * written.stride_batch : 0) +
                       (full.head ? piece.q.head * written.stride_head : 0));
    p.dbias_part = u32(elements);
    p.dbias_full =
        (full.kv ? 1u : 0u) | (full.q ? 2u : 0u) | (full.head ? 4u : 0u) | (full.batch ? 8u : 0u);
    p.split_tiles = u32(split);
    p.batch = u32(piece.q.batches);
    p.heads = u32(piece.q.heads);
    p.accumulate = (piece.q.batch > 0 && !full.batch) || (piece.q.head > 0 && !full.head) ? 1 : 0;
    step.grid = {
        u32(places(full.kv, tiles_kv)), u32(places(full.q, tiles_q)),
        u32(parts * places(full.head, piece.q.heads) * places(full.batch, piece.q.batches))};
    step.flops = piece.flops;
    step.set_parameters(p);
    attention.work.steps.push_back(step);
  }
  add_parts_sum(attention, staged, elements, parts);
  return attention.finish_output(dbias, written, Copy::Which::all);
}

void add_dsink(AttentionWork& attention) {
  const TensorView& dsink = attention.arguments.dsink;
  if (!dsink.given()) return;
  const Problem& problem = attention.problem;
  Piece piece;
  piece.q = {0, problem.batch, 0, problem.heads_q};
  Step step;
  step.spec.source = "sink_gradient";
  step.spec.entry = "sink_gradient";
  Parameters p = attention.parameters_of(piece, {.q = 1});
  step.bind(Access::read, attention.info);
  attention.bind_rows(step, Access::write, list_view(dsink), {}, 4, p.dsink);
  p.dsink.head = p.dsink.row;
  p.batch = u32(problem.batch);
  p.accumulate = problem.accumulate ? 1 : 0;
  step.grid = {u32(problem.heads_q), 1, 1};
  step.set_parameters(p);
  attention.work.steps.push_back(step);
}

}  // namespace

core::Status add_backward(AttentionWork& attention) {
  const Problem& problem = attention.problem;
  Kernels kernels = choose(attention);
  const bool recomputes = problem.dbias && !kernels.q_with_bias;
  attention.prepare(true, {problem.dq ? &kernels.tiles_q : nullptr,
                           wants_kv(problem) ? &kernels.tiles_kv : nullptr,
                           recomputes ? &kernels.tiles_bias : nullptr});
  core::Status status = attention.take_inputs();
  if (status.ok()) status = add_stats(attention);
  if (status.ok() && problem.dq) status = add_dq(attention, kernels);
  if (status.ok() && wants_kv(problem)) status = add_dkv(attention, kernels);
  if (status.ok() && recomputes) status = add_dbias(attention, kernels);
  if (status.ok() && problem.dsink) add_dsink(attention);
  attention.fill_uncovered();
  return status;
}

}  // namespace attn::webgpu
