// One batch entry: its lengths, its diagonal, and where its rows lie in padded, packed and paged
// tensors (docs/semantics.md: "Diagonal", "Lengths", "Decode").
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <optional>

namespace attn::reference {

// Sums of several 64-bit numbers, exactly.
__extension__ typedef __int128 Wide;

struct Entry {
  std::int64_t batch = 0;
  std::int64_t len_q = 0;
  std::int64_t len_kv = 0;         // with the appended rows
  std::int64_t len_kv_before = 0;  // without them
  std::int64_t first_q = 0;        // packed: row of the tensor where the entry begins
  std::int64_t first_kv = 0;
  Wide diag = 0;  // query i stands at key i + diag
};
Entry entry_of(const Problem& problem, const Arguments& arguments, std::int64_t batch);

// Positions of the first element of a row (elements from the start of the view).
// q, o and their gradients: query i of head_q.
std::int64_t query_row(const Problem& problem, const TensorView& view, const Entry& entry,
                       std::int64_t i, std::int64_t head_q);
// k, v and their gradients: key j of head_kv. None when the page table has no page for it.
std::optional<std::int64_t> key_row(const Problem& problem, const Arguments& arguments,
                                    const TensorView& view, const Entry& entry, std::int64_t j,
                                    std::int64_t head_kv);

// Positions of the one element for:
// lse, dlse, delta: head_q and query i.
std::int64_t statistic_at(const Problem& problem, const TensorView& view, const Entry& entry,
                          std::int64_t head_q, std::int64_t i);
// kv_begin, kv_end, rope_pos_q: query i. [b|1, n] or packed [total_q].
std::int64_t query_at(const Problem& problem, const TensorView& view, const Entry& entry,
                      std::int64_t i);
// rope_pos_k: key j, or appended row j. [b|1, m] or packed [total_kv].
std::int64_t key_at(const Problem& problem, const TensorView& view, const Entry& entry,
                    std::int64_t j);
// Descales: [b, heads_kv].
std::int64_t descale_at(const TensorView& view, const Entry& entry, std::int64_t head_kv);
// Descales of key j, which has a page: the same, or for each row [b, m|1, heads_kv], in pages
// [pages, page_size|1, heads_kv]. None when the tensor doesn't have the page.
std::optional<std::int64_t> key_descale_at(const Problem& problem, const Arguments& arguments,
                                           const TensorView& view, const Entry& entry,
                                           std::int64_t j, std::int64_t head_kv);

// Bias, mask and the gradient of bias: pair (i, j) of head_q, where a dimension that the extent
// does not call full counts as one of size 1.
std::int64_t pair_at(const Extent& extent, const TensorView& view, const Entry& entry,
                     std::int64_t head_q, std::int64_t i, std::int64_t j);

}  // namespace attn::reference
