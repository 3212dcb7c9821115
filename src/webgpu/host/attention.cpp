// What attention's steps share; see attention.hpp.
#include "webgpu/host/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <string_view>

#include "core/divide_up.hpp"
#include "core/philox.hpp"
#include "core/visibility.hpp"

namespace attn::webgpu {
namespace {

constexpr std::int64_t kUnit = 16;                         // bytes in which main kernels read
constexpr std::int64_t kFarthest = std::int64_t{1} << 30;  // of diag and sides of the window
constexpr std::uint32_t kEntryWords = 8;

float to_float(double value) {
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value, -kMax, kMax));
}

std::int32_t near(std::int64_t value) {
  return static_cast<std::int32_t>(std::clamp(value, -kFarthest, kFarthest));
}

U32 u32(std::int64_t value) {
  return static_cast<U32>(value);
}

void fill_visibility(const Problem& p, const Arguments& arguments, Prepare& to) {
  const bool corner = p.diagonal == Diagonal::bottom_right;
  const std::int64_t diag =
      p.diagonal == Diagonal::explicit_value ? core::explicit_diagonal(arguments) : 0;
  std::int64_t low = -kFarthest;
  std::int64_t high = kFarthest;
  if (p.window_left) low = core::saturating_add(diag, -*p.window_left);
  if (p.window_right) high = core::saturating_add(diag, *p.window_right);
  if (p.causal) high = std::min(high, diag);
  to.bottom_right = corner ? 1 : 0;
  to.diag = near(diag);
  to.low_band = near(low);
  to.high_band = near(high);
}

void fill_score(const Problem& p, const Arguments& from, Parameters& to) {
  to.bias_type = p.bias.given ? 1 + number_of(p.bias_type()) : 0;
  to.mask_given = p.mask.given ? 1 : 0;
  constexpr auto kLog2E = std::numbers::log2e_v<float>;
  to.unit = p.bias.given ? 1.0f : kLog2E;
  to.to_log2 = p.bias.given ? kLog2E : 1.0f;
  to.scale = to_float(from.scale ? *from.scale : 1.0 / std::sqrt(static_cast<double>(p.dim_qk)));
  // Smaller caps are 0 in f32, and larger ones none.
  if (p.softcap) to.softcap = to_float(std::clamp(from.softcap, 1e-20, 1e20));
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

bool empty(const TensorView& tensor) {
  return !tensor.given() || tensor.data == nullptr || tensor.shape[0] == 0;
}

}  // namespace

AttentionWork::AttentionWork(const Call& given, Work& into)
    : call(given), problem(given.problem), arguments(given.arguments), work(into) {
  common.dim_qk = u32(problem.dim_qk);
  common.dim_vo = u32(problem.dim_vo);
  common.heads_q = u32(problem.heads_q);
  common.group = u32(problem.heads_q / problem.heads_kv);
  common.packed = (problem.layout_q == Layout::packed ? 1u : 0u) |
                  (problem.layout_kv == Layout::packed ? 2u : 0u);
  common.len_q = u32(problem.len_q);
  common.len_kv = u32(problem.len_kv);
  common.rows =
      u32(problem.layout_q == Layout::packed ? problem.total_q : problem.batch * problem.len_q);
  fill_score(problem, arguments, common);
  q = rows_view(arguments.q);
  k = rows_view(arguments.k);
  v = rows_view(arguments.v);
  dout = rows_view(arguments.dout);
  bias = pairs_view(arguments.bias);
  mask = pairs_view(arguments.mask);
}

Operand AttentionWork::stand_in() const {
  // Of the caller's, for scratch memory may be written by the same dispatch.
  View any = rows_view(arguments.q);
  if (!any.given()) any = rows_view(arguments.k);
  Operand operand = bound(any, {}, 4).operand;
  operand.size = std::min<std::uint64_t>(operand.size, 16);
  return operand;
}

Binding AttentionWork::bound(const View& view, const Block& block, std::int64_t unit) const {
  return bind(view, block, unit, call.facts.storage_alignment);
}

