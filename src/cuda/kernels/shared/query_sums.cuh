// The f32 sums of dq, without their scale: how they lie in memory, so that a lane adds what it has
// of an accumulator by one instruction, and a warp 512 bytes in a row. Of each head (and entry, if
// padded) [rows / 16][dim_qk of the Config / 8] accumulators of mma.sync, 16 rows x 8 columns each:
// [32 lanes][4], a lane's as it has them. Rows are an entry's, rounded up to 16; a packed entry
// begins where FirstSumOf() says, which none before it reaches.
#pragma once
#include "config.cuh"
#include "shared/entry.cuh"
#include "shared/row_chunk.cuh"

namespace shared {

// Row of an entry's first.
__device__ __forceinline__ long long FirstSumOf(const Arguments& a, const Entry& entry) {
  return a.packed_q != 0 ? (entry.first_q / 16 + entry.b) * 16 : 0;
}

// Columns [column, column + 8) of a row. Sums have whole chunks, whatever the dim.
__device__ __forceinline__ RawChunk LoadQuerySums(const Rows& rows, int b, int head, long long row,
                                                  int column) {
  const char* from =
      RowAddress(rows, b, row / 16 * 16, head) + column / 8 * 512 + row % 8 * 64 + row / 8 % 2 * 8;
  const auto pair = [&](int t) { return *reinterpret_cast<const uint2*>(from + 16 * t); };
  const uint2 p0 = pair(0);
  const uint2 p1 = pair(1);
  const uint2 p2 = pair(2);
  const uint2 p3 = pair(3);
  return {{p0.x, p0.y, p1.x, p1.y}, {p2.x, p2.y, p3.x, p3.y}};
}

}  // namespace shared
