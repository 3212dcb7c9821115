// Implements work.hpp.
#include "bench/work.hpp"

#include <algorithm>
#include <vector>

#include "core/visibility.hpp"
#include "harness/values.hpp"

namespace attn::bench {
namespace {

using Lengths = std::vector<std::int64_t>;

// Row i of sequence b in kv_begin or kv_end.
std::int64_t bound(const TensorView& view, const Lengths& lengths_q, std::int64_t b,
                   std::int64_t i) {
  if (view.rank == 2) {
    return static_cast<std::int64_t>(harness::load(view, view.shape[0] == 1 ? 0 : b, i));
  }
  std::int64_t start = 0;
  for (std::int64_t e = 0; e < b; ++e) start += lengths_q[static_cast<std::size_t>(e)];
  return static_cast<std::int64_t>(harness::load(view, start + i));
}

// Number of (head, key) pairs in the range that the mask leaves visible.
double pairs_of_row(const Problem& p, const TensorView& mask, std::int64_t b, std::int64_t i,
                    core::KeyRange range) {
  if (!p.mask.given) return static_cast<double>(p.heads_q * (range.end - range.begin));
  const std::int64_t heads = p.mask.head ? p.heads_q : 1;
  std::int64_t count = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t j = range.begin; j < range.end; ++j) {
      const auto* at = static_cast<const std::uint8_t*>(mask.address());
      at += p.mask.entry_of(b) * mask.strides[0] + (p.mask.head ? h * mask.strides[1] : 0) +
            (p.mask.q ? i * mask.strides[2] : 0) + (p.mask.kv ? j * mask.strides[3] : 0);
      count += *at != 0 ? 1 : 0;
    }
  }
  return static_cast<double>(count * (p.heads_q / heads));
}

Work count(Pass pass, const Problem& p, const Arguments& a, const Lengths& lengths_q,
           const Lengths& lengths_kv, bool plain) {
  Work work;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const std::int64_t len_q = lengths_q[static_cast<std::size_t>(b)];
    const std::int64_t len_kv = lengths_kv[static_cast<std::size_t>(b)];
    const std::int64_t diag =
        core::diagonal_of(p.diagonal, core::explicit_diagonal(a), len_q, len_kv);
    core::KeyRange read{len_kv, 0};
    for (std::int64_t i = 0; i < len_q; ++i) {
      core::KeyRange range = core::keys_in(p, i, diag, len_kv);
      if (p.kv_begin) range.begin = std::max(range.begin, bound(a.kv_begin, lengths_q, b, i));
      if (p.kv_end) range.end = std::min(range.end, bound(a.kv_end, lengths_q, b, i));
      if (range.empty()) continue;
      read = {std::min(read.begin, range.begin), std::max(read.end, range.end)};
      work.pairs += pairs_of_row(p, a.mask, b, i, range);
    }
    if (!read.empty()) {
      work.kv_bytes += static_cast<double>((read.end - read.begin) * p.heads_kv *
                                           (p.dim_qk + p.dim_vo) * size_of(p.kv_type()));
    }
  }
  if (plain && p.causal && p.len_q == p.len_kv) {
    work.pairs = 0.5 * static_cast<double>(p.batch * p.heads_q) * static_cast<double>(p.len_q) *
                 static_cast<double>(p.len_kv);
  }
  const double dims = pass == Pass::backward ? static_cast<double>(6 * p.dim_qk + 4 * p.dim_vo)
                                             : static_cast<double>(2 * p.dim_qk + 2 * p.dim_vo);
  work.flop = work.pairs * dims;
  return work;
}

// Length of each sequence, from cumulative lengths, lengths or the padded size.
Lengths lengths_of(const Problem& p, const TensorView& cumulative, const TensorView& lengths,
                   std::int64_t longest, std::int64_t appended) {
  Lengths out;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    std::int64_t length = longest;
    if (cumulative.given()) {
      length = static_cast<std::int64_t>(harness::load(cumulative, b + 1) -
                                         harness::load(cumulative, b));
    } else if (lengths.given()) {
      length = static_cast<std::int64_t>(harness::load(lengths, b));
    }
    out.push_back(core::clamp_length(core::clamp_length(length, longest) + appended, longest));
  }
  return out;
}

// True if only causal hides pairs.
bool is_plain(const Problem& p) {
  return p.layout_q == Layout::padded && p.layout_kv == Layout::padded && !p.lengths_q &&
         !p.lengths_kv && !p.window_left && !p.window_right && !p.kv_begin && !p.kv_end &&
         !p.mask.given && p.diagonal != Diagonal::explicit_value;
}

}  // namespace

Work work_of(const Cell& cell, const Inputs& inputs) {
  return count(cell.pass, cell.problem, inputs.arguments, inputs.lengths_q, inputs.lengths_kv,
               cell.suite == "plain");
}

Work work_of(Pass pass, const Problem& problem, const Arguments& arguments) {
  // Without rows a batch may be so large that a list of its lengths would not fit the memory.
  if (problem.len_q == 0 || problem.len_kv == 0) return {};
  return count(
      pass, problem, arguments,
      lengths_of(problem, arguments.cu_len_q, arguments.len_q, problem.len_q, 0),
      lengths_of(problem, arguments.cu_len_kv, arguments.len_kv, problem.len_kv, problem.len_new),
      is_plain(problem));
}

}  // namespace attn::bench