Copy AttentionWork::rotated(Copy::Which which) const {
  Copy copy;
  if (problem.rope == Rope::none) return copy;
  const Arguments& a = arguments;
  const bool queries = which == Copy::Which::queries;
  Rotation& to = copy.rotation;
  to.style = problem.rope;
  to.rot_dim = problem.rotary_dim();
  to.base = a.rope_base;
  to.offset = a.rope_pos_offset;
  to.cosines = table_view(a.rope_cos);
  to.sines = table_view(a.rope_sin);
  to.positions = list_view(queries ? a.rope_pos_q : a.rope_pos_k);
  to.from = queries                          ? Rotation::From::diagonal
            : which == Copy::Which::new_keys ? Rotation::From::cached
                                             : Rotation::From::row;
  copy.which = which;
  copy.info = info;
  copy.entries_at = common.entries_at;
  copy.batch = problem.batch;
  copy.rows = queries                          ? problem.len_q
              : which == Copy::Which::new_keys ? problem.len_new
                                               : problem.len_kv;
  return copy;
}

core::Status AttentionWork::take_input(View& view, const Copy& how, DType type) {
  const bool rotated = how.rotation.style != Rope::none;
  if (!view.given()) return {};
  const bool moved = rotated || how.paged != Copy::Paged::none || type != view.dtype;
  if (in_units(view, kUnit) && !moved) return {};
  const bool pages = how.paged == Copy::Paged::from;
  const std::int64_t batch = pages ? problem.batch : view.batch;
  const std::int64_t rows = pages ? problem.len_kv : view.rows;
  const std::int64_t unit = kUnit / size_of(type);
  const std::int64_t dim = core::round_up(view.dim, unit);
  const Operand part =
      work.take(Memory::prepared,
                static_cast<std::uint64_t>(batch * view.heads * rows * dim * size_of(type)));
  Copy copy = how;
  copy.from = view;
  copy.to = scratch_view(part, type, batch, view.heads, rows, dim);
  view = copy.to;
  return add_copy(work, call.facts, copy);
}

Copy AttentionWork::out_of_pages(Copy copy) const {
  if (!gathered) return copy;
  copy.paged = Copy::Paged::from;
  copy.page_size = problem.page_size;
  copy.block_table = list_view(arguments.block_table);
  copy.which = Copy::Which::keys;
  copy.info = info;
  copy.entries_at = common.entries_at;
  copy.batch = problem.batch;
  copy.rows = problem.len_kv;
  return copy;
}

core::Status AttentionWork::append() {
  if (problem.len_new == 0) return {};
  const auto add = [&](const TensorView& rows, const View& cache, bool rotates) {
    Copy copy = rotates ? rotated(Copy::Which::new_keys) : Copy{};
    copy.from = rows_view(rows);
    copy.to = cache;
    copy.which = Copy::Which::new_keys;
    copy.info = info;
    copy.entries_at = common.entries_at;
    copy.batch = problem.batch;
    copy.rows = problem.len_new;
    if (problem.page_size > 0) {
      copy.paged = Copy::Paged::to;
      copy.page_size = problem.page_size;
      copy.block_table = list_view(arguments.block_table);
    }
    return add_copy(work, call.facts, copy);
  };
  core::Status status = add(arguments.k_new, k, true);
  return status.ok() ? add(arguments.v_new, v, false) : status;
}

core::Status AttentionWork::take_inputs() {
  core::Status status = append();
  // What is rotated is not rounded again, and kernels read k and v in one type. A cache holds keys
  // that were rotated before.
  const bool rotates = problem.rope != Rope::none;
  const bool keys = rotates && call.pass != Pass::decode;
  const DType type_kv = keys ? DType::f32 : k.dtype;
  gathered = keys && problem.page_size > 0;
  if (status.ok()) {
    status = take_input(q, rotated(Copy::Which::queries), rotates ? DType::f32 : q.dtype);
  }
  const Copy of_keys = keys ? rotated(Copy::Which::keys) : Copy{};
  if (status.ok()) status = take_input(k, out_of_pages(of_keys), type_kv);
  if (status.ok()) status = take_input(v, out_of_pages({}), type_kv);
  if (status.ok()) status = take_input(dout, {}, dout.dtype);
  return status;
}

