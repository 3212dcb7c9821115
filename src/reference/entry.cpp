// One batch entry: see entry.hpp.
#include "reference/entry.hpp"

#include <algorithm>

#include "reference/elements.hpp"

namespace attn::reference {

namespace {

struct Span {
  std::int64_t first = 0;
  std::int64_t length = 0;
};

// Rows of one entry on one side. Lengths from memory are clamped, so that no value of theirs leads
// out of the tensors.
Span rows_of(Layout layout, const TensorView& cumulative, bool has_lengths,
             const TensorView& lengths, std::int64_t batch, std::int64_t longest,
             std::int64_t total) {
  const auto clamped = [](std::int64_t value, std::int64_t low, std::int64_t high) {
    return std::min(std::max(value, low), high);
  };
  if (layout == Layout::packed) {
    const std::int64_t begin = read_integer(cumulative, position_of(cumulative, {batch}));
    const std::int64_t end = read_integer(cumulative, position_of(cumulative, {batch + 1}));
    const std::int64_t first = clamped(begin, 0, total);
    return {first, std::min(clamped(end, first, total) - first, longest)};
  }
  if (!has_lengths) return {0, longest};
  return {0, clamped(read_integer(lengths, position_of(lengths, {batch})), 0, longest)};
}

// Index into a dimension that may be broadcast.
std::int64_t broadcast(const TensorView& view, std::size_t dim, std::int64_t index) {
  return view.shape[dim] == 1 ? 0 : index;
}

}  // namespace

Entry entry_of(const Problem& problem, const Arguments& arguments, std::int64_t batch) {
  const Span q = rows_of(problem.layout_q, arguments.cu_len_q, problem.lengths_q, arguments.len_q,
                         batch, problem.len_q, problem.total_q);
  const Span kv = rows_of(problem.layout_kv, arguments.cu_len_kv, problem.lengths_kv,
                          arguments.len_kv, batch, problem.len_kv, problem.total_kv);
  Entry entry;
  entry.batch = batch;
  entry.len_q = q.length;
  entry.first_q = q.first;
  entry.first_kv = kv.first;
  entry.len_kv_before = kv.length;
  entry.len_kv = std::min(kv.length + problem.len_new, std::max(kv.length, problem.len_kv));
  switch (problem.diagonal) {
    case Diagonal::bottom_right: entry.diag = entry.len_kv - entry.len_q; break;
    case Diagonal::top_left: entry.diag = 0; break;
    case Diagonal::explicit_value:
      entry.diag =
          arguments.diag ? Wide{*arguments.diag} : Wide{arguments.origin.q} - arguments.origin.kv;
      break;
  }
  return entry;
}

std::int64_t query_row(const Problem& problem, const TensorView& view, const Entry& entry,
                       std::int64_t i, std::int64_t head_q) {
  if (problem.layout_q == Layout::packed) return position_of(view, {entry.first_q + i, head_q});
  return position_of(view, {entry.batch, i, head_q});
}

std::optional<std::int64_t> key_row(const Problem& problem, const Arguments& arguments,
                                    const TensorView& view, const Entry& entry, std::int64_t j,
                                    std::int64_t head_kv) {
  if (problem.page_size > 0) {
    const TensorView& table = arguments.block_table;
    const std::int64_t column = j / problem.page_size;
    if (column >= table.shape[1]) return std::nullopt;
    const std::int64_t page = read_integer(table, position_of(table, {entry.batch, column}));
    if (page < 0 || page >= view.shape[0]) return std::nullopt;
    return position_of(view, {page, j % problem.page_size, head_kv});
  }
  if (problem.layout_kv == Layout::packed) return position_of(view, {entry.first_kv + j, head_kv});
  return position_of(view, {entry.batch, j, head_kv});
}

std::int64_t statistic_at(const Problem& problem, const TensorView& view, const Entry& entry,
                          std::int64_t head_q, std::int64_t i) {
  if (problem.layout_q == Layout::packed) return position_of(view, {head_q, entry.first_q + i});
  return position_of(view, {entry.batch, head_q, i});
}

std::int64_t query_at(const Problem& problem, const TensorView& view, const Entry& entry,
                      std::int64_t i) {
  if (problem.layout_q == Layout::packed) return position_of(view, {entry.first_q + i});
  return position_of(view, {broadcast(view, 0, entry.batch), i});
}

std::int64_t key_at(const Problem& problem, const TensorView& view, const Entry& entry,
                    std::int64_t j) {
  if (problem.layout_kv == Layout::packed) return position_of(view, {entry.first_kv + j});
  return position_of(view, {broadcast(view, 0, entry.batch), j});
}

std::int64_t descale_at(const TensorView& view, const Entry& entry, std::int64_t head_kv) {
  return position_of(view, {broadcast(view, 0, entry.batch), broadcast(view, 1, head_kv)});
}

std::optional<std::int64_t> key_descale_at(const Problem& problem, const Arguments& arguments,
                                           const TensorView& view, const Entry& entry,
                                           std::int64_t j, std::int64_t head_kv) {
  if (!problem.descale_rows) return descale_at(view, entry, head_kv);
  if (problem.page_size == 0) {
    return position_of(view, {entry.batch, broadcast(view, 1, j), head_kv});
  }
  const TensorView& table = arguments.block_table;
  const std::int64_t page =
      read_integer(table, position_of(table, {entry.batch, j / problem.page_size}));
  if (page < 0 || page >= view.shape[0]) return std::nullopt;
  return position_of(view, {page, broadcast(view, 1, j % problem.page_size), head_kv});
}

std::int64_t pair_at(const Extent& extent, const TensorView& view, const Entry& entry,
                     std::int64_t head_q, std::int64_t i, std::int64_t j) {
  return position_of(view, {extent.batch ? entry.batch / extent.per_entry : 0,
                            extent.head ? head_q : 0, extent.q ? i : 0, extent.kv ? j : 0});
}

}  // namespace attn::reference
