// The f32 sums of dq, [b, h, n, dim_qk of the Config] without their scale: how they lie in memory,
// by config::dq_layout.
//   0  rows
//   1  rows, of whose 16 columns side by side 2 t, 2 t + 1, 2 t + 8, 2 t + 9 are neighbours: what a
//      lane has of two accumulators is 16 bytes
//   2  fragments: 16 rows of 8 columns after each other, as the lanes of an accumulator have them,
//   16
//      bytes each; n is rounded up to 16
#pragma once
#include "config.cuh"
#include "shared/entry.cuh"
#include "shared/row_chunk.cuh"

namespace shared {

// Columns [column, column + 8) of a row. Sums have whole chunks, whatever the dim.
__device__ __forceinline__ RawChunk LoadQuerySums(const Rows& rows, int b, int head, long long row,
                                                  int column) {
  if constexpr (config::dq_layout == 0) {
    return LoadRaw(rows, RowAddress(rows, b, row, head), column, column + 8);
  } else {
    const char* from = nullptr;
    if constexpr (config::dq_layout == 1) {
      from = RowAddress(rows, b, row, head) + column / 16 * 64 + column / 8 % 2 * 8;
    } else {
      from = RowAddress(rows, b, row / 16 * 16, head) + column / 8 * 512 + row % 8 * 64 +
             row / 8 % 2 * 8;
    }
    const auto pair = [&](int t) { return *reinterpret_cast<const uint2*>(from + 16 * t); };
    const uint2 p0 = pair(0);
    const uint2 p1 = pair(1);
    const uint2 p2 = pair(2);
    const uint2 p3 = pair(3);
    return {{p0.x, p0.y, p1.x, p1.y}, {p2.x, p2.y, p3.x, p3.y}};
  }
}

}  // namespace shared