void AttentionWork::prepare(bool stats, std::initializer_list<Tiles*> all_tiles) {
  const Problem& p = problem;
  Prepare& to = prepare_;
  to.batch = u32(p.batch);
  to.heads_q = common.heads_q;
  to.len_q = common.len_q;
  to.len_kv = common.len_kv;
  to.total_q = u32(p.total_q);
  to.total_kv = u32(p.total_kv);
  to.packed = common.packed;
  to.len_new = u32(p.len_new);
  fill_visibility(p, arguments, to);

  std::uint64_t words = kEntryWords;  // so that no part begins at 0
  const auto take = [&](std::uint64_t n) {
    const std::uint64_t at = words;
    words += n;
    return static_cast<U32>(at);
  };
  const auto batch = static_cast<std::uint64_t>(p.batch);
  common.entries_at = to.entries_at = take(batch * kEntryWords);
  if (p.alibi) common.slopes_at = to.slopes_at = take(batch * common.heads_q);
  if (p.sink) common.sinks_at = to.sinks_at = take(common.heads_q);
  common.ranges_at = to.ranges_at = take(std::uint64_t{common.rows} * 2);
  if (stats) common.stats_at = take(std::uint64_t{common.rows} * common.heads_q * 2);
  for (Tiles* tiles : all_tiles) {
    if (tiles == nullptr) continue;
    tiles->tiles_at = take(batch * tiles->count_q(p) * 2);
    tiles->keys_at = take(batch * tiles->count_kv(p) * 2);
  }
  info = work.take(Memory::info, words * 4);

  add_prepare("entries", p.batch * p.heads_q, to);
  add_prepare("ranges", p.batch * p.len_q, to);
  for (const Tiles* tiles : all_tiles) {
    if (tiles == nullptr) continue;
    to.tile = tiles->q;
    to.tile_kv = tiles->kv;
    to.tiles = tiles->count_q(p);
    to.tiles_kv = tiles->count_kv(p);
    to.tiles_at = tiles->tiles_at;
    to.keys_at = tiles->keys_at;
    add_prepare("tiles", p.batch * to.tiles, to);
    add_prepare("keys", p.batch * to.tiles_kv, to);
  }
}

void AttentionWork::add_prepare(const char* entry, std::int64_t threads, Prepare& p) {
  if (threads == 0) return;
  const Arguments& a = arguments;
  Step step;
  step.spec.source = "prepare";
  step.spec.entry = entry;
  step.bind(Access::write, info);
  const auto bind_list = [&](const TensorView& tensor, U32 flag) {
    Rows rows;
    if (empty(tensor)) {
      step.bind(Access::read, stand_in());
      return rows;
    }
    p.given |= flag;
    const View view = list_view(tensor);
    const Binding binding = bound(view, {.batches = view.batch}, 4);
    step.bind(Access::read, binding.operand);
    return binding.rows;
  };
  if (entry == std::string_view("entries")) {
    const bool packed_q = problem.layout_q == Layout::packed;
    const bool packed_kv = problem.layout_kv == Layout::packed;
    p.lengths_q = bind_list(packed_q ? a.cu_len_q : a.len_q, 1);
    p.lengths_kv = bind_list(packed_kv ? a.cu_len_kv : a.len_kv, 2);
    p.slopes = bind_list(a.alibi_slopes, 4);
    p.sinks = bind_list(a.sinks, 8);
  } else if (entry == std::string_view("ranges")) {
    p.kv_begin = bind_list(a.kv_begin, 16);
    p.kv_end = bind_list(a.kv_end, 32);
  }
  step.set_elements(threads);
  step.set_parameters(p);
  work.steps.push_back(step);
}

bool AttentionWork::is_read(const View& tensor) const {
  const auto shares = [&](const View& input) {
    return input.given() && input.memory == Memory::tensor && input.buffer == tensor.buffer;
  };
  return shares(q) || shares(k) || shares(v) || shares(dout) || shares(bias) || shares(mask);
}

View AttentionWork::place_output(const View& tensor) {
  const bool backward = call.pass == Pass::backward;
  const bool direct = in_units(tensor, 4) && !is_read(tensor) && !problem.nonfinite_zero &&
                      !(backward && (problem.accumulate || problem.rope != Rope::none));
  if (direct) return tensor;
  const Operand part = work.take(
      Memory::staged,
      static_cast<std::uint64_t>(tensor.batch * tensor.heads * tensor.rows * tensor.dim * 4));
  return scratch_view(part, DType::f32, tensor.batch, tensor.heads, tensor.rows, tensor.dim);
}

