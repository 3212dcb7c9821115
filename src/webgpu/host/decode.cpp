// The steps of decode: partial results of splits of the keys, and their merge.
#include <algorithm>
#include <array>
#include <string>

#include "core/divide_up.hpp"
#include "webgpu/host/attention.hpp"
#include "webgpu/host/tiling.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kFewRows = 16;         // of a key head
constexpr std::int64_t kLeastSplit = 512;     // keys
constexpr std::int64_t kWantedGroups = 2000;  // to fill a large device
constexpr std::int64_t kWantedGroupsCpu = 8;

U32 u32(std::int64_t value) {
  return static_cast<U32>(value);
}

// Of combine.wgsl.
struct CombineParameters {
  Rows partial_o, partial_lse, o, lse;
  U32 dim = 0;
  U32 splits = 0;
  U32 entries_at = 0;
  U32 sinks_at = 0;
  U32 first_batch = 0;
  U32 first_head = 0;
  U32 first_row = 0;
  U32 packed = 0;
  U32 lse_given = 0;
  U32 nonfinite_zero = 0;
  std::array<U32, 2> spare{};
};

struct Splits {
  std::int64_t keys = 0;  // of one
  std::int64_t count = 1;
};

Splits split(const Problem& p, const DecodeTiling& tiling, std::int64_t tiles,
             const DeviceFacts& facts) {
  const std::int64_t len = std::max<std::int64_t>(p.len_kv, 1);
  std::int64_t keys = len;
  if (p.split_keys > 0) {
    keys = std::min(p.split_keys, len);
  } else if (p.split_keys == kSplitAuto) {
    const std::int64_t groups = std::max<std::int64_t>(p.batch * p.heads_kv * tiles, 1);
    const std::int64_t wanted = facts.type == AdapterType::cpu ? kWantedGroupsCpu : kWantedGroups;
    const std::int64_t even = core::divide_up(len, core::divide_up(wanted, groups));
    const auto tile = static_cast<std::int64_t>(tiling.tile());
    keys = std::max(kLeastSplit, core::divide_up(even, tile) * tile);
  }
  return {keys, core::divide_up(len, keys)};
}

Step decode_step(const AttentionWork& attention, const DecodeTiling& tiling) {
  Step step;
  step.spec.source = tiling.subgroups ? "decode_subgroups" : "decode";
  step.spec.entry = step.spec.source;
  step.spec.subgroups = tiling.subgroups;
  attention.add_constants(step);
  step.add_constant("THREADS", tiling.threads);
  step.add_constant("ROWS", tiling.rows);
  step.add_constant("UNROLL", tiling.unroll);
  step.add_constant("LANES", tiling.lanes);
  return step;
}

// Partial o [splits, dim_vo] and lse [splits] of each row, one behind the other.
struct Partials {
  View view;
  std::int64_t lse_at = 0;  // words from a row's begin

  [[nodiscard]] Rows lse(Rows rows) const {
    rows.base += u32(lse_at);
    return rows;
  }
};

Partials stage(AttentionWork& attention, std::int64_t splits) {
  const Problem& p = attention.problem;
  const bool packed = p.layout_q == Layout::packed;
  const std::int64_t batch = packed ? 1 : p.batch;
  const std::int64_t rows = packed ? p.total_q : p.len_q;
  const std::int64_t words = splits * (p.dim_vo + 1);
  const Operand part = attention.work.take(
      Memory::staged, static_cast<std::uint64_t>(batch * p.heads_q * rows * words * 4));
  return {scratch_view(part, DType::f32, batch, p.heads_q, rows, words), splits * p.dim_vo};
}

// Any page may be an entry's: they are bound as a whole.
core::Status check_pages(const AttentionWork& attention) {
  const std::uint64_t most = attention.call.facts.max_storage_binding_bytes;
  for (const View* view : {&attention.k, &attention.v}) {
    if (!view->given()) continue;
    const std::uint64_t bytes =
        attention.bound(*view, {0, view->batch, 0, view->heads}, 16).operand.size;
    if (bytes > most) {
      return core::Status::unsupported("webgpu: a paged cache's bytes: found " +
                                       std::to_string(bytes) + "; this device binds at most " +
                                       std::to_string(most) + " at once");
    }
  }
  return {};
}

