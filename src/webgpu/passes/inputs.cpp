// Prepares the inputs of a call: parameters, `info`, and copies of what kernels cannot read in
// place.
#include <algorithm>
#include <limits>
#include <string_view>

#include "core/call_numbers.hpp"
#include "core/divide_up.hpp"
#include "webgpu/passes/attention.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kUnit = 16;                         // bytes per load of the main kernels
constexpr std::int64_t kFarthest = std::int64_t{1} << 30;  // limit of diagonal and window

float to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

std::int32_t clamped(std::int64_t value) {
  return static_cast<std::int32_t>(std::clamp(value, -kFarthest, kFarthest));
}

void set_band(const core::Band& band, PrepareParameters& to) {
  to.bottom_right = band.bottom_right ? 1 : 0;
  to.diag = clamped(band.fixed);
  to.low_band = clamped(band.low());
  to.high_band = clamped(band.high());
}

void set_numbers(const Problem& p, const core::CallNumbers& numbers, AttentionParameters& to) {
  to.heads_per_kv = u32(numbers.heads_per_kv);
  to.scale = to_float(numbers.scale);
  // Clamped because smaller caps underflow f32, and larger ones have no effect.
  if (p.softcap) to.softcap = to_float(numbers.softcap);
  to.keep_below = numbers.dropout_threshold;
  to.keep_scale = static_cast<float>(256.0 / numbers.dropout_threshold);
  if (!p.dropout) return;
  to.seed = {numbers.philox_key[0], numbers.philox_key[1]};
  to.offset = numbers.philox_offset;
  const Origin& origin = numbers.origin;
  to.origin = {u32(origin.batch), u32(origin.head), u32(origin.q), u32(origin.kv)};
  to.origin_heads = u32(origin.heads_q);
}

bool is_empty(const TensorView& tensor) {
  return !tensor.given() || tensor.data == nullptr || tensor.shape[0] == 0;
}

void add_prepare_entry(const PreparedCall& prepared, const char* entry, std::int64_t threads,
                       PrepareParameters p, Work& work) {
  if (threads == 0) return;
  const Problem& problem = prepared.problem();
  const Arguments& a = prepared.arguments;
  Dispatch dispatch("prepare", entry);
  dispatch.bind("info", prepared.info);
  const auto bind_list = [&](std::string_view name, const TensorView& tensor, U32 flag) {
    StridedTensor place;
    if (is_empty(tensor)) {
      dispatch.bind(name, stand_in(prepared));
      return place;
    }
    p.given |= flag;
    const View view = list_view(tensor);
    bind_tensor(prepared, dispatch, name, view, {.batches = view.batch}, 4, place);
    return place;
  };
  if (entry == std::string_view("sequences")) {
    const bool packed_q = problem.layout_q == Layout::packed;
    const bool packed_kv = problem.layout_kv == Layout::packed;
    p.lengths_q = bind_list("lengths_q", packed_q ? a.cu_len_q : a.len_q, 1);
    p.lengths_kv = bind_list("lengths_kv", packed_kv ? a.cu_len_kv : a.len_kv, 2);
    p.slopes = bind_list("slopes", a.alibi_slopes, 4);
    p.sinks = bind_list("sinks", a.sinks, 8);
  } else if (entry == std::string_view("key_ranges")) {
    p.kv_begin = bind_list("kv_begin", a.kv_begin, 16);
    p.kv_end = bind_list("kv_end", a.kv_end, 32);
  }
  dispatch.set_elements(threads);
  dispatch.set_parameters(p);
  work.dispatches.push_back(dispatch);
}

core::Status add_input(const PreparedCall& prepared, View& view, const Copy& how, DType type,
                       Work& work) {
  const Problem& problem = prepared.problem();
  const bool rotates = how.rotation.style != Rope::none;
  if (!view.given()) return {};
  const bool moves = rotates || how.paged != Copy::Paged::none || type != view.dtype;
  if (in_units(view, kUnit) && !moves) return {};
  const bool pages = how.paged == Copy::Paged::from;
  const std::int64_t batch = pages ? problem.batch : view.batch;
  const std::int64_t rows = pages ? problem.len_kv : view.rows;
  const std::int64_t unit = kUnit / size_of(type);
  const std::int64_t dim = core::round_up(view.dim, unit);
  const Operand part =
      work.reserve(Memory::prepared,
                   static_cast<std::uint64_t>(batch * view.heads * rows * dim * size_of(type)));
  Copy copy = how;
  copy.from = view;
  copy.to = scratch_view(part, type, batch, view.heads, rows, dim);
  view = copy.to;
  return add_copy(work, prepared.facts(), copy);
}

void select_rows(const PreparedCall& prepared, Copy::Which which, std::int64_t rows, Copy& copy) {
  copy.which = which;
  copy.info = prepared.info;
  copy.sequences_at = prepared.common.sequences_at;
  copy.batch = prepared.problem().batch;
  copy.rows = rows;
}

// Reads keys or values from the pages of the cache.
Copy out_of_pages(const PreparedCall& prepared, Copy copy) {
  if (!prepared.gathered) return copy;
  copy.paged = Copy::Paged::from;
  copy.page_size = prepared.problem().page_size;
  copy.block_table = list_view(prepared.arguments.block_table);
  select_rows(prepared, Copy::Which::keys, prepared.problem().len_kv, copy);
  return copy;
}