core::Status AttentionWork::finish_output(const View& tensor, const View& written,
                                          Copy::Which which, bool rotates) {
  if (!tensor.given() || written.memory == Memory::tensor) return {};
  const bool backward = call.pass == Pass::backward;
  const bool of_keys = which == Copy::Which::keys;
  Copy copy;
  if (backward && rotates && problem.rope != Rope::none) {
    copy = rotated(which);
    copy.rotation.inverse = true;
  } else if (which != Copy::Which::all &&
             (of_keys ? problem.layout_kv : problem.layout_q) == Layout::packed) {
    copy.which = which;
    copy.info = info;
    copy.entries_at = common.entries_at;
    copy.batch = problem.batch;
    copy.rows = of_keys ? problem.len_kv : problem.len_q;
  }
  copy.from = written;
  copy.to = tensor;
  copy.zero_past = tensor.batch > 1 || problem.batch == 1;  // padded rows past the length
  copy.accumulate = backward && problem.accumulate;
  copy.nonfinite_zero = problem.nonfinite_zero;
  if (problem.nonfinite_zero) copy.count = list_view(arguments.nonfinite_count);
  return add_copy(work, call.facts, copy);
}

View AttentionWork::scratch_statistics(Memory memory) {
  const Operand part = work.take(memory, std::uint64_t{common.rows} * common.heads_q * 4);
  const bool packed = problem.layout_q == Layout::packed;
  return scratch_view(part, DType::f32, packed ? 1 : problem.batch, problem.heads_q,
                      packed ? problem.total_q : problem.len_q, 1);
}

View AttentionWork::place_statistics(const View& tensor, const View& beside) {
  const bool direct = tensor.given() && !is_read(tensor) && tensor.buffer != beside.buffer;
  return direct ? tensor : scratch_statistics(Memory::staged);
}

View AttentionWork::place_combined_statistics(const View& tensor, const View& beside) {
  if (!tensor.given() || tensor.buffer != beside.buffer) return tensor;
  return scratch_statistics(Memory::prepared);
}

core::Status AttentionWork::finish_statistics(const View& tensor, const View& written) {
  if (!tensor.given() || written.memory == Memory::tensor) return {};
  return finish_output(tensor, written, Copy::Which::queries);
}

void AttentionWork::bind_rows(Step& step, Access access, const View& view, const Block& block,
                              std::int64_t unit, Rows& rows) const {
  if (!view.given()) return step.bind(access, stand_in());
  const Binding binding = bound(view, block, unit);
  step.bind(access, binding.operand);
  rows = binding.rows;
}

void AttentionWork::bind_one(Step& step, const View& view, const Block& block, Rows& rows,
                             U32& kv) const {
  bind_rows(step, Access::read, view, block, size_of(view.dtype), rows);
  if (view.given()) kv = u32(view.stride_dim);
}

void AttentionWork::bind_bias(Step& step, Parameters& p, const Block& block) const {
  bind_one(step, bias, block, p.bias, p.bias_kv);
}

void AttentionWork::bind_pairs(Step& step, Parameters& p, const Block& block) const {
  bind_bias(step, p, block);
  bind_one(step, mask, block, p.mask, p.mask_kv);
}

void AttentionWork::add_constants(Step& step) const {
  step.add_constant("TYPE_Q", number_of(q.dtype));
  step.add_constant("TYPE_KV", number_of(k.dtype));
  step.add_constant("DROPOUT", problem.dropout ? 1 : 0);
}

std::uint32_t AttentionWork::options_of_scores() const {
  // Where compilers take long, one kernel serves all.
  const bool any = problem.bias.given || problem.mask.given || !call.facts.unrolls;
  return any ? 2 : problem.softcap || problem.alibi ? 1 : 0;
}

Parameters AttentionWork::parameters_of(const Piece& piece, const Tiles& tiles) const {
  Parameters p = common;
  p.first_batch = u32(piece.q.batch);
  p.first_head_q = u32(piece.q.head);
  p.first_head_kv = u32(piece.kv.head);
  p.tiles_at = tiles.tiles_at;
  p.keys_at = tiles.keys_at;
  p.tiles_q = tiles.count_q(problem);
  p.tiles_kv = tiles.count_kv(problem);
  return p;
}

}  // namespace attn::webgpu
