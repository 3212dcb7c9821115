// Writes the rows of packed tensors that belong to no sequence, with the values of empty rows
// (docs/semantics.md, "Lengths"). Launched before the kernels that write the sequences' rows; this
// kernel does not touch those.
//
// Grid: one block per 256 consecutive rows. First the threads mark the rows of all sequences
// (cumulative lengths need not be monotonic, so every sequence is checked). Then a warp fills each
// unmarked row, all heads.
// Config: none.
#include "config.cuh"
#include "passes/uncovered_rows.cuh"
#include "ptx/grid.cuh"
#include "shared/element.cuh"
#include "shared/sequence.cuh"

namespace {

using namespace shared;

using attn::device::uncovered_rows::kRows;
using attn::device::uncovered_rows::kThreads;

// A warp zeroes `dim` elements of every head of a row.
__device__ __forceinline__ void ZeroRow(const StridedTensor& tensor, int dim, int heads,
                                        long long row) {
  if (tensor.base == nullptr) return;
  const int bytes = dim * ElementBytes(tensor.type);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int head = 0; head < heads; ++head) {
    char* to = RowAddress(tensor, 0, row, head);
    if (tensor.vector != 0) {
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

// Calls fill(row), with all lanes of a warp, for the rows of [first, first + kRows) below `total`
// that belong to no sequence. max_len: limit of a sequence's length.
template <class Fill>
__device__ __forceinline__ void ForEachUncovered(const Arguments& a, const LengthArray& cumulative,
                                                 int max_len, int total, int first, Fill fill) {
  __shared__ unsigned char covered[kRows];
  covered[threadIdx.x] = 0;
  __syncthreads();
  for (int b = static_cast<int>(threadIdx.x); b < a.batch; b += kThreads) {
    int len;
    int rows;
    long long begin;
    SequenceRows({}, cumulative, true, b, max_len, total, len, rows, begin);
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
    attn_uncovered_rows(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  ForEachUncovered(a, a.cu_len_q, a.max_len_q, a.total_q, static_cast<int>(blockIdx.x) * kRows,
                   [&](long long row) {
                     ZeroRow(a.o, a.dim_vo, a.heads_q, row);
                     if (a.lse.base == nullptr) return;
                     for (int head = static_cast<int>(threadIdx.x) % 32; head < a.heads_q;
                          head += 32) {
                       *reinterpret_cast<unsigned*>(RowAddress(a.lse, 0, row, head)) = 0xff800000;
                     }
                   });
}

// Writes dk and dv, unless gradients accumulate. backward_postprocess.cu writes dq.
extern "C" __global__ void __launch_bounds__(kThreads)
    attn_uncovered_gradients(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  ForEachUncovered(a, a.cu_len_kv, a.max_len_kv, a.total_kv, static_cast<int>(blockIdx.x) * kRows,
                   [&](long long row) {
                     ZeroRow(a.dk, a.dim_qk, a.heads_kv, row);
                     ZeroRow(a.dv, a.dim_vo, a.heads_kv, row);
                   });
}