void add_combine(AttentionWork& attention, const Piece& piece, const Partials& partials,
                 const Splits& splits, const View& lse) {
  const Problem& problem = attention.problem;
  const View o = rows_view(attention.arguments.o);
  Step step;
  step.spec.source = "combine";
  step.spec.entry = "combine";
  step.add_constant("TYPE_TO", number_of(o.dtype));
  CombineParameters p;
  attention.bind_rows(step, Access::read, partials.view, piece.q, 4, p.partial_o);
  p.partial_lse = partials.lse(p.partial_o);
  step.bind(Access::read, attention.info);
  attention.bind_rows(step, Access::write, o, piece.q, size_of(o.dtype), p.o);
  const Operand spare{Memory::spare, nullptr, 0, 16};
  if (lse.given()) {
    attention.bind_rows(step, Access::write, lse, piece.q, 4, p.lse);
  } else {
    step.bind(Access::write, spare);
  }
  Rows count;
  if (problem.nonfinite_zero) {
    attention.bind_rows(step, Access::write, list_view(attention.arguments.nonfinite_count), {}, 4,
                        count);
  } else {
    step.bind(Access::write, Operand{Memory::spare, nullptr, 256, 16});
  }
  p.dim = u32(problem.dim_vo);
  p.splits = u32(splits.count);
  p.entries_at = attention.common.entries_at;
  p.sinks_at = attention.common.sinks_at;
  p.first_batch = u32(piece.q.batch);
  p.first_head = u32(piece.q.head);
  p.packed = attention.common.packed & 1u;
  p.lse_given = lse.given() ? 1 : 0;
  p.nonfinite_zero = problem.nonfinite_zero ? 1 : 0;
  const std::int64_t most = attention.call.facts.max_grid;
  for (std::int64_t row = 0; row < problem.len_q; row += most) {
    p.first_row = u32(row);
    step.grid = {u32(std::min(most, problem.len_q - row)), u32(piece.q.heads),
                 u32(piece.q.batches)};
    step.set_parameters(p);
    attention.work.steps.push_back(step);
  }
}

}  // namespace

bool takes_decode(const Problem& p) {
  return p.page_size > 0 || p.split_keys > 0 || p.len_q * (p.heads_q / p.heads_kv) <= kFewRows;
}

core::Status add_decode(AttentionWork& attention) {
  const Problem& problem = attention.problem;
  const DecodeTiling tiling = decode_tiling(problem, attention.call.facts);
  attention.prepare(false, {});
  core::Status status = attention.take_inputs();
  if (!status.ok()) return status;
  const std::int64_t tiles =
      core::divide_up(problem.len_q * (problem.heads_q / problem.heads_kv), tiling.rows);
  const Splits splits = split(problem, tiling, tiles, attention.call.facts);
  const Partials partials = stage(attention, splits.count);
  const View o = rows_view(attention.arguments.o);
  const View lse = statistics_view(attention.arguments.lse);
  const View written_lse = attention.place_combined_statistics(lse, o);

  const bool paged = problem.page_size > 0 && !attention.gathered;
  Whole whole{.of_queries = {&attention.q, &attention.bias, &attention.mask, &partials.view, &o},
              .of_keys = {},
              .tiles = tiles,
              .flops = attention.flops(1, 1),
              .groups_per_entry = splits.count};
  if (!paged) whole.of_keys = {&attention.k, &attention.v};
  if (paged) status = check_pages(attention);
  std::vector<Piece> pieces;
  if (status.ok()) status = attention.cut(whole, pieces);
  if (!status.ok()) return status;
  const Step plain = decode_step(attention, tiling);
  const View table = list_view(attention.arguments.block_table);
  for (const Piece& piece : pieces) {
    Step step = plain;
    Parameters p = attention.parameters_of(piece, {.q = 1});
    p.first_tile_q = u32(piece.first_tile);
    // Of a paged cache all pages.
    Block keys = piece.kv;
    if (paged) keys = {0, attention.k.batch, piece.kv.head, piece.kv.heads};
    attention.bind_rows(step, Access::read, attention.q, piece.q, 16, p.q);
    attention.bind_rows(step, Access::read, attention.k, keys, 16, p.k);
    attention.bind_rows(step, Access::read, attention.v, keys, 16, p.v);
    step.bind(Access::read, attention.info);
    attention.bind_pairs(step, p, piece.q);
    Rows pages;
    attention.bind_rows(step, Access::read, table, {0, table.batch, 0, 1}, 4, pages);
    attention.bind_rows(step, Access::write, partials.view, piece.q, 4, p.o);
    p.lse = partials.lse(p.o);
    p.splits = u32(splits.count);
    p.split_keys = u32(splits.keys);
    p.page_size = u32(problem.page_size);
    p.num_pages = problem.page_size > 0 ? u32(rows_view(attention.arguments.k).batch) : 0;
    p.gathered = attention.gathered ? 1 : 0;
    p.table_at = pages.base;
    p.table_batch = pages.batch;
    p.table_page = pages.row;
    step.grid = {u32(piece.tiles), u32(piece.kv.heads), u32(piece.kv.batches * splits.count)};
    step.flops = piece.flops;
    step.set_parameters(p);
    attention.work.steps.push_back(step);
  }
  for (const Piece& piece : pieces) {
    if (piece.first_tile == 0) add_combine(attention, piece, partials, splits, written_lse);
  }
  if (lse.given() && written_lse.memory != Memory::tensor) {
    Copy copy;
    copy.from = written_lse;
    copy.to = lse;
    status = add_copy(attention.work, attention.call.facts, copy);
  }
  attention.fill_uncovered();
  return status;
}

}  // namespace attn::webgpu
