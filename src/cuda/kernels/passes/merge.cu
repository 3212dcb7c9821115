// Merges two partial results over disjoint keys, and computes the gradient of this operation
// (docs/semantics.md, "Merge").
//
// Grid: one block per 32 lines, rows fastest; a line is a row of one head of one sequence. The
// kernel is memory-bound: 8 to 32 lanes share a line, 8 elements each, and each element is read and
// written once.
// Config: none.
#include "config.cuh"
#include "passes/merge.cuh"
#include "ptx/grid.cuh"
#include "shared/constants.cuh"
#include "shared/row_chunk.cuh"

namespace {

using namespace shared;

using attn::device::merge::BackwardParams;
using attn::device::merge::kLines;
using attn::device::merge::kThreads;
using attn::device::merge::Params;
using attn::device::merge::Sizes;

constexpr int kBlocks = 4;  // per SM: at most 64 registers

struct Line {
  int b = 0;
  int head = 0;
  long long row = 0;
  bool valid = false;
};

// Returns line `n` of this block. The number of lines may exceed 32 bits, quotients within a block
// do not.
__device__ __forceinline__ Line LineOf(const Sizes& sizes, int n) {
  const auto rows = static_cast<unsigned>(sizes.rows);
  const auto heads = static_cast<unsigned>(sizes.heads);
  const unsigned long long first = 1ull * blockIdx.x * kLines;
  const unsigned long long above = first / rows;
  const unsigned row = static_cast<unsigned>(first % rows) + static_cast<unsigned>(n);
  const unsigned head = static_cast<unsigned>(above % heads) + row / rows;
  const unsigned long long b = above / heads + head / heads;
  return {static_cast<int>(b), static_cast<int>(head % heads), row % rows,
          b < static_cast<unsigned>(sizes.batch)};
}

__device__ __forceinline__ char* At(const StridedTensor& tensor, const Line& line) {
  return RowAddress(tensor, line.b, line.row, line.head);
}
__device__ __forceinline__ float& FloatAt(const StridedTensor& tensor, const Line& line) {
  return *reinterpret_cast<float*>(At(tensor, line));
}

struct Weights {
  float lse = -kInfinity;
  float w1 = 0.0f;
  float w2 = 0.0f;
};

// lse = logaddexp(lse1, lse2), w_n = exp(lse_n - lse); w_n = 0 for a partial result without keys.
__device__ __forceinline__ Weights WeightsOf(float lse1, float lse2) {
  if (lse1 == -kInfinity) return {lse2, 0.0f, lse2 == -kInfinity ? 0.0f : 1.0f};
  if (lse2 == -kInfinity) return {lse1, 1.0f, 0.0f};
  const float largest = lse1 > lse2 ? lse1 : lse2;
  const float e1 = expf(lse1 - largest);
  const float e2 = expf(lse2 - largest);
  return {largest + logf(e1 + e2), e1 / (e1 + e2), e2 / (e1 + e2)};
}

// Loads this lane's 8 elements of a partial result. Returns zeros, without reading, if the partial
// result has no keys or is not given.
__device__ __forceinline__ void LoadPartial(const StridedTensor& o, const Line& line, float lse,
                                            int column, int dim, float (&values)[8]) {
#pragma unroll
  for (float& value : values) value = 0.0f;
  if (o.base != nullptr && lse != -kInfinity) LoadChunk(o, At(o, line), column, dim, values);
}

// Sums over the lanes of a line. All lanes of the warp must call it.
__device__ __forceinline__ float SumOfLine(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// This lane's values of a line of the merged result and of its gradient.
struct Gradient {
  float o[8] = {};
  float dout[8] = {};
  float dlse = 0.0f;
};

// Writes dout_n = w dout and dlse_n = w (dlse + dot(dout, o_n - o)). Writes zeros for a partial
// result without keys, whatever dout and dlse are.
__device__ __forceinline__ void WriteGradient(const Gradient& of, const StridedTensor& o,
                                              const StridedTensor& dout, const StridedTensor& dlse,
                                              const Line& line, float lse, float weight, int lanes,
                                              int column, int dim) {
  if (dout.base == nullptr && dlse.base == nullptr) return;
  const bool empty = !line.valid || lse == -kInfinity;
  float values[8];
  LoadPartial(o, line, empty ? -kInfinity : lse, column, dim, values);
  float sum = 0.0f;
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    sum = fmaf(of.dout[e], values[e] - of.o[e], sum);
    values[e] = empty ? 0.0f : weight * of.dout[e];
  }
  sum = SumOfLine(sum, lanes);
  if (!line.valid) return;
  if (dout.base != nullptr) StoreChunk(dout, At(dout, line), column, dim, values);
  if (dlse.base != nullptr && column == 0) {
    FloatAt(dlse, line) = empty ? 0.0f : weight * (of.dlse + sum);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    attn_merge(const __grid_constant__ Params p) {
  ptx::WaitForPrimary();
  const int dim = p.sizes.dim;
  const int lanes = LanesPerRow(dim);
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x) / lanes; n < kLines; n += kThreads / lanes) {
    const Line line = LineOf(p.sizes, n);
    Weights weights;
    if (line.valid) {
      const float lse1 = FloatAt(p.lse1, line);
      const float lse2 = FloatAt(p.lse2, line);
      weights = WeightsOf(lse1, lse2);
      float merged[8];
      float other[8];
      LoadPartial(p.o1, line, lse1, column, dim, merged);
      LoadPartial(p.o2, line, lse2, column, dim, other);
#pragma unroll
      for (int e = 0; e < 8; ++e) merged[e] = weights.w1 * merged[e] + weights.w2 * other[e];
      StoreChunk(p.o, At(p.o, line), column, dim, merged);
    }
    // lse may alias lse1, so it is written after all lanes of the line have read lse1.
    __syncwarp();
    if (line.valid && column == 0 && p.lse.base != nullptr) FloatAt(p.lse, line) = weights.lse;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    attn_merge_backward(const __grid_constant__ BackwardParams p) {
  ptx::WaitForPrimary();
  const int dim = p.sizes.dim;
  const int lanes = LanesPerRow(dim);
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
#pragma unroll 1
  for (int n = static_cast<int>(threadIdx.x) / lanes; n < kLines; n += kThreads / lanes) {
    const Line line = LineOf(p.sizes, n);
    float lse1 = -kInfinity;
    float lse2 = -kInfinity;
    Gradient of;
    if (line.valid) {
      lse1 = FloatAt(p.lse1, line);
      lse2 = FloatAt(p.lse2, line);
      LoadChunk(p.o, At(p.o, line), column, dim, of.o);
      LoadChunk(p.dout, At(p.dout, line), column, dim, of.dout);
      if (p.dlse.base != nullptr) of.dlse = FloatAt(p.dlse, line);
    }
    const Weights weights = WeightsOf(lse1, lse2);
    WriteGradient(of, p.o1, p.dout1, p.dlse1, line, lse1, weights.w1, lanes, column, dim);
    WriteGradient(of, p.o2, p.dout2, p.dlse2, line, lse2, weights.w2, lanes, column, dim);
  }
}
