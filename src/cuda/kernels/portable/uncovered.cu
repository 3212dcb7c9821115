// Rows of packed tensors that no entry has: they are written as empty rows (docs/semantics.md,
// "Lengths"). Launched before the kernels that write the entries' rows, which nothing here touches.
//
// Grid: a block for each 256 consecutive rows. It marks those that some entry has, entries shared
// out among its threads, as cumulative lengths need not rise; then a warp fills each other row, all
// heads.
// Config: none.
#include "config.cuh"
#include "shared/entry.cuh"

namespace {

using namespace shared;

constexpr int kThreads = 256;
constexpr int kRows = 256;

// Bytes of a row of `dim` elements become zero, by a warp.
__device__ __forceinline__ void ZeroRow(const Rows& rows, int dim, int heads, long long row) {
  if (rows.base == nullptr) return;
  const int bytes = dim * (rows.type == config::f32 ? 4 : 2);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int head = 0; head < heads; ++head) {
    char* to = RowAddress(rows, 0, row, head);
    if (rows.vector != 0) {
      for (int at = 16 * lane; at < bytes; at += 16 * 32) {
        *reinterpret_cast<uint4*>(to + at) = uint4{};
      }
    } else {
      for (int at = 2 * lane; at < bytes; at += 2 * 32) {
        *reinterpret_cast<unsigned short*>(to + at) = 0;
      }
    }
  }
}

// Calls fill(row) by whole warps for rows [first, first + kRows) below `total` that no entry has.
template <class Fill>
__device__ __forceinline__ void EachUncovered(const Arguments& a, const Integers& cumulative,
                                              int most, int total, int first, Fill fill) {
  __shared__ unsigned char covered[kRows];
  covered[threadIdx.x] = 0;
  __syncthreads();
  for (int b = static_cast<int>(threadIdx.x); b < a.batch; b += kThreads) {
    int len;
    int rows;
    long long begin;
    EntryRows({}, cumulative, true, b, most, total, len, rows, begin);
    const int from = max(static_cast<int>(begin) - first, 0);
    const int to = min(static_cast<int>(begin) + rows - first, kRows);
    for (int row = from; row < to; ++row) covered[row] = 1;
  }
  __syncthreads();
  for (int row = static_cast<int>(threadIdx.x) / 32; row < min(kRows, total - first);
       row += kThreads / 32) {
    if (covered[row] == 0) fill(1ll * first + row);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    attn_uncovered(const __grid_constant__ Arguments a) {
  EachUncovered(a, a.cu_len_q, a.max_len_q, a.total_q, static_cast<int>(blockIdx.x) * kRows,
                [&](long long row) {
                  ZeroRow(a.o, a.dim_vo, a.heads_q, row);
                  if (a.lse.base == nullptr) return;
                  for (int head = static_cast<int>(threadIdx.x) % 32; head < a.heads_q;
                       head += 32) {
                    *reinterpret_cast<unsigned*>(RowAddress(a.lse, 0, row, head)) = 0xff800000;
                  }
                });
}

// dk and dv; only where they are not added to. dq is written by finish.cu.
extern "C" __global__ void __launch_bounds__(kThreads)
    attn_uncovered_gradients(const __grid_constant__ Arguments a) {
  EachUncovered(a, a.cu_len_kv, a.max_len_kv, a.total_kv, static_cast<int>(blockIdx.x) * kRows,
                [&](long long row) {
                  ZeroRow(a.dk, a.dim_qk, a.heads_kv, row);
                  ZeroRow(a.dv, a.dim_vo, a.heads_kv, row);
                });
}
