// The fields of the C structs and their C++ counterparts: see c_convert.hpp.
#include "api/c_convert.hpp"

#include <algorithm>
#include <concepts>
#include <iterator>
#include <string>
#include <type_traits>

namespace attn::api {

namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

template <std::size_t n>
void check_reserved(const char* type, const std::uint64_t (&reserved)[n]) {
  if (std::all_of(std::begin(reserved), std::end(reserved), [](auto word) { return word == 0; })) {
    return;
  }
  refuse(std::string(type) + ": reserved: found a field that is not 0; accepted 0");
}

// Every field of Problem with its C field: plain fields as (C member, C++ member), windows with
// their has_ flag, extents with the number of sequences per entry.
template <class Visit>
void visit_problem(Visit&& visit) {
  using C = attn_problem;
  visit(&C::dtype, &Problem::dtype);
  visit(&C::dtype_kv, &Problem::dtype_kv);
  visit(&C::dtype_out, &Problem::dtype_out);
  visit(&C::dtype_grad, &Problem::dtype_grad);
  visit(&C::dtype_bias, &Problem::dtype_bias);
  visit(&C::dtype_dbias, &Problem::dtype_dbias);
  visit(&C::precision, &Problem::precision);
  visit(&C::batch, &Problem::batch);
  visit(&C::heads_q, &Problem::heads_q);
  visit(&C::heads_kv, &Problem::heads_kv);
  visit(&C::len_q, &Problem::len_q);
  visit(&C::len_kv, &Problem::len_kv);
  visit(&C::dim_qk, &Problem::dim_qk);
  visit(&C::dim_vo, &Problem::dim_vo);
  visit(&C::layout_q, &Problem::layout_q);
  visit(&C::layout_kv, &Problem::layout_kv);
  visit(&C::total_q, &Problem::total_q);
  visit(&C::total_kv, &Problem::total_kv);
  visit(&C::lengths_q, &Problem::lengths_q);
  visit(&C::lengths_kv, &Problem::lengths_kv);
  visit(&C::causal, &Problem::causal);
  visit(&C::diagonal, &Problem::diagonal);
  visit(&C::window_left, &Problem::window_left, &C::has_window_left);
  visit(&C::window_right, &Problem::window_right, &C::has_window_right);
  visit(&C::kv_begin, &Problem::kv_begin);
  visit(&C::kv_end, &Problem::kv_end);
  visit(&C::mask, &Problem::mask, &C::mask_per_entry);
  visit(&C::softcap, &Problem::softcap);
  visit(&C::alibi, &Problem::alibi);
  visit(&C::bias, &Problem::bias, &C::bias_per_entry);
  visit(&C::sink, &Problem::sink);
  visit(&C::dropout, &Problem::dropout);
  visit(&C::rope, &Problem::rope);
  visit(&C::rot_dim, &Problem::rot_dim);
  visit(&C::rope_tables, &Problem::rope_tables);
  visit(&C::rope_positions, &Problem::rope_positions);
  visit(&C::page_size, &Problem::page_size);
  visit(&C::len_new, &Problem::len_new);
  visit(&C::split_keys, &Problem::split_keys);
  visit(&C::lse, &Problem::lse);
  visit(&C::dlse, &Problem::dlse);
  visit(&C::delta, &Problem::delta);
  visit(&C::dq, &Problem::dq);
  visit(&C::dk, &Problem::dk);
  visit(&C::dv, &Problem::dv);
  visit(&C::dbias, &Problem::dbias);
  visit(&C::dsink, &Problem::dsink);
  visit(&C::accumulate, &Problem::accumulate);
  visit(&C::deterministic, &Problem::deterministic);
  visit(&C::nonfinite_zero, &Problem::nonfinite_zero);
  visit(&C::descale_rows, &Problem::descale_rows);
}

struct ExtentBit {
  std::uint32_t bit;
  bool Extent::* member;
};
constexpr ExtentBit kExtentBits[] = {{ATTN_EXTENT_GIVEN, &Extent::given},
                                     {ATTN_EXTENT_BATCH, &Extent::batch},
                                     {ATTN_EXTENT_HEAD, &Extent::head},
                                     {ATTN_EXTENT_Q, &Extent::q},
                                     {ATTN_EXTENT_KV, &Extent::kv}};

Extent extent_of(std::uint32_t bits) {
  Extent extent;
  for (const ExtentBit& entry : kExtentBits) {
    extent.*entry.member = (bits & entry.bit) != 0;
    bits &= ~entry.bit;
  }
  if (bits != 0) refuse("attn_problem: extent: found unknown bits; accepted ATTN_EXTENT_*");
  return extent;
}

std::uint32_t bits_of(const Extent& extent) {
  std::uint32_t bits = 0;
  for (const ExtentBit& entry : kExtentBits) bits |= extent.*entry.member ? entry.bit : 0u;
  return bits;
}

struct ReadProblem {
  const attn_problem& from;
  Problem& to;

