// The workspace of a call; see workspace.hpp.
#include "cuda/host/workspace.hpp"

#include "core/divide_up.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kWorkspaceAlignment = 256;

// Rows of q over all sequences, for one head.
std::int64_t rows_of(const Problem& p) {
  return p.layout_q == Layout::packed ? p.total_q : p.batch * p.len_q;
}

// Rows of dq_accum for each head (and sequence, if padded). Fragments have 16 rows, and each packed
// sequence begins a new fragment.
std::int64_t dq_accum_rows(const Problem& p) {
  if (p.layout_q == Layout::packed) return (p.total_q / 16 + 1 + p.batch) * 16;
  return (p.len_q + 15) / 16 * 16;
}

std::int64_t dbias_accum_columns(const Problem& p) {
  return core::round_up(p.len_kv, 16);
}

// [b, h, n] rows of row_bytes bytes; packed: [h, total_q].
device::StridedTensor rows_at(char* base, const Problem& p, std::int64_t row_bytes) {
  device::StridedTensor rows;
  const bool packed = p.layout_q == Layout::packed;
  rows.base = base;
  rows.stride_row = row_bytes;
  rows.stride_head = (packed ? p.total_q : p.len_q) * row_bytes;
  rows.stride_batch = packed ? 0 : p.heads_q * rows.stride_head;
  rows.type = static_cast<int>(DType::f32);
  rows.vector = row_bytes % 16 == 0 ? 1 : 0;
  return rows;
}

}  // namespace

std::int64_t dbias_elements(const Problem& p) {
  return p.bias.entries(p.batch) * (p.bias.head ? p.heads_q : 1) * (p.bias.q ? p.len_q : 1) *
         (p.bias.kv ? p.len_kv : 1);
}

std::int64_t dbias_accum_rows(const Problem& p) {
  return p.bias.entries(p.batch) * (p.bias.head ? p.heads_q : 1) * core::round_up(p.len_q, 8);
}

std::int64_t dbias_accum_elements(const Problem& p) {
  return dbias_accum_rows(p) * dbias_accum_columns(p);
}

bool dbias_accum_fits(const Problem& p, std::int64_t bytes) {
  return p.len_kv == 0 || dbias_accum_rows(p) <= bytes / (4 * dbias_accum_columns(p));
}

Workspace lay_out(const Problem& p, const WorkspaceNeeds& needs) {
  Workspace w;
  const auto add = [&](Part& part, std::int64_t bytes) {
    part = {w.bytes, bytes};
    w.bytes += core::round_up(bytes, kWorkspaceAlignment);
  };
  const bool by_rows = needs.tile_q > 0;
  const std::int64_t rows = by_rows ? rows_of(p) : 0;
  const std::int64_t tiles = by_rows ? p.batch * core::divide_up(p.len_q, needs.tile_q) : 0;
  w.dim = needs.dim;
  w.splits = needs.splits;
  w.dq_ordered = needs.dq_ordered;
  w.dq_first_stores = needs.dq_first_stores;
  w.kv_heads_at_once = needs.kv_heads_at_once;
  w.kv_heads_reversed = needs.kv_heads_reversed;
  add(w.lse_delta, rows * p.heads_q * 8);
  add(w.row_ranges, rows * 8);
  add(w.q_ranges, tiles * 16);
  const std::int64_t sums = p.heads_q * (p.layout_q == Layout::packed ? 1 : p.batch);
  add(w.dq_accum, dq_accum_rows(p) * sums * needs.dim * 4);
  add(w.dq_semaphore, tiles * p.heads_q * needs.dq_semaphores * 4);
  add(w.dbias_accum, needs.dbias_accum ? dbias_accum_elements(p) * 4 : 0);
  add(w.tile_counter, needs.tile_counter ? std::int64_t{sizeof(unsigned)} : 0);
  add(w.partials, needs.splits > 1 ? needs.splits * dbias_elements(p) * 4 : 0);
  return w;
}

void place(const Workspace& w, const Problem& p, void* memory, device::Arguments& a) {
  const auto at = [&](const Part& part) {
    return part.bytes > 0 ? static_cast<char*>(memory) + part.offset : nullptr;
  };
  if (w.lse_delta.bytes > 0) a.lse_delta = rows_at(at(w.lse_delta), p, 8);
  a.row_ranges = reinterpret_cast<int*>(at(w.row_ranges));
  a.q_ranges = reinterpret_cast<int*>(at(w.q_ranges));
  if (w.dq_accum.bytes > 0) {
    a.dq_accum = rows_at(at(w.dq_accum), p, std::int64_t{w.dim} * 4);
    a.dq_accum.stride_head = dq_accum_rows(p) * a.dq_accum.stride_row;
    a.dq_accum.stride_batch = p.layout_q == Layout::packed ? 0 : p.heads_q * a.dq_accum.stride_head;
  }
  a.dq_semaphore = reinterpret_cast<unsigned*>(at(w.dq_semaphore));
  a.dq_ordered = w.dq_ordered ? 1 : 0;
  a.dq_first_stores = w.dq_first_stores ? 1 : 0;
  a.kv_heads_at_once = w.kv_heads_at_once;
  a.dbias_accum = at(w.dbias_accum);
  if (a.dbias_accum != nullptr) {
    const std::int64_t head = core::round_up(p.len_q, 8) * dbias_accum_columns(p) * 4;
    a.dbias_accum_stride_head = p.bias.head ? head : 0;
    a.dbias_accum_stride_batch = p.bias.batch ? head * (p.bias.head ? p.heads_q : 1) : 0;
  }
  a.partials = reinterpret_cast<float*>(at(w.partials));
  a.splits = w.splits;
  a.zeros_bytes = w.zeros_bytes();
  a.zeros = a.zeros_bytes > 0 ? static_cast<char*>(memory) + w.zeros_offset() : nullptr;
}

}  // namespace attn::cuda
