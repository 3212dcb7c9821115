// Resolves a validated call; see call.hpp.
#include "cpu/host/call.hpp"

#include <algorithm>
#include <cmath>

namespace attn::cpu {
namespace {

StridedTensor rows_of(const TensorView& view, bool paged = false) {
  StridedTensor rows{core::rows_of(view)};
  rows.paged = paged;
  return rows;
}

StridedTensor rows_of(const TensorView& view, bool paged, const TensorView& descales) {
  StridedTensor rows = rows_of(view, paged);
  if (descales.given()) {
    rows.descales = static_cast<const float*>(descales.address());
    rows.descale_rows = descales.rank == 3;
    rows.descales_stride_batch = descales.strides[0];
    if (rows.descale_rows && descales.shape[1] != 1) rows.descales_stride_row = descales.strides[1];
    rows.descales_stride_head = descales.strides[rows.descale_rows ? 2 : 1];
  }
  return rows;
}

const char* bytes_of(const TensorView& view) {
  return view.given() ? static_cast<const char*>(view.address()) : nullptr;
}

}  // namespace

Call resolve(Pass pass, const Problem& problem, const Arguments& a) {
  Call call;
  call.problem = problem;
  call.numbers = core::numbers_of(problem, a);
  const bool paged = problem.page_size > 0;
  call.q = rows_of(a.q, false, a.descale_q);
  call.k = rows_of(a.k, paged, a.descale_k);
  call.v = rows_of(a.v, paged, a.descale_v);
  call.o = rows_of(a.o);
  call.lse = core::statistics_of(a.lse);
  if (pass == Pass::backward) {
    call.dout = rows_of(a.dout);
    call.dq = rows_of(a.dq);
    call.dk = rows_of(a.dk);
    call.dv = rows_of(a.dv);
    call.dlse = core::statistics_of(a.dlse);
    call.delta = core::statistics_of(a.delta);
    call.dbias = core::scores_of(a.dbias, problem.bias);
    if (a.dsink.given()) {
      call.dsink = static_cast<char*>(a.dsink.address());
      call.dsink_stride = a.dsink.strides[0] * core::element_size(a.dsink.dtype);
    }
  }
  if (problem.len_new > 0) {
    call.k_new = rows_of(a.k_new);
    call.v_new = rows_of(a.v_new);
  }
  call.bias = core::scores_of(a.bias, problem.bias);
  call.mask = core::scores_of(a.mask, problem.mask);
  call.kv_begin = core::indices_of(a.kv_begin);
  call.kv_end = core::indices_of(a.kv_end);
  call.pos_q = core::indices_of(a.rope_pos_q);
  call.pos_k = core::indices_of(a.rope_pos_k);
  call.len_q = core::lengths_of(a.len_q);
  call.len_kv = core::lengths_of(a.len_kv);
  call.cu_len_q = core::lengths_of(a.cu_len_q);
  call.cu_len_kv = core::lengths_of(a.cu_len_kv);
  if (paged) {
    call.block_table = static_cast<const std::int32_t*>(a.block_table.address());
    call.table_stride_batch = a.block_table.strides[0];
    call.table_stride_page = a.block_table.strides[1];
    call.num_pages = a.k.shape[0];
  }
  call.slopes = bytes_of(a.alibi_slopes);
  if (call.slopes != nullptr) {
    const std::int64_t bytes = core::element_size(a.alibi_slopes.dtype);
    const bool per_batch = a.alibi_slopes.rank == 2;
    call.slopes_stride_batch = per_batch ? a.alibi_slopes.strides[0] * bytes : 0;
    call.slopes_stride_head = a.alibi_slopes.strides[per_batch ? 1 : 0] * bytes;
  }
  call.sinks = bytes_of(a.sinks);
  if (call.sinks != nullptr)
    call.sinks_stride = a.sinks.strides[0] * core::element_size(a.sinks.dtype);
  if (a.nonfinite_count.given()) {
    call.nonfinite_count = static_cast<std::uint32_t*>(a.nonfinite_count.address());
  }

  call.rope_base = a.rope_base;
  call.rope_pos_offset = a.rope_pos_offset;
  call.rope_cos = bytes_of(a.rope_cos);
  call.rope_sin = bytes_of(a.rope_sin);
  if (call.rope_cos != nullptr) {
    call.rope_cos_stride = a.rope_cos.strides[0] * core::element_size(a.rope_cos.dtype);
    call.rope_sin_stride = a.rope_sin.strides[0] * core::element_size(a.rope_sin.dtype);
    call.rope_table_rows = a.rope_cos.shape[0];
  }
  return call;
}

Entry entry_of(const Call& call, std::int64_t b) {
  const Problem& p = call.problem;
  Entry entry;
  entry.b = b;
  if (p.layout_q == Layout::packed) {
    entry.first_q = core::clamp_length(call.cu_len_q[b], p.total_q);
    const std::int64_t end = core::clamp_length(call.cu_len_q[b + 1], p.total_q);
    entry.len_q = core::clamp_length(end - entry.first_q, p.len_q);
    entry.row0 = entry.first_q;
    entry.rows_q = entry.len_q;
  } else {
    entry.len_q = call.len_q.given() ? core::clamp_length(call.len_q[b], p.len_q) : p.len_q;
    entry.row0 = b * p.len_q;
    entry.rows_q = p.len_q;
  }
  if (p.layout_kv == Layout::packed && p.page_size == 0) {
    entry.first_kv = core::clamp_length(call.cu_len_kv[b], p.total_kv);
    const std::int64_t end = core::clamp_length(call.cu_len_kv[b + 1], p.total_kv);
    entry.len_cached = core::clamp_length(end - entry.first_kv, p.len_kv);
    entry.rows_kv = entry.len_cached;
  } else {
    entry.len_cached =
        call.len_kv.given() ? core::clamp_length(call.len_kv[b], p.len_kv) : p.len_kv;
    entry.rows_kv = p.len_kv;
  }
  entry.len_kv = std::min(entry.len_cached + p.len_new, p.len_kv);
  entry.diag = call.numbers.band.diag(entry.len_q, entry.len_kv);
  return entry;
}

core::KeyRange keys_of(const Call& call, const Entry& entry, std::int64_t i) {
  if (i >= entry.len_q) return {0, 0};
  core::KeyRange range = core::keys_in(call.numbers.band, i, entry.diag, entry.len_kv);
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