  template <class C, class T>
  void operator()(C attn_problem::* c, T Problem::* member) {
    if constexpr (std::same_as<T, bool>) {
      to.*member = from.*c != 0;
    } else {
      to.*member = static_cast<T>(from.*c);
    }
  }
  void operator()(std::int64_t attn_problem::* c, std::optional<std::int64_t> Problem::* member,
                  std::int32_t attn_problem::* has) {
    if (from.*has != 0) to.*member = from.*c;
  }
  void operator()(std::uint32_t attn_problem::* c, Extent Problem::* member,
                  std::int64_t attn_problem::* per_entry) {
    to.*member = extent_of(from.*c);
    if (from.*per_entry != 0) (to.*member).per_entry = from.*per_entry;
  }
};

struct WriteProblem {
  const Problem& from;
  attn_problem& to;

  template <class C, class T>
  void operator()(C attn_problem::* c, T Problem::* member) {
    to.*c = static_cast<C>(from.*member);
  }
  void operator()(std::int64_t attn_problem::* c, std::optional<std::int64_t> Problem::* member,
                  std::int32_t attn_problem::* has) {
    to.*has = (from.*member).has_value() ? 1 : 0;
    to.*c = (from.*member).value_or(0);
  }
  void operator()(std::uint32_t attn_problem::* c, Extent Problem::* member,
                  std::int64_t attn_problem::* per_entry) {
    const Extent& extent = from.*member;
    to.*c = bits_of(extent);
    to.*per_entry = extent.per_entry == 1 ? 0 : extent.per_entry;
  }
};

template <class C, class Cpp>
struct TensorField {
  const char* name;
  const attn_tensor* C::* from;
  TensorView Cpp::* to;
};

template <class C, class Cpp, std::size_t n>
void read_tensors(const C& from, Cpp& to, const TensorField<C, Cpp> (&fields)[n]) {
  for (const auto& field : fields) to.*field.to = from_c(field.name, from.*field.from);
}

#define ATTN_FIELD(name) {#name, &C::name, &Cpp::name}

void read_argument_tensors(const attn_arguments& from, Arguments& to) {
  using C = attn_arguments;
  using Cpp = Arguments;
  static constexpr TensorField<C, Cpp> kFields[] = {
      ATTN_FIELD(q),          ATTN_FIELD(k),
      ATTN_FIELD(v),          ATTN_FIELD(o),
      ATTN_FIELD(lse),        ATTN_FIELD(bias),
      ATTN_FIELD(mask),       ATTN_FIELD(alibi_slopes),
      ATTN_FIELD(sinks),      ATTN_FIELD(len_q),
      ATTN_FIELD(len_kv),     ATTN_FIELD(cu_len_q),
      ATTN_FIELD(cu_len_kv),  ATTN_FIELD(kv_begin),
      ATTN_FIELD(kv_end),     ATTN_FIELD(block_table),
      ATTN_FIELD(k_new),      ATTN_FIELD(v_new),
      ATTN_FIELD(descale_q),  ATTN_FIELD(descale_k),
      ATTN_FIELD(descale_v),  ATTN_FIELD(rope_cos),
      ATTN_FIELD(rope_sin),   ATTN_FIELD(rope_pos_q),
      ATTN_FIELD(rope_pos_k), ATTN_FIELD(nonfinite_count),
      ATTN_FIELD(dout),       ATTN_FIELD(dlse),
      ATTN_FIELD(delta),      ATTN_FIELD(dq),
      ATTN_FIELD(dk),         ATTN_FIELD(dv),
      ATTN_FIELD(dbias),      ATTN_FIELD(dsink)};
  read_tensors(from, to, kFields);
}

}  // namespace

