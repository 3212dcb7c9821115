// The inputs of a call: parameters, `info`, copies of what kernels cannot read in place.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string_view>

#include "core/divide_up.hpp"
#include "core/philox.hpp"
#include "core/visibility.hpp"
#include "webgpu/passes/attention.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kUnit = 16;                         // bytes per load of the main kernels
constexpr std::int64_t kFarthest = std::int64_t{1} << 30;  // limit of diagonal and window
constexpr std::uint32_t kSequenceWords = 8;                // of `info`, per sequence

float to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

std::int32_t clamped(std::int64_t value) {
  return static_cast<std::int32_t>(std::clamp(value, -kFarthest, kFarthest));
}

U32 u32(std::int64_t value) {
  return static_cast<U32>(value);
}

void set_band(const Problem& p, const Arguments& arguments, PrepareParameters& to) {
  const bool bottom_right = p.diagonal == Diagonal::bottom_right;
  const std::int64_t diag =
      p.diagonal == Diagonal::explicit_value ? core::explicit_diagonal(arguments) : 0;
  std::int64_t low = -kFarthest;
  std::int64_t high = kFarthest;
  if (p.window_left) low = core::saturating_add(diag, -*p.window_left);
  if (p.window_right) high = core::saturating_add(diag, *p.window_right);
  if (p.causal) high = std::min(high, diag);
  to.bottom_right = bottom_right ? 1 : 0;
  to.diag = clamped(diag);
  to.low_band = clamped(low);
  to.high_band = clamped(high);
}

void set_dropout(const Problem& p, const Arguments& from, AttentionParameters& to) {
  to.keep_scale = 1.0f;
  to.keep_below = 256;
  if (!p.dropout) return;
  to.keep_below = core::dropout_threshold(from.dropout_p);
  to.keep_scale = static_cast<float>(256.0 / to.keep_below);
  const core::PhiloxKey key = core::dropout_key(from.seed.host, from.offset.host);
  to.seed = {key[0], key[1]};
  to.offset = static_cast<U32>(from.offset.host);
  const Origin& origin = from.origin;
  to.origin = {u32(origin.batch), u32(origin.head), u32(origin.q), u32(origin.kv)};
  to.origin_heads = u32(origin.heads_q != 0 ? origin.heads_q : p.heads_q);
}

void set_score_modifiers(const Problem& p, const Arguments& from, AttentionParameters& to) {
  to.bias_type = p.bias.given ? 1 + number_of(p.bias_type()) : 0;
  to.mask_given = p.mask.given ? 1 : 0;
  constexpr auto kLog2E = std::numbers::log2e_v<float>;
  to.unit = p.bias.given ? 1.0f : kLog2E;
  to.to_log2 = p.bias.given ? kLog2E : 1.0f;
  to.scale = to_float(from.scale ? *from.scale : 1.0 / std::sqrt(static_cast<double>(p.dim_qk)));
  // In f32 a smaller cap is 0, and a larger one has no effect.
  if (p.softcap) to.softcap = to_float(std::clamp(from.softcap, 1e-20, 1e20));
}

bool is_empty(const TensorView& tensor) {
  return !tensor.given() || tensor.data == nullptr || tensor.shape[0] == 0;
}

void add_prepare_entry(const PreparedCall& prepared, const char* entry, std::int64_t threads,
                       PrepareParameters p, Work& work) {
  if (threads == 0) return;
  const Problem& problem = prepared.problem();
  const Arguments& a = prepared.arguments();
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
  copy.block_table = list_view(prepared.arguments().block_table);
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
    copy.block_table = list_view(prepared.arguments().block_table);
  }
  return add_copy(work, prepared.facts(), copy);
}

}  // namespace

