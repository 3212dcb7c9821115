// Call: one validated call, resolved into addresses, strides and flags that kernels read.
// Built once per call by resolve(); plain values, shared read-only by all workers.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>

#include "core/call_numbers.hpp"
#include "core/interrupt.hpp"
#include "core/strided.hpp"

namespace attn::cpu {

// A core::StridedTensor that may be paged. stride_batch is then the distance between pages.
struct StridedTensor : core::StridedTensor {
  bool paged = false;
  bool workspace = false;  // in the workspace: stores ignore accumulate and nonfinite_zero

  // 8-bit types: dequantization factors, [batch, heads_kv], or one per row if descale_rows is set
  // (see row_descale()). Null: no factor. Strides in elements.
  const float* descales = nullptr;
  bool descale_rows = false;
  std::int64_t descales_stride_batch = 0;  // paged: the stride of a page
  std::int64_t descales_stride_row = 0;
  std::int64_t descales_stride_head = 0;
  [[nodiscard]] float descale(std::int64_t b, std::int64_t head_kv) const {
    if (descales == nullptr) return 1.0f;
    return descales[b * descales_stride_batch + head_kv * descales_stride_head];
  }
};

// The smallest range [begin, end) with all keys that a row of the mask leaves visible. A row has
// holes if the mask hides keys inside the range. Holes are encoded in the sign to keep the struct
// at 8 bytes: there is one per row of the mask.
struct MaskRow {
  std::int32_t begin = 0;
  std::int32_t end_or_holes = 0;  // end, or -1 - end if there are holes
  [[nodiscard]] bool holes() const { return end_or_holes < 0; }
  [[nodiscard]] std::int32_t end() const { return holes() ? -1 - end_or_holes : end_or_holes; }
};

// The mask with one bit per pair, set if it is visible, for rows with holes. A strip's words lie
// next to each other, and all heads that share the mask read the same ones. Keys past the mask are
// 0.
struct MaskBits {
  std::uint32_t* words = nullptr;  // [sequences, heads, tiles, queries, row]; null: not packed
  std::int64_t tile_kv = 0;        // keys of a tile
  std::int64_t row = 0;            // words of a row in a tile: two for each 64 keys
  std::int64_t tile = 0;           // words of a tile, all queries
  std::int64_t head = 0;           // words of all tiles
};

struct Call {
  Problem problem;
  core::CallNumbers numbers;
  StridedTensor q, k, v, o, dout, dq, dk, dv, k_new, v_new;
  core::StridedTensor lse, dlse, delta;
  core::ScoreTensor bias, mask, dbias;
  MaskRow* mask_rows = nullptr;  // [sequences, heads, queries] of the mask; null: not scanned
  MaskBits mask_bits;
  core::StridedTensor kv_begin, kv_end, pos_q, pos_k;
  core::LengthArray len_q, len_kv, cu_len_q, cu_len_kv;

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

  double rope_base = 0.0;
  std::int64_t rope_pos_offset = 0;
  const char* rope_cos = nullptr;  // statistics type; strides in bytes
  const char* rope_sin = nullptr;
  std::int64_t rope_cos_stride = 0;
  std::int64_t rope_sin_stride = 0;
  std::int64_t rope_table_rows = 0;

  core::Interrupt* interrupt = nullptr;  // null = the call can't be interrupted
};

// Geometry of one sequence. Lengths are clamped to the tensors, so that invalid ones read no memory
// outside of them.
struct Entry {
  std::int64_t b = 0;
  std::int64_t len_q = 0;
  std::int64_t len_kv = 0;      // decode: after the append
  std::int64_t len_cached = 0;  // before the append
  std::int64_t first_q = 0;     // packed: first row
  std::int64_t first_kv = 0;
  std::int64_t row0 = 0;    // first row among all_query_rows()
  std::int64_t rows_q = 0;  // rows in the outputs: padded problem.len_q, packed len_q
  std::int64_t rows_kv = 0;
  std::int64_t diag = 0;
};

// Query rows of all sequences: the number of rows of workspace arrays that have one per query row.
inline std::int64_t all_query_rows(const Problem& p) {
  return p.layout_q == Layout::packed ? p.total_q : p.batch * p.len_q;
}

Call resolve(Pass pass, const Problem& problem, const Arguments& arguments);
Entry entry_of(const Call& call, std::int64_t b);

inline std::int64_t page_of(const Call& call, std::int64_t b, std::int64_t j) {
  return call.block_table[b * call.table_stride_batch +
                          (j / call.problem.page_size) * call.table_stride_page];
}

// A key has no memory if its entry of the page table is negative or out of range. It is hidden.
inline bool has_page(const Call& call, std::int64_t b, std::int64_t j) {
  const std::int64_t page = page_of(call, b, j);
  return page >= 0 && page < call.num_pages;
}

// Address of row `row` of a sequence and a head. `first`: the sequence's first row in packed
// tensors. Null for a key without a page.
inline char* row_address(const Call& call, const StridedTensor& rows, std::int64_t b,
                         std::int64_t first, std::int64_t row, std::int64_t head) {
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

// The dequantization factor of row `row`. A paged row must have a page.
inline float row_descale(const Call& call, const StridedTensor& rows, std::int64_t b,
                         std::int64_t row, std::int64_t head) {
  const bool paged = rows.paged;
  const std::int64_t first = paged ? page_of(call, b, row) : b;
  const std::int64_t at = paged ? row % call.problem.page_size : row;
  return rows.descales[first * rows.descales_stride_batch + at * rows.descales_stride_row +
                       head * rows.descales_stride_head];
}

inline char* stat_address(const core::StridedTensor& stats, std::int64_t b, std::int64_t first,
                          std::int64_t row, std::int64_t head) {
  const std::int64_t at = stats.packed ? (first + row) * stats.stride_row
                                       : b * stats.stride_batch + row * stats.stride_row;
  return stats.base + at + head * stats.stride_head;
}

inline std::int64_t index_at(const core::StridedTensor& indices, std::int64_t b, std::int64_t first,
                             std::int64_t row) {
  return *reinterpret_cast<const std::int32_t*>(stat_address(indices, b, first, row, 0));
}

inline char* pair_address(const core::ScoreTensor& pairs, std::int64_t b, std::int64_t head,
                          std::int64_t i, std::int64_t j) {
  return pairs.base + pairs.entry_of(b) * pairs.stride_batch + head * pairs.stride_head +
         i * pairs.stride_q + j * pairs.stride_kv;
}

// The (sequence, head) of the mask that a query head reads.
inline std::int64_t mask_head_of(const Call& call, std::int64_t b, std::int64_t head) {
  const Problem& p = call.problem;
  return p.mask.entry_of(b) * (p.mask.head ? p.heads_q : 1) + (p.mask.head ? head : 0);
}
// The scanned row of the mask for query i; null if the mask was not scanned.
inline const MaskRow* mask_row_of(const Call& call, std::int64_t b, std::int64_t head,
                                  std::int64_t i) {
  if (call.mask_rows == nullptr) return nullptr;
  const std::int64_t row = mask_head_of(call, b, head);
  return call.mask_rows + (call.problem.mask.q ? row * call.problem.len_q + i : row);
}

// Keys of the sequence that causal, window, kv_begin and kv_end leave to query i. Mask and missing
// pages are applied later. Rows past the sequence's length see no key.
core::KeyRange keys_of(const Call& call, const Entry& entry, std::int64_t i);

}  // namespace attn::cpu
