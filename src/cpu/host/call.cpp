// Resolves a validated call; see call.hpp.
#include "cpu/host/call.hpp"

#include <algorithm>
#include <cmath>

namespace attn::cpu {
namespace {

Rows rows_of(const TensorView& view, Layout layout, bool paged = false) {
  Rows rows;
  if (!view.given()) return rows;
  const std::int64_t bytes = size_of(view.dtype);
  rows.base = static_cast<char*>(view.address());
  rows.dtype = view.dtype;
  rows.paged = paged;
  rows.packed = !paged && layout == Layout::packed;
  const auto at = [&](int dim) { return view.strides[static_cast<std::size_t>(dim)] * bytes; };
  if (rows.packed) {
    rows.stride_row = at(0);
    rows.stride_head = at(1);
  } else {
    rows.stride_batch = at(0);
    rows.stride_row = at(1);
    rows.stride_head = at(2);
  }
  return rows;
}

Stats stats_of(const TensorView& view, Layout layout) {
  Stats stats;
  if (!view.given()) return stats;
  const std::int64_t bytes = size_of(view.dtype);
  stats.base = static_cast<char*>(view.address());
  stats.packed = layout == Layout::packed;
  if (stats.packed) {
    stats.stride_head = view.strides[0] * bytes;
    stats.stride_row = view.strides[1] * bytes;
  } else {
    stats.stride_batch = view.strides[0] * bytes;
    stats.stride_head = view.strides[1] * bytes;
    stats.stride_row = view.strides[2] * bytes;
  }
  return stats;
}

Pairs pairs_of(const TensorView& view, const Extent& extent) {
  Pairs pairs;
  if (!view.given()) return pairs;
  const std::int64_t bytes = size_of(view.dtype);
  pairs.base = static_cast<char*>(view.address());
  pairs.dtype = view.dtype;
  pairs.stride_batch = extent.batch ? view.strides[0] * bytes : 0;
  pairs.stride_head = extent.head ? view.strides[1] * bytes : 0;
  pairs.stride_q = extent.q ? view.strides[2] * bytes : 0;
  pairs.stride_kv = extent.kv ? view.strides[3] * bytes : 0;
  return pairs;
}

Indices indices_of(const TensorView& view, Layout layout) {
  Indices indices;
  if (!view.given()) return indices;
  indices.base = static_cast<const std::int32_t*>(view.address());
  indices.packed = layout == Layout::packed && view.rank == 1;
  if (indices.packed) {
    indices.stride_row = view.strides[0];
  } else {
    indices.stride_batch = view.shape[0] == 1 ? 0 : view.strides[0];
    indices.stride_row = view.strides[1];
  }
  return indices;
}

const std::int32_t* ints_of(const TensorView& view, std::int64_t& stride) {
  if (!view.given()) return nullptr;
  stride = view.strides[0];
  return static_cast<const std::int32_t*>(view.address());
}

const char* bytes_of(const TensorView& view) {
  return view.given() ? static_cast<const char*>(view.address()) : nullptr;
}

}  // namespace

Call resolve(Pass pass, const Problem& problem, const Arguments& a) {
  Call call;
  call.problem = problem;
  const bool paged = problem.page_size > 0;
  call.q = rows_of(a.q, problem.layout_q);
  call.k = rows_of(a.k, problem.layout_kv, paged);
  call.v = rows_of(a.v, problem.layout_kv, paged);
  call.o = rows_of(a.o, problem.layout_q);
  call.lse = stats_of(a.lse, problem.layout_q);
  if (pass == Pass::backward) {
    call.dout = rows_of(a.dout, problem.layout_q);
    call.dq = rows_of(a.dq, problem.layout_q);
    call.dk = rows_of(a.dk, problem.layout_kv);
    call.dv = rows_of(a.dv, problem.layout_kv);
    call.dlse = stats_of(a.dlse, problem.layout_q);
    call.delta = stats_of(a.delta, problem.layout_q);
    call.dbias = pairs_of(a.dbias, problem.bias);
    if (a.dsink.given()) {
      call.dsink = static_cast<char*>(a.dsink.address());
      call.dsink_stride = a.dsink.strides[0] * size_of(a.dsink.dtype);
    }
  }
  if (problem.len_new > 0) {
    call.k_new = rows_of(a.k_new, Layout::padded);
    call.v_new = rows_of(a.v_new, Layout::padded);
  }
  call.bias = pairs_of(a.bias, problem.bias);
  call.mask = pairs_of(a.mask, problem.mask);
  call.kv_begin = indices_of(a.kv_begin, problem.layout_q);
  call.kv_end = indices_of(a.kv_end, problem.layout_q);
  call.pos_q = indices_of(a.rope_pos_q, problem.layout_q);
  call.pos_k = indices_of(a.rope_pos_k, problem.layout_kv);
  call.len_q = ints_of(a.len_q, call.len_q_stride);
  call.len_kv = ints_of(a.len_kv, call.len_kv_stride);
  call.cu_len_q = ints_of(a.cu_len_q, call.cu_len_q_stride);
  call.cu_len_kv = ints_of(a.cu_len_kv, call.cu_len_kv_stride);
  if (paged) {
    call.block_table = static_cast<const std::int32_t*>(a.block_table.address());
    call.table_stride_batch = a.block_table.strides[0];
    call.table_stride_page = a.block_table.strides[1];
    call.num_pages = a.k.shape[0];
  }
  call.slopes = bytes_of(a.alibi_slopes);
  if (call.slopes != nullptr) {
    const std::int64_t bytes = size_of(a.alibi_slopes.dtype);
    const bool per_batch = a.alibi_slopes.rank == 2;
    call.slopes_stride_batch = per_batch ? a.alibi_slopes.strides[0] * bytes : 0;
    call.slopes_stride_head = a.alibi_slopes.strides[per_batch ? 1 : 0] * bytes;
  }
  call.sinks = bytes_of(a.sinks);
  if (call.sinks != nullptr) call.sinks_stride = a.sinks.strides[0] * size_of(a.sinks.dtype);
  if (a.nonfinite_count.given()) {
    call.nonfinite_count = static_cast<std::uint32_t*>(a.nonfinite_count.address());
  }

  call.scale = a.scale ? *a.scale : 1.0 / std::sqrt(static_cast<double>(problem.dim_qk));
  call.softcap = problem.softcap ? a.softcap : 0.0;
  if (problem.dropout) {
    call.keep_threshold = core::dropout_threshold(a.dropout_p);
    const std::uint64_t seed = a.seed.device != nullptr ? *a.seed.device : a.seed.host;
    const std::uint64_t offset = a.offset.device != nullptr ? *a.offset.device : a.offset.host;
    call.dropout_key = core::dropout_key(seed, offset);
    call.dropout_offset_lo = static_cast<std::uint32_t>(offset);
  }
  call.origin = a.origin;
  if (call.origin.heads_q == 0) call.origin.heads_q = problem.heads_q;
  call.explicit_diag = core::explicit_diagonal(a);
  call.group = problem.heads_q / problem.heads_kv;

  call.rope_base = a.rope_base;
  call.rope_pos_offset = a.rope_pos_offset;
  call.rope_cos = bytes_of(a.rope_cos);
  call.rope_sin = bytes_of(a.rope_sin);
  if (call.rope_cos != nullptr) {
    call.rope_cos_stride = a.rope_cos.strides[0] * size_of(a.rope_cos.dtype);
    call.rope_sin_stride = a.rope_sin.strides[0] * size_of(a.rope_sin.dtype);
    call.rope_table_rows = a.rope_cos.shape[0];
  }
  return call;
}

Entry entry_of(const Call& call, std::int64_t b) {
  const Problem& p = call.problem;
  Entry entry;
  entry.b = b;
  if (p.layout_q == Layout::packed) {
    entry.first_q = core::clamp_length(call.cu_len_q[b * call.cu_len_q_stride], p.total_q);
    const std::int64_t end =
        core::clamp_length(call.cu_len_q[(b + 1) * call.cu_len_q_stride], p.total_q);
    entry.len_q = core::clamp_length(end - entry.first_q, p.len_q);
    entry.row0 = entry.first_q;
    entry.rows_q = entry.len_q;
  } else {
    entry.len_q = call.len_q != nullptr
                      ? core::clamp_length(call.len_q[b * call.len_q_stride], p.len_q)
                      : p.len_q;
    entry.row0 = b * p.len_q;
    entry.rows_q = p.len_q;
  }
  if (p.layout_kv == Layout::packed && p.page_size == 0) {
    entry.first_kv = core::clamp_length(call.cu_len_kv[b * call.cu_len_kv_stride], p.total_kv);
    const std::int64_t end =
        core::clamp_length(call.cu_len_kv[(b + 1) * call.cu_len_kv_stride], p.total_kv);
    entry.len_cached = core::clamp_length(end - entry.first_kv, p.len_kv);
    entry.rows_kv = entry.len_cached;
  } else {
    entry.len_cached = call.len_kv != nullptr
                           ? core::clamp_length(call.len_kv[b * call.len_kv_stride], p.len_kv)
                           : p.len_kv;
    entry.rows_kv = p.len_kv;
  }
  entry.len_kv = std::min(entry.len_cached + p.len_new, p.len_kv);
  entry.diag = core::diagonal_of(p.diagonal, call.explicit_diag, entry.len_q, entry.len_kv);
  return entry;
}

core::KeyRange keys_of(const Call& call, const Entry& entry, std::int64_t i) {
  if (i >= entry.len_q) return {0, 0};
  core::KeyRange range = core::band_of(call.problem, i, entry.diag, entry.len_kv);
  if (call.kv_begin.given()) {
    range.begin = std::max(range.begin, index_at(call.kv_begin, entry.b, entry.first_q, i));
  }
  if (call.kv_end.given()) {
    range.end = std::min(range.end, index_at(call.kv_end, entry.b, entry.first_q, i));
  }
  if (range.empty()) return {0, 0};
  return range;
}

}  // namespace attn::cpu
