// dq_accum: f32 sums of dq before the scale is applied. The layout is that of mma.sync
// accumulators, so that a lane adds its four elements with one instruction and a warp adds 512
// contiguous bytes:
//   [batch (padded only)][head][rows / 16][dim_qk of the Config / 8][32 lanes][4]
// Each block of 128 elements is an accumulator of 16 rows x 8 columns, in the order of the lanes.
// The rows of a sequence are rounded up to 16. A packed sequence begins at DqAccumFirstRow(), which
// is past the rounded-up rows of all earlier sequences.
#pragma once
#include "config.cuh"
#include "shared/row_chunk.cuh"
#include "shared/sequence.cuh"

namespace shared {

// Returns the sequence's first row in dq_accum.
__device__ __forceinline__ long long DqAccumFirstRow(const Arguments& a, const Sequence& seq) {
  return a.packed_q != 0 ? (seq.first_q / 16 + seq.idx) * 16 : 0;
}

// Loads columns [column, column + 8) of a row. dq_accum is padded to complete chunks of 8 columns,
// whatever the dim.
__device__ __forceinline__ RawChunk LoadDqAccum(const StridedTensor& accum, int seq_idx, int head,
                                                long long row, int column) {
  const char* from = RowAddress(accum, seq_idx, row / 16 * 16, head) + column / 8 * 512 +
                     row % 8 * 64 + row / 8 % 2 * 8;
  const auto pair = [&](int t) { return *reinterpret_cast<const uint2*>(from + 16 * t); };
  const uint2 p0 = pair(0);
  const uint2 p1 = pair(1);
  const uint2 p2 = pair(2);
  const uint2 p3 = pair(3);
  return {{p0.x, p0.y, p1.x, p1.y}, {p2.x, p2.y, p3.x, p3.y}};
}

}  // namespace shared