void check_struct_size(const char* type, std::uint32_t found, std::size_t expected) {
  if (found == expected) return;
  refuse(std::string(type) + ": struct_size: found " + std::to_string(found) + "; accepted " +
         std::to_string(expected) + ", as its init sets it");
}

TensorView from_c(const char* name, const attn_tensor* tensor) {
  if (tensor == nullptr) return {};
  check_struct_size(name, tensor->struct_size, sizeof *tensor);
  if (tensor->reserved != 0) {
    refuse(std::string(name) + ": reserved: found a field that is not 0; accepted 0");
  }
  TensorView view;
  view.data = tensor->data;
  view.offset_bytes = tensor->offset_bytes;
  view.dtype = static_cast<DType>(tensor->dtype);
  view.device = static_cast<Device>(tensor->device);
  view.ordinal = tensor->ordinal;
  view.rank = tensor->rank;
  std::copy(std::begin(tensor->shape), std::end(tensor->shape), view.shape.begin());
  std::copy(std::begin(tensor->strides), std::end(tensor->strides), view.strides.begin());
  return view;
}

attn_tensor to_c(const TensorView& view) {
  attn_tensor tensor{};
  tensor.struct_size = sizeof tensor;
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  tensor.device = static_cast<std::int32_t>(view.device);
  tensor.ordinal = view.ordinal;
  tensor.rank = view.rank;
  tensor.data = view.data;
  tensor.offset_bytes = view.offset_bytes;
  std::copy(view.shape.begin(), view.shape.end(), std::begin(tensor.shape));
  std::copy(view.strides.begin(), view.strides.end(), std::begin(tensor.strides));
  return tensor;
}

Problem from_c(const attn_problem& problem) {
  check_struct_size("attn_problem", problem.struct_size, sizeof problem);
  check_reserved("attn_problem", problem.reserved);
  Problem result;
  visit_problem(ReadProblem{problem, result});
  return result;
}

attn_problem to_c(const Problem& problem) {
  attn_problem result{};
  result.struct_size = sizeof result;
  visit_problem(WriteProblem{problem, result});
  return result;
}

Arguments from_c(const attn_arguments& a) {
  check_struct_size("attn_arguments", a.struct_size, sizeof a);
  check_reserved("attn_arguments", a.reserved);
  Arguments result;
  read_argument_tensors(a, result);
  if (a.has_scale != 0) result.scale = a.scale;
  if (a.has_diag != 0) result.diag = a.diag;
  if (a.has_stream != 0) result.stream = a.stream;
  result.softcap = a.softcap;
  result.dropout_p = a.dropout_p;
  result.seed.host = a.seed;
  result.seed.device = a.seed_pointer;
  result.offset.host = a.offset;
  result.offset.device = a.offset_pointer;
  result.origin = {a.origin_batch, a.origin_head, a.origin_q, a.origin_kv, a.origin_heads_q};
  result.rope_base = a.rope_base;
  result.rope_pos_offset = a.rope_pos_offset;
  result.workspace = a.workspace;
  result.workspace_size = a.workspace_size;
  result.should_stop = a.should_stop;
  result.should_stop_user = a.should_stop_user;
  return result;
}

