// What a call must bring: see needs.hpp.
#include "reference/needs.hpp"

namespace attn::reference {

namespace {

bool has_elements(const TensorView& view) {
  for (std::size_t dim = 0; dim < static_cast<std::size_t>(view.rank); ++dim) {
    if (view.shape[dim] <= 0) return false;
  }
  return true;
}

std::string check_common(const char* function, const Problem& problem, const Arguments& arguments) {
  const std::string name(function);
  if (problem.heads_kv <= 0 || problem.heads_q % problem.heads_kv != 0) {
    return name + ": heads_q must be a multiple of heads_kv";
  }
  if (problem.softcap && !(arguments.softcap > 0.0)) return name + ": softcap must be > 0";

  const bool packed_q = problem.layout_q == Layout::packed;
  const bool packed_kv = problem.layout_kv == Layout::packed;
  const int rank_q = packed_q ? 3 : 4;
  const int rank_kv = packed_kv ? 3 : 4;
  const int per_query = packed_q ? 1 : 2;
  const Arguments& a = arguments;
  std::string problem_found =
      check(function, {{"q", a.q, rank_q},
                       {"k", a.k, rank_kv},
                       {"v", a.v, rank_kv},
                       {"bias", a.bias, 4, problem.bias.given},
                       {"mask", a.mask, 4, problem.mask.given},
                       {"alibi_slopes", a.alibi_slopes, 0, problem.alibi},
                       {"sinks", a.sinks, 1, problem.sink},
                       {"len_q", a.len_q, 1, problem.lengths_q},
                       {"len_kv", a.len_kv, 1, problem.lengths_kv},
                       {"cu_len_q", a.cu_len_q, 1, packed_q},
                       {"cu_len_kv", a.cu_len_kv, 1, packed_kv},
                       {"kv_begin", a.kv_begin, per_query, problem.kv_begin},
                       {"kv_end", a.kv_end, per_query, problem.kv_end},
                       {"block_table", a.block_table, 2, problem.page_size > 0},
                       {"descale_q", a.descale_q, 2, false},
                       {"descale_k", a.descale_k, problem.descale_rows ? 3 : 2, false},
                       {"descale_v", a.descale_v, problem.descale_rows ? 3 : 2, false},
                       {"rope_cos", a.rope_cos, 2, problem.rope_tables},
                       {"rope_sin", a.rope_sin, 2, problem.rope_tables},
                       {"rope_pos_q", a.rope_pos_q, per_query, problem.rope_positions},
                       {"rope_pos_k", a.rope_pos_k, 0, problem.rope_positions}});
  if (!problem_found.empty()) return problem_found;
  if (problem.rope_tables && (!has_elements(a.rope_cos) || !has_elements(a.rope_sin))) {
    return name + ": rope_cos and rope_sin must not be empty";
  }
  return "";
}

}  // namespace

std::string check(const char* function, std::initializer_list<Need> needs) {
  for (const Need& need : needs) {
    const std::string start = std::string(function) + ": " + need.name;
    const TensorView& view = need.view;
    if (!view.given()) {
      if (need.needed) return start + " is not given";
      continue;
    }
    if (view.device != Device::host) return start + " is not in host memory";
    if (view.dtype == DType::none) return start + " has no type";
    if (view.rank > kMaxRank || (need.rank != 0 && view.rank != need.rank)) {
      return start + " has rank " + std::to_string(view.rank) + ", not " +
             std::to_string(need.rank);
    }
    if (view.data == nullptr && has_elements(view)) return start + " is a null pointer";
  }
  return "";
}

std::string check_forward(const Problem& problem, const Arguments& arguments) {
  std::string found = check_common("reference forward", problem, arguments);
  if (!found.empty()) return found;
  const bool packed = problem.layout_q == Layout::packed;
  return check("reference forward", {{"o", arguments.o, packed ? 3 : 4},
                                     {"lse", arguments.lse, packed ? 2 : 3, problem.lse},
                                     {"k_new", arguments.k_new, 4, problem.len_new > 0},
                                     {"v_new", arguments.v_new, 4, problem.len_new > 0}});
}

std::string check_backward(const Problem& problem, const Arguments& arguments) {
  const char* function = "reference backward";
  const auto is_8_bit = [](DType type) {
    return type == DType::f8e4m3 || type == DType::f8e5m2 || type == DType::i8;
  };
  if (is_8_bit(problem.dtype) || is_8_bit(problem.kv_type())) {
    return std::string(function) + ": there is no backward of 8-bit types";
  }
  if (problem.page_size > 0 || problem.len_new > 0) {
    return std::string(function) + ": there is no backward of a paged cache or of an append";
  }
  std::string found = check_common(function, problem, arguments);
  if (!found.empty()) return found;
  const int rank_q = problem.layout_q == Layout::packed ? 3 : 4;
  const int rank_kv = problem.layout_kv == Layout::packed ? 3 : 4;
  const Arguments& a = arguments;
  return check(function, {{"o", a.o, rank_q, !problem.delta},
                          {"lse", a.lse, rank_q - 1},
                          {"dout", a.dout, rank_q},
                          {"dlse", a.dlse, rank_q - 1, problem.dlse},
                          {"delta", a.delta, rank_q - 1, problem.delta},
                          {"dq", a.dq, rank_q, problem.dq},
                          {"dk", a.dk, rank_kv, problem.dk},
                          {"dv", a.dv, rank_kv, problem.dv},
                          {"dbias", a.dbias, 4, problem.dbias},
                          {"dsink", a.dsink, 1, problem.dsink}});
}

}  // namespace attn::reference