PreparedCall prepared_call(const Call& call) {
  const Problem& p = call.problem;
  const Arguments& a = call.arguments;
  PreparedCall prepared{.call = call,
                        .q = rows_view(a.q),
                        .k = rows_view(a.k),
                        .v = rows_view(a.v),
                        .dout = rows_view(a.dout),
                        .bias = score_view(a.bias),
                        .mask = score_view(a.mask)};
  AttentionParameters& common = prepared.common;
  common.dim_qk = u32(p.dim_qk);
  common.dim_vo = u32(p.dim_vo);
  common.heads_q = u32(p.heads_q);
  common.heads_per_kv = u32(p.heads_q / p.heads_kv);
  common.packed =
      (p.layout_q == Layout::packed ? 1u : 0u) | (p.layout_kv == Layout::packed ? 2u : 0u);
  common.len_q = u32(p.len_q);
  common.len_kv = u32(p.len_kv);
  common.rows = u32(p.layout_q == Layout::packed ? p.total_q : p.batch * p.len_q);
  common.splits = 1;
  set_score_modifiers(p, a, common);
  set_dropout(p, a, common);
  return prepared;
}

Copy rotation_of(const PreparedCall& prepared, Copy::Which which) {
  const Problem& problem = prepared.problem();
  const Arguments& a = prepared.arguments();
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

void add_prepare(PreparedCall& prepared, bool lse_delta, std::initializer_list<Tiles*> all_tiles,
                 Work& work) {
  const Problem& p = prepared.problem();
  AttentionParameters& common = prepared.common;
  PrepareParameters& to = prepared.band;
  to.batch = u32(p.batch);
  to.heads_q = common.heads_q;
  to.len_q = common.len_q;
  to.len_kv = common.len_kv;
  to.total_q = u32(p.total_q);
  to.total_kv = u32(p.total_kv);
  to.packed = common.packed;
  to.len_new = u32(p.len_new);
  set_band(p, prepared.arguments(), to);

  std::uint64_t words = kSequenceWords;  // no part begins at 0, which means absent
  const auto reserve = [&](std::uint64_t n) {
    const std::uint64_t at = words;
    words += n;
    return static_cast<U32>(at);
  };
  const auto batch = static_cast<std::uint64_t>(p.batch);
  common.sequences_at = to.sequences_at = reserve(batch * kSequenceWords);
  if (p.alibi) common.slopes_at = to.slopes_at = reserve(batch * common.heads_q);
  if (p.sink) common.sinks_at = to.sinks_at = reserve(common.heads_q);
  common.key_ranges_at = to.key_ranges_at = reserve(std::uint64_t{common.rows} * 2);
  if (lse_delta) common.lse_delta_at = reserve(std::uint64_t{common.rows} * common.heads_q * 2);
  for (Tiles* tiles : all_tiles) {
    if (tiles == nullptr) continue;
    tiles->tiles_at = reserve(batch * tiles->count_q(p) * 2);
    tiles->keys_at = reserve(batch * tiles->count_kv(p) * 2);
  }
  prepared.info = work.reserve(Memory::info, words * 4);

  add_prepare_entry(prepared, "sequences", p.batch * p.heads_q, to, work);
  add_prepare_entry(prepared, "key_ranges", p.batch * p.len_q, to, work);
  for (const Tiles* tiles : all_tiles) {
    if (tiles == nullptr) continue;
    PrepareParameters of_tiles = to;
    of_tiles.tile = tiles->q;
    of_tiles.tile_kv = tiles->kv;
    of_tiles.tiles = tiles->count_q(p);
    of_tiles.tiles_kv = tiles->count_kv(p);
    of_tiles.tiles_at = tiles->tiles_at;
    of_tiles.keys_at = tiles->keys_at;
    add_prepare_entry(prepared, "tiles", p.batch * of_tiles.tiles, of_tiles, work);
    add_prepare_entry(prepared, "keys", p.batch * of_tiles.tiles_kv, of_tiles, work);
  }
}

core::Status add_inputs(PreparedCall& prepared, Work& work) {
  const Problem& problem = prepared.problem();
  const Arguments& a = prepared.arguments();
  core::Status status;
  if (problem.len_new > 0) {
    status = add_append(prepared, a.k_new, prepared.k, true, work);
    if (status.ok()) status = add_append(prepared, a.v_new, prepared.v, false, work);
  }
  // Rotated rows stay in f32, so that they are not rounded again, and kernels read k and v in one
  // type. The keys of a cache were rotated when they were appended.
  const bool rotates = problem.rope != Rope::none;
  const bool rotates_keys = rotates && prepared.call.pass != Pass::decode;
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