MergeArguments from_c(const attn_merge_arguments& a) {
  using C = attn_merge_arguments;
  using Cpp = MergeArguments;
  check_struct_size("attn_merge_arguments", a.struct_size, sizeof a);
  check_reserved("attn_merge_arguments", a.reserved);
  static constexpr TensorField<C, Cpp> kFields[] = {ATTN_FIELD(o1), ATTN_FIELD(lse1),
                                                    ATTN_FIELD(o2), ATTN_FIELD(lse2),
                                                    ATTN_FIELD(o),  ATTN_FIELD(lse)};
  MergeArguments result;
  read_tensors(a, result, kFields);
  if (a.has_stream != 0) result.stream = a.stream;
  return result;
}

MergeBackwardArguments from_c(const attn_merge_backward_arguments& a) {
  using C = attn_merge_backward_arguments;
  using Cpp = MergeBackwardArguments;
  check_struct_size("attn_merge_backward_arguments", a.struct_size, sizeof a);
  check_reserved("attn_merge_backward_arguments", a.reserved);
  static constexpr TensorField<C, Cpp> kFields[] = {
      ATTN_FIELD(o1),    ATTN_FIELD(lse1),  ATTN_FIELD(o2),    ATTN_FIELD(lse2),
      ATTN_FIELD(o),     ATTN_FIELD(lse),   ATTN_FIELD(dout),  ATTN_FIELD(dlse),
      ATTN_FIELD(dout1), ATTN_FIELD(dlse1), ATTN_FIELD(dout2), ATTN_FIELD(dlse2)};
  MergeBackwardArguments result;
  read_tensors(a, result, kFields);
  if (a.has_stream != 0) result.stream = a.stream;
  return result;
}

RopeArguments from_c(const attn_rope_arguments& a) {
  using C = attn_rope_arguments;
  using Cpp = RopeArguments;
  check_struct_size("attn_rope_arguments", a.struct_size, sizeof a);
  check_reserved("attn_rope_arguments", a.reserved);
  static constexpr TensorField<C, Cpp> kFields[] = {ATTN_FIELD(x),         ATTN_FIELD(out),
                                                    ATTN_FIELD(positions), ATTN_FIELD(cu_len),
                                                    ATTN_FIELD(cos),       ATTN_FIELD(sin)};
  RopeArguments result;
  read_tensors(a, result, kFields);
  result.style = static_cast<Rope>(a.style);
  result.inverse = a.inverse != 0;
  result.rot_dim = a.rot_dim;
  result.pos_offset = a.pos_offset;
  result.base = a.base;
  if (a.has_stream != 0) result.stream = a.stream;
  return result;
}

#undef ATTN_FIELD

ContextOptions from_c(const attn_context_options& options) {
  check_struct_size("attn_context_options", options.struct_size, sizeof options);
  check_reserved("attn_context_options", options.reserved);
  ContextOptions result;
  result.threads = options.threads;
  result.parallel_for = options.parallel_for;
  result.parallel_for_user = options.parallel_for_user;
  if (options.backend != nullptr) result.backend = options.backend;
  if (options.cache_dir != nullptr) result.cache_dir = options.cache_dir;
  result.pool_bytes = options.pool_bytes;
  return result;
}

CacheRequest from_c(const attn_cache_request& request) {
  check_struct_size("attn_cache_request", request.struct_size, sizeof request);
  const std::uint64_t reserved[1] = {request.reserved};
  check_reserved("attn_cache_request", reserved);
  const auto check_list = [](const char* name, std::int32_t count, bool given) {
    if (count == 0 || (count > 0 && given)) return;
    refuse(std::string("attn_cache_request: ") + name + ": found " + std::to_string(count) +
           (given ? "" : " at NULL") + "; accepted a count and the address of that many");
  };
  check_list("num_calls", request.num_calls,
             request.passes != nullptr && request.problems != nullptr);
  check_list("num_architectures", request.num_architectures, request.architectures != nullptr);
  CacheRequest result;
  for (std::int32_t i = 0; i < request.num_calls; ++i) {
    result.calls.push_back({static_cast<Pass>(request.passes[i]), from_c(request.problems[i])});
  }
  result.architectures.assign(request.architectures,
                              request.architectures + request.num_architectures);
  result.threads = request.threads;
  return result;
}

}  // namespace attn::api
