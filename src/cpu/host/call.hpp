// Call: one validated call, resolved into addresses, strides and flags that kernels read.
// Built once per call by resolve(); plain values, shared read-only by all workers.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>

#include "core/interrupt.hpp"
#include "core/philox.hpp"
#include "core/visibility.hpp"

namespace attn::cpu {

// Rows of a tensor [batch, len, heads, dim], packed [total, heads, dim] or paged
// [pages, page_size, heads, dim]. Strides in bytes.
struct Rows {
  char* base = nullptr;
  DType dtype = DType::f32;
  bool packed = false;
  bool paged = false;
  bool workspace = false;         // ours: written plainly, whatever the gradients' options say
  std::int64_t stride_batch = 0;  // paged: of a page
  std::int64_t stride_row = 0;
  std::int64_t stride_head = 0;
  [[nodiscard]] bool given() const { return base != nullptr; }
};

// lse, dlse, delta: [batch, heads, len] or [heads, total]. Strides in bytes.
struct Stats {
  char* base = nullptr;
  bool packed = false;
  std::int64_t stride_batch = 0;
  std::int64_t stride_head = 0;
  std::int64_t stride_row = 0;
  [[nodiscard]] bool given() const { return base != nullptr; }
};

// bias, mask, dbias: [b|1, h|1, n|1, m|1]; a broadcast dimension has stride 0. Strides in bytes.
struct Pairs {
  char* base = nullptr;
  DType dtype = DType::f32;
  std::int64_t stride_batch = 0;
  std::int64_t stride_head = 0;
  std::int64_t stride_q = 0;
  std::int64_t stride_kv = 0;
  [[nodiscard]] bool given() const { return base != nullptr; }
};

// One i32 for each query or key: kv_begin, kv_end, rotary positions. Strides in elements.
struct Indices {
  const std::int32_t* base = nullptr;
  bool packed = false;
  std::int64_t stride_batch = 0;
  std::int64_t stride_row = 0;
  [[nodiscard]] bool given() const { return base != nullptr; }
};

struct Call {
  Problem problem;
  Rows q, k, v, o, dout, dq, dk, dv, k_new, v_new;
  Stats lse, dlse, delta;
  Pairs bias, mask, dbias;
  Indices kv_begin, kv_end, pos_q, pos_k;

  const std::int32_t* len_q = nullptr;
  const std::int32_t* len_kv = nullptr;
  std::int64_t len_q_stride = 0;
  std::int64_t len_kv_stride = 0;
  const std::int32_t* cu_len_q = nullptr;
  const std::int32_t* cu_len_kv = nullptr;
  std::int64_t cu_len_q_stride = 0;
  std::int64_t cu_len_kv_stride = 0;

  const std::int32_t* block_table = nullptr;
  std::int64_t table_stride_batch = 0;
  std::int64_t table_stride_page = 0;
  std::int64_t num_pages = 0;

  const char* slopes = nullptr;  // statistics type; strides in bytes
  std::int64_t slopes_stride_batch = 0;
  std::int64_t slopes_stride_head = 0;
  const char* sinks = nullptr;
  std::int64_t sinks_stride = 0;
  char* dsink = nullptr;
  std::int64_t dsink_stride = 0;
  std::uint32_t* nonfinite_count = nullptr;

  double scale = 1.0;
  double softcap = 0.0;
  std::uint32_t keep_threshold = 256;  // dropout keeps when byte < threshold
  core::PhiloxKey dropout_key{};
  std::uint32_t dropout_offset_lo = 0;
  Origin origin{};
  std::int64_t explicit_diag = 0;

  std::int64_t group = 1;  // query heads of one key head

  double rope_base = 0.0;
  std::int64_t rope_pos_offset = 0;
  const char* rope_cos = nullptr;  // statistics type; strides in bytes
  const char* rope_sin = nullptr;
  std::int64_t rope_cos_stride = 0;
  std::int64_t rope_sin_stride = 0;
  std::int64_t rope_table_rows = 0;

  core::Interrupt* interrupt = nullptr;  // null = the call can't be interrupted
};

// A batch entry's own geometry, with lengths and cumulative lengths clamped to be harmless.
struct Entry {
  std::int64_t b = 0;
  std::int64_t len_q = 0;
  std::int64_t len_kv = 0;      // decode: after the append
  std::int64_t len_cached = 0;  // before the append
  std::int64_t first_q = 0;     // packed: first row
  std::int64_t first_kv = 0;
  std::int64_t row0 = 0;    // first row among all_query_rows()
  std::int64_t rows_q = 0;  // rows that outputs have: padded problem.len_q, packed len_q
  std::int64_t rows_kv = 0;
  std::int64_t diag = 0;
};

// Query rows of all entries together; workspace that is kept for each row has so many.
inline std::int64_t all_query_rows(const Problem& p) {
  return p.layout_q == Layout::packed ? p.total_q : p.batch * p.len_q;
}

Call resolve(Pass pass, const Problem& problem, const Arguments& arguments);
Entry entry_of(const Call& call, std::int64_t b);

inline std::int64_t page_of(const Call& call, std::int64_t b, std::int64_t j) {
  return call.block_table[b * call.table_stride_batch +
                          (j / call.problem.page_size) * call.table_stride_page];
}

// A key whose page-table entry is negative or out of range has no memory and is hidden.
inline bool has_page(const Call& call, std::int64_t b, std::int64_t j) {
  const std::int64_t page = page_of(call, b, j);
  return page >= 0 && page < call.num_pages;
}

// Address of entry-local row `row` of a head; `first` is the entry's first row where packed. Null
// for a key without a page.
inline char* row_address(const Call& call, const Rows& rows, std::int64_t b, std::int64_t first,
                         std::int64_t row, std::int64_t head) {
  if (rows.paged) {
    const std::int64_t page = page_of(call, b, row);
    if (page < 0 || page >= call.num_pages) return nullptr;
    return rows.base + page * rows.stride_batch + (row % call.problem.page_size) * rows.stride_row +
           head * rows.stride_head;
  }
  const std::int64_t at =
      rows.packed ? (first + row) * rows.stride_row : b * rows.stride_batch + row * rows.stride_row;
  return rows.base + at + head * rows.stride_head;
}

inline char* stat_address(const Stats& stats, std::int64_t b, std::int64_t first, std::int64_t row,
                          std::int64_t head) {
  const std::int64_t at = stats.packed ? (first + row) * stats.stride_row
                                       : b * stats.stride_batch + row * stats.stride_row;
  return stats.base + at + head * stats.stride_head;
}

inline std::int64_t index_at(const Indices& indices, std::int64_t b, std::int64_t first,
                             std::int64_t row) {
  return indices.base[indices.packed ? (first + row) * indices.stride_row
                                     : b * indices.stride_batch + row * indices.stride_row];
}

inline char* pair_address(const Pairs& pairs, std::int64_t b, std::int64_t head, std::int64_t i,
                          std::int64_t j) {
  return pairs.base + b * pairs.stride_batch + head * pairs.stride_head + i * pairs.stride_q +
         j * pairs.stride_kv;
}

// The keys of this entry that causal, window and kv ranges leave to query i; mask, bias and missing
// pages come on top. Rows past the entry's length see nothing.
core::KeyRange keys_of(const Call& call, const Entry& entry, std::int64_t i);

}  // namespace attn::cpu
