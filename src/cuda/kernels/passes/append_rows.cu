// Appends rows of k_new and v_new to a contiguous or paged cache, at the sequences' lengths
// (docs/semantics.md, "Decode"). Rows beyond the capacity or without a page are dropped. Launched
// before the attention kernel.
//
// Grid: one warp per (sequence, new row, key head).
// Config: none.
#include "config.cuh"
#include "passes/append_rows.cuh"
#include "ptx/grid.cuh"
#include "shared/element.cuh"
#include "shared/page_table.cuh"

namespace {

using namespace shared;

using attn::device::append_rows::kRows;
using attn::device::append_rows::kThreads;
using attn::device::append_rows::Params;

__device__ __forceinline__ void CopyRow(const StridedTensor& to, const StridedTensor& from,
                                        char* to_row, const char* from_row, int dim) {
  const bool is_8_bit =
      to.type == config::f8e4m3 || to.type == config::f8e5m2 || to.type == config::i8;
  const int bytes = dim * (is_8_bit ? 1 : ElementBytes(to.type));
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (to.vector != 0 && from.vector != 0) {
    for (int at = 16 * lane; at < bytes; at += 16 * 32) {
      *reinterpret_cast<uint4*>(to_row + at) = *reinterpret_cast<const uint4*>(from_row + at);
    }
  } else if (is_8_bit) {
    for (int at = lane; at < bytes; at += 32) to_row[at] = from_row[at];
  } else {
    for (int at = 2 * lane; at < bytes; at += 2 * 32) {
      *reinterpret_cast<unsigned short*>(to_row + at) =
          *reinterpret_cast<const unsigned short*>(from_row + at);
    }
  }
}

// Key j of the sequence; null if it has no page.
__device__ __forceinline__ char* KeyAddress(const Cache& cache, const StridedTensor& tensor,
                                            const Sequence& seq, int j, int head) {
  const CacheRow at = CacheRowOf(cache, seq.idx, j);
  return at.block < 0 ? nullptr : RowAddress(tensor, at.block, at.row, head);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    attn_append_rows(const __grid_constant__ Params p) {
  ptx::WaitForPrimary();
  const Arguments& a = p.common;
  const unsigned row = blockIdx.x * kRows + threadIdx.x / 32;
  const int head = static_cast<int>(row % static_cast<unsigned>(a.heads_kv));
  const unsigned rest = row / static_cast<unsigned>(a.heads_kv);
  const int t = static_cast<int>(rest % static_cast<unsigned>(p.cache.len_new));
  const int b = static_cast<int>(rest / static_cast<unsigned>(p.cache.len_new));
  if (b >= a.batch) return;
  const Sequence seq = SequenceOf(a, b);
  if (t >= a.max_len_kv - seq.len_kv) return;
  char* const k = KeyAddress(p.cache, a.k, seq, seq.len_kv + t, head);
  char* const v = KeyAddress(p.cache, a.v, seq, seq.len_kv + t, head);
  if (k == nullptr || v == nullptr) return;
  CopyRow(a.k, p.cache.k_new, k, RowAddress(p.cache.k_new, b, t, head), a.dim_qk);
  CopyRow(a.v, p.cache.v_new, v, RowAddress(p.cache.v_new, b, t, head), a.dim_vo);
}
