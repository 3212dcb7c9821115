// Selects rows of a call: views are narrowed; diagonal and origin record the slice's position.
#include "bench/slices.hpp"

#include <algorithm>
#include <cmath>

#include "core/visibility.hpp"

namespace attn::bench {
namespace {

// The view restricted to [begin, begin + size) in one dimension. A dimension of size 1 is broadcast
// and stays unchanged.
void narrow(TensorView& view, int dim, std::int64_t begin, std::int64_t size) {
  if (!view.given()) return;
  const auto d = static_cast<std::size_t>(dim);
  if (view.shape[d] == 1 && size >= 1 && begin > 0) return;
  if (view.shape[d] < size) return;
  view.offset_bytes += begin * view.strides[d] * size_of(view.dtype);
  view.shape[d] = size;
}

// Rows [row, row + count) of sequence b and heads [head, head + heads) as [1, count, heads, dim].
void take_rows(TensorView& view, bool packed, std::int64_t start, std::int64_t b, std::int64_t row,
               std::int64_t count, std::int64_t head, std::int64_t heads) {
  if (!view.given()) return;
  if (packed) {
    TensorView padded = view;
    padded.rank = 4;
    padded.shape = {1, view.shape[0] - start, view.shape[1], view.shape[2]};
    padded.strides = {0, view.strides[0], view.strides[1], view.strides[2]};
    padded.offset_bytes += start * view.strides[0] * size_of(view.dtype);
    view = padded;
  } else {
    narrow(view, 0, b, 1);
  }
  narrow(view, 1, row, count);
  narrow(view, 2, head, heads);
}

// The same for a statistic: [b, h, n] or packed [h, total] becomes [1, heads, count].
void take_statistic(TensorView& view, bool packed, std::int64_t start, std::int64_t b,
                    std::int64_t row, std::int64_t count, std::int64_t head, std::int64_t heads) {
  if (!view.given()) return;
  if (packed) {
    TensorView padded = view;
    padded.rank = 3;
    padded.shape = {1, view.shape[0], view.shape[1] - start, 0};
    padded.strides = {0, view.strides[0], view.strides[1], 0};
    padded.offset_bytes += start * view.strides[1] * size_of(view.dtype);
    view = padded;
  } else {
    narrow(view, 0, b, 1);
  }
  narrow(view, 1, head, heads);
  narrow(view, 2, row, count);
}

void take_extent(TensorView& view, std::int64_t entry, std::int64_t head, std::int64_t heads,
                 std::int64_t row, std::int64_t rows, std::int64_t key, std::int64_t keys) {
  narrow(view, 0, entry, 1);
  narrow(view, 1, head, heads);
  narrow(view, 2, row, rows);
  narrow(view, 3, key, keys);
}

void take_bounds(TensorView& view, bool packed, std::int64_t start, std::int64_t b,
                 std::int64_t row, std::int64_t count) {
  if (!view.given()) return;
  if (packed) {
    TensorView padded = view;
    padded.rank = 2;
    padded.shape = {1, view.shape[0] - start, 0, 0};
    padded.strides = {0, view.strides[0], 0, 0};
    padded.offset_bytes += start * size_of(view.dtype);
    view = padded;
  } else {
    narrow(view, 0, b, 1);
  }
  narrow(view, 1, row, count);
}

// Descales: [b, heads_kv], per row [b, len_kv|1, heads_kv], or per page. All pages are kept, so
// those stay unchanged.
void take_descale(TensorView& view, bool paged, std::int64_t b, std::int64_t key, std::int64_t keys,
                  std::int64_t head, std::int64_t heads) {
  if (!view.given()) return;
  const bool of_pages = paged && view.rank == 3;
  if (!of_pages) narrow(view, 0, b, 1);
  if (!of_pages && view.rank == 3) narrow(view, 1, key, keys);
  narrow(view, view.rank - 1, head, heads);
}

struct Cut {
  std::int64_t b, head, heads, head_kv, heads_kv, row, rows, key, keys;
};

Slice slice_of(const Cell& cell, const Inputs& inputs, const Cut& cut) {
  Slice slice{cell.problem, inputs.arguments};
  Problem& p = slice.problem;
  Arguments& a = slice.arguments;
  const bool packed_q = p.layout_q == Layout::packed;
  const bool packed_kv = p.layout_kv == Layout::packed;
  std::int64_t start_q = 0, start_kv = 0;
  for (std::int64_t e = 0; e < cut.b; ++e) {
    start_q += inputs.lengths_q[static_cast<std::size_t>(e)];
    start_kv += inputs.lengths_kv[static_cast<std::size_t>(e)];
  }
  const auto entry = static_cast<std::size_t>(cut.b);
  const std::int64_t diag = core::diagonal_of(p.diagonal, core::explicit_diagonal(a),
                                              inputs.lengths_q[entry], inputs.lengths_kv[entry]);

  for (TensorView* view : {&a.q, &a.o, &a.dout, &a.dq}) {
    take_rows(*view, packed_q, start_q, cut.b, cut.row, cut.rows, cut.head, cut.heads);
  }
  if (p.page_size == 0) {
    for (TensorView* view : {&a.k, &a.v, &a.dk, &a.dv}) {
      take_rows(*view, packed_kv, start_kv, cut.b, cut.key, cut.keys, cut.head_kv, cut.heads_kv);
    }
  } else {
    narrow(a.k, 2, cut.head_kv, cut.heads_kv);
    narrow(a.v, 2, cut.head_kv, cut.heads_kv);
    narrow(a.block_table, 0, cut.b, 1);
  }
  narrow(a.descale_q, 0, cut.b, 1);
  narrow(a.descale_q, 1, cut.head_kv, cut.heads_kv);
  for (TensorView* view : {&a.descale_k, &a.descale_v}) {
    take_descale(*view, p.page_size > 0, cut.b, cut.key, cut.keys, cut.head_kv, cut.heads_kv);
  }
  for (TensorView* view : {&a.lse, &a.dlse, &a.delta}) {
    take_statistic(*view, packed_q, start_q, cut.b, cut.row, cut.rows, cut.head, cut.heads);
  }
  for (const auto& [view, extent] :
       {std::pair{&a.bias, p.bias}, {&a.mask, p.mask}, {&a.dbias, p.bias}}) {
    take_extent(*view, extent.entry_of(cut.b), cut.head, cut.heads, cut.row, cut.rows, cut.key,
                cut.keys);
  }
  p.bias.per_entry = p.mask.per_entry = 1;
  for (TensorView* view : {&a.kv_begin, &a.kv_end, &a.rope_pos_q}) {
    take_bounds(*view, packed_q, start_q, cut.b, cut.row, cut.rows);
  }
  take_bounds(a.rope_pos_k, packed_kv, start_kv, cut.b, cut.key, cut.keys);
  if (a.alibi_slopes.rank == 2) narrow(a.alibi_slopes, 0, cut.b, 1);
  narrow(a.alibi_slopes, a.alibi_slopes.rank - 1, cut.head, cut.heads);
  narrow(a.sinks, 0, cut.head, cut.heads);
  narrow(a.dsink, 0, cut.head, cut.heads);
  for (TensorView* view : {&a.len_q, &a.len_kv, &a.cu_len_q, &a.cu_len_kv, &a.k_new, &a.v_new}) {
    *view = TensorView{};
  }

  a.diag = diag + cut.row - cut.key;
  if (a.origin.heads_q == 0) a.origin.heads_q = p.heads_q;
  a.origin.batch += cut.b;
  a.origin.head += cut.head;
  a.origin.q += cut.row;
  a.origin.kv += cut.key;
  a.rope_pos_offset += cut.key;
  if (!a.scale) a.scale = 1.0 / std::sqrt(static_cast<double>(p.dim_qk));

  p.diagonal = Diagonal::explicit_value;
  p.batch = 1;
  p.heads_q = cut.heads;
  p.heads_kv = cut.heads_kv;
  p.len_q = cut.rows;
  p.len_kv = cut.keys;
  p.layout_q = p.layout_kv = Layout::padded;
  p.total_q = p.total_kv = 0;
  p.lengths_q = p.lengths_kv = false;
  p.len_new = 0;
  p.split_keys = kSplitAuto;
  p.nonfinite_zero = false;  // the inputs are finite
  a.nonfinite_count = TensorView{};
  return slice;
}

}  // namespace

Slice query_slice(const Cell& cell, const Inputs& inputs, std::int64_t b, std::int64_t h,
                  std::int64_t i) {
  const Problem& p = cell.problem;
  const std::int64_t g = h / (p.heads_q / p.heads_kv);
  return slice_of(cell, inputs,
                  {.b = b,
                   .head = h,
                   .heads = 1,
                   .head_kv = g,
                   .heads_kv = 1,
                   .row = i,
                   .rows = 1,
                   .key = 0,
                   .keys = inputs.lengths_kv[static_cast<std::size_t>(b)]});
}

Slice key_slice(const Cell& cell, const Inputs& inputs, std::int64_t b, std::int64_t g,
                std::int64_t j) {
  const Problem& p = cell.problem;
  const std::int64_t group = p.heads_q / p.heads_kv;
  return slice_of(
      cell, inputs,
      {.b = b,
       .head = g * group,
       .heads = group,
       .head_kv = g,
       .heads_kv = 1,
       .row = 0,
       .rows = inputs.lengths_q[static_cast<std::size_t>(b)],
       .key = j,
       .keys = std::min<std::int64_t>(inputs.lengths_kv[static_cast<std::size_t>(b)], 1)});
}

}  // namespace attn::bench
