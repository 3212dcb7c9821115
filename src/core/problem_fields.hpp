// Every field of Problem, once: printing, parsing, hashing and the C ABI visit this list.
#pragma once

#include <attn/problem.hpp>

namespace attn::core {

// Calls visit(name, member pointer) for each field, in the order of the struct.
template <class Visit>
constexpr void visit_fields(Visit&& visit) {
  visit("dtype", &Problem::dtype);
  visit("dtype_kv", &Problem::dtype_kv);
  visit("dtype_out", &Problem::dtype_out);
  visit("dtype_grad", &Problem::dtype_grad);
  visit("dtype_bias", &Problem::dtype_bias);
  visit("dtype_dbias", &Problem::dtype_dbias);
  visit("precision", &Problem::precision);

  visit("batch", &Problem::batch);
  visit("heads_q", &Problem::heads_q);
  visit("heads_kv", &Problem::heads_kv);
  visit("len_q", &Problem::len_q);
  visit("len_kv", &Problem::len_kv);
  visit("dim_qk", &Problem::dim_qk);
  visit("dim_vo", &Problem::dim_vo);
  visit("layout_q", &Problem::layout_q);
  visit("layout_kv", &Problem::layout_kv);
  visit("total_q", &Problem::total_q);
  visit("total_kv", &Problem::total_kv);
  visit("lengths_q", &Problem::lengths_q);
  visit("lengths_kv", &Problem::lengths_kv);

  visit("causal", &Problem::causal);
  visit("diagonal", &Problem::diagonal);
  visit("window_left", &Problem::window_left);
  visit("window_right", &Problem::window_right);
  visit("kv_begin", &Problem::kv_begin);
  visit("kv_end", &Problem::kv_end);
  visit("mask", &Problem::mask);

  visit("softcap", &Problem::softcap);
  visit("alibi", &Problem::alibi);
  visit("bias", &Problem::bias);
  visit("sink", &Problem::sink);
  visit("dropout", &Problem::dropout);

  visit("rope", &Problem::rope);
  visit("rot_dim", &Problem::rot_dim);
  visit("rope_tables", &Problem::rope_tables);
  visit("rope_positions", &Problem::rope_positions);

  visit("page_size", &Problem::page_size);
  visit("len_new", &Problem::len_new);
  visit("split_keys", &Problem::split_keys);
  visit("descale_rows", &Problem::descale_rows);

  visit("lse", &Problem::lse);
  visit("dlse", &Problem::dlse);
  visit("delta", &Problem::delta);
  visit("dq", &Problem::dq);
  visit("dk", &Problem::dk);
  visit("dv", &Problem::dv);
  visit("dbias", &Problem::dbias);
  visit("dsink", &Problem::dsink);
  visit("accumulate", &Problem::accumulate);
  visit("deterministic", &Problem::deterministic);
  visit("nonfinite_zero", &Problem::nonfinite_zero);
}

}  // namespace attn::core