core::Status add_append(const PreparedCall& prepared, const TensorView& rows, const View& cache,
                        bool rotates, Work& work) {
  const Problem& problem = prepared.problem();
  Copy copy = rotates ? rotation_of(prepared, Copy::Which::new_keys) : Copy{};
  copy.from = rows_view(rows);
  copy.to = cache;
  select_rows(prepared, Copy::Which::new_keys, problem.len_new, copy);
  if (problem.page_size > 0) {
    copy.paged = Copy::Paged::to;
    copy.page_size = problem.page_size;
    copy.block_table = list_view(prepared.arguments.block_table);
  }
  return add_copy(work, prepared.facts(), copy);
}

}  // namespace

PreparedCall prepared_call(const WebGpuPlan& plan, const Arguments& a) {
  PreparedCall prepared{.plan = plan,
                        .arguments = a,
                        .q = rows_view(a.q),
                        .k = rows_view(a.k),
                        .v = rows_view(a.v),
                        .dout = rows_view(a.dout),
                        .bias = score_view(a.bias),
                        .mask = score_view(a.mask)};
  prepared.numbers = core::numbers_of(plan.problem, a);
  prepared.common = plan.attention.common;
  set_numbers(plan.problem, prepared.numbers, prepared.common);
  return prepared;
}

Copy rotation_of(const PreparedCall& prepared, Copy::Which which) {
  const Problem& problem = prepared.problem();
  const Arguments& a = prepared.arguments;
  Copy copy;
  if (problem.rope == Rope::none) return copy;
  const bool queries = which == Copy::Which::queries;
  const bool new_keys = which == Copy::Which::new_keys;
  Rotation& to = copy.rotation;
  to.style = problem.rope;
  to.rot_dim = problem.rotary_dim();
  to.base = a.rope_base;
  to.offset = a.rope_pos_offset;
  to.cosines = table_view(a.rope_cos);
  to.sines = table_view(a.rope_sin);
  to.positions = list_view(queries ? a.rope_pos_q : a.rope_pos_k);
  to.from = queries    ? Rotation::From::diagonal
            : new_keys ? Rotation::From::cached
                       : Rotation::From::row;
  const std::int64_t rows = queries ? problem.len_q : new_keys ? problem.len_new : problem.len_kv;
  select_rows(prepared, which, rows, copy);
  return copy;
}

void add_prepare(PreparedCall& prepared, Work& work) {
  const Problem& p = prepared.problem();
  const AttentionPlan& plan = prepared.attention();
  PrepareParameters to = plan.prepare;
  set_band(prepared.numbers.band, to);
  prepared.info = work.reserve(Memory::info, plan.info_bytes);
  add_prepare_entry(prepared, "sequences", p.batch * p.heads_q, to, work);
  add_prepare_entry(prepared, "key_ranges", p.batch * p.len_q, to, work);
  for (const PlannedKernel* kernel : {&plan.forward, &plan.dq, &plan.dkv, &plan.dbias}) {
    if (!kernel->runs) continue;
    const Tiles& tiles = kernel->tiles;
    PrepareParameters of_tiles = to;
    of_tiles.tile = tiles.q;
    of_tiles.tile_kv = tiles.kv;
    of_tiles.tiles = tiles.count_q(p);
    of_tiles.tiles_kv = tiles.count_kv(p);
    of_tiles.tiles_at = tiles.tiles_at;
    of_tiles.keys_at = tiles.keys_at;
    add_prepare_entry(prepared, "tiles", p.batch * of_tiles.tiles, of_tiles, work);
    add_prepare_entry(prepared, "keys", p.batch * of_tiles.tiles_kv, of_tiles, work);
  }
}

core::Status add_inputs(PreparedCall& prepared, Work& work) {
  const Problem& problem = prepared.problem();
  const Arguments& a = prepared.arguments;
  core::Status status;
  if (problem.len_new > 0) {
    status = add_append(prepared, a.k_new, prepared.k, true, work);
    if (status.ok()) status = add_append(prepared, a.v_new, prepared.v, false, work);
  }
  // The types are those of the plan's kernels (add_input_constants()).
  const bool rotates = problem.rope != Rope::none;
  const bool rotates_keys = rotates && prepared.plan.pass != Pass::decode;
  const DType type_kv = rotates_keys ? DType::f32 : prepared.k.dtype;
  prepared.gathered = rotates_keys && problem.page_size > 0;
  const auto add = [&](View& view, const Copy& how, DType type) {
    if (status.ok()) status = add_input(prepared, view, how, type, work);
  };
  add(prepared.q, rotation_of(prepared, Copy::Which::queries),
      rotates ? DType::f32 : prepared.q.dtype);
  const Copy of_keys = rotates_keys ? rotation_of(prepared, Copy::Which::keys) : Copy{};
  add(prepared.k, out_of_pages(prepared, of_keys), type_kv);
  add(prepared.v, out_of_pages(prepared, {}), type_kv);
  add(prepared.dout, {}, prepared.dout.dtype);
  return status;
}

}  // namespace attn::webgpu
