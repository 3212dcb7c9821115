// describe: the Problem that a call's tensors and numbers state.
#include <attn/arguments.hpp>
#include <attn/context.hpp>
#include <initializer_list>
#include <string>

#include "core/names.hpp"

namespace attn {

namespace {

void need_rank(const char* name, const TensorView& view, std::initializer_list<std::int32_t> ranks,
               const char* accepted) {
  for (const std::int32_t rank : ranks) {
    if (view.rank == rank) return;
  }
  throw Error(ErrorCode::invalid_argument, std::string("describe: shape of ") + name + ": found " +
                                               to_string(view) + "; accepted " + accepted);
}

std::int64_t size(const TensorView& view, int dim) {
  return view.shape[static_cast<std::size_t>(dim)];
}

// DType::none if `dtype` is the default `usual`, so that equal problems compare equal.
DType unless(DType dtype, DType usual) {
  return dtype == usual ? DType::none : dtype;
}

Extent extent_of(const char* name, const TensorView& view, std::int64_t batch) {
  Extent extent;
  if (!view.given()) return extent;
  need_rank(name, view, {4}, "[b|b/s|1, h|1, n|1, m|1]");
  const auto full = [&](std::size_t d) { return view.shape[d] != 1 && view.strides[d] != 0; };
  extent.given = true;
  extent.batch = full(0);
  extent.head = full(1);
  extent.q = full(2);
  extent.kv = full(3);
  const std::int64_t entries = view.shape[0];
  if (extent.batch && entries > 0 && batch % entries == 0 && batch > entries) {
    extent.per_entry = batch / entries;
  }
  return extent;
}

void describe_sizes(const Arguments& a, Problem& p) {
  need_rank("q", a.q, {3, 4}, "[b, n, h, dim_qk] or packed [total_q, h, dim_qk]");
  need_rank("k", a.k, {3, 4}, "[b, m, g, dim_qk], packed [total_kv, g, dim_qk] or pages");
  need_rank("v", a.v, {a.k.rank}, "the rank of k");
  const bool packed_q = a.q.rank == 3;
  const bool packed_kv = a.k.rank == 3;
  p.heads_q = size(a.q, a.q.rank - 2);
  p.dim_qk = size(a.q, a.q.rank - 1);
  p.heads_kv = size(a.k, a.k.rank - 2);
  p.dim_vo = size(a.v, a.v.rank - 1);
  if (packed_q) {
    need_rank("cu_len_q", a.cu_len_q, {1}, "[b + 1] with packed q");
    if (size(a.cu_len_q, 0) == 0) {
      throw Error(ErrorCode::invalid_argument, "describe: shape of cu_len_q: found " +
                                                   to_string(a.cu_len_q) +
                                                   "; accepted [b + 1], which starts with 0");
    }
    p.layout_q = Layout::packed;
    p.batch = size(a.cu_len_q, 0) - 1;
    p.len_q = p.total_q = size(a.q, 0);
  } else {
    p.batch = size(a.q, 0);
    p.len_q = size(a.q, 1);
  }
  if (packed_kv) {
    p.layout_kv = Layout::packed;
    p.len_kv = p.total_kv = size(a.k, 0);
  } else if (a.block_table.given()) {
    need_rank("block_table", a.block_table, {2}, "[b, pages per entry]");
    p.page_size = size(a.k, 1);
    if (__builtin_mul_overflow(size(a.block_table, 1), p.page_size, &p.len_kv)) p.len_kv = -1;
  } else {
    p.len_kv = size(a.k, 1);
  }
  p.lengths_q = a.len_q.given();
  p.lengths_kv = a.len_kv.given();
  if (a.k_new.given()) {
    need_rank("k_new", a.k_new, {4}, "[b, len_new, g, dim_qk]");
    p.len_new = size(a.k_new, 1);
  }
}

void describe_types(const Arguments& a, Problem& p) {
  p.dtype = a.q.dtype;
  p.dtype_kv = unless(a.k.dtype, p.dtype);
  if (a.o.given()) {
    p.dtype_out = unless(a.o.dtype, p.dtype);
  } else if (a.dout.given()) {
    p.dtype_out = unless(a.dout.dtype, p.dtype);
  }
  for (const TensorView* view : {&a.dq, &a.dk, &a.dv}) {
    if (!view->given()) continue;
    p.dtype_grad = unless(view->dtype, p.dtype);
    break;
  }
  if (a.bias.given()) p.dtype_bias = unless(a.bias.dtype, p.statistics_type());
  if (a.dbias.given()) p.dtype_dbias = unless(a.dbias.dtype, p.bias_type());
}

}  // namespace

Problem describe(const Arguments& arguments) {
  const Arguments& a = arguments;
  Problem p;
  describe_sizes(a, p);
  describe_types(a, p);
  p.kv_begin = a.kv_begin.given();
  p.kv_end = a.kv_end.given();
  p.mask = extent_of("mask", a.mask, p.batch);
  p.bias = extent_of("bias", a.bias, p.batch);
  p.softcap = a.softcap > 0.0;
  p.alibi = a.alibi_slopes.given();
  p.sink = a.sinks.given();
  p.dropout = a.dropout_p > 0.0;
  p.rope_tables = a.rope_cos.given();
  p.rope_positions = a.rope_pos_q.given();
  if (a.diag) p.diagonal = Diagonal::explicit_value;
  p.nonfinite_zero = a.nonfinite_count.given();
  p.descale_rows = a.descale_k.rank == 3 || a.descale_v.rank == 3;
  p.lse = a.lse.given();
  if (a.dout.given()) {
    p.dlse = a.dlse.given();
    p.delta = a.delta.given();
    p.dq = a.dq.given();
    p.dk = a.dk.given();
    p.dv = a.dv.given();
    p.dbias = a.dbias.given();
    p.dsink = a.dsink.given();
  }
  return p;
}

}  // namespace attn
