// Runs before the backward: computes what the backward's kernels need for each query, in the
// workspace (host/workspace.hpp).
//   lse_delta   {lse in units of log2, delta}; delta = dot(dout, o) - dlse unless the caller passed
//               delta. {inf, 0} for rows that see no key and have no sink, and for rows past the
//               length: their p and ds are then 0, whatever their dlse is
//   row_ranges  KeyRange of each row, {0, 0} past the length; the same for all heads
//   q_ranges    TileRange of each tile of the backward's tile_q queries
//   zeros       zeroed: sums and semaphores (host/workspace.hpp)
//
// Grid: one block per (tile of queries, query head, sequence), tiles fastest; at least one block.
// The kernel is memory-bound: 8 to 32 lanes share a row, and a lane has 4 or 8 rows in flight. Each
// block zeroes its share of `zeros`. Config: tile_q.
#include "config.cuh"
#include "passes/backward_preprocess.cuh"
#include "ptx/grid.cuh"
#include "shared/constants.cuh"
#include "shared/row_chunk.cuh"
#include "shared/sequence.cuh"

namespace {

using namespace shared;

using attn::device::backward_preprocess::kThreads;

constexpr int kTileQ = config::tile_q;
constexpr int kWarps = kThreads / 32;
// Rows that a lane has in flight. Only one without vector access, to keep compilation short.
template <bool kVector>
constexpr int kInFlight = kVector ? 4 : 1;
// Blocks per SM, and rows of 16-bit tensors that a lane has in flight. With 4 rows, 6 blocks are 9
// to 16 % faster than 4 blocks with more registers, and 8 spill.
#if __CUDA_ARCH__ >= 900
constexpr int kBlocks = 5;
constexpr int kInFlight16 = 8;
#else
constexpr int kBlocks = 6;
constexpr int kInFlight16 = 4;
#endif

__device__ __forceinline__ float& FloatAt(const StridedTensor& tensor, const Sequence& seq, int i,
                                          int head) {
  return *reinterpret_cast<float*>(RowAddress(tensor, seq.idx, seq.first_q + i, head));
}

__device__ __forceinline__ void Zero(const Arguments& a) {
  const long long share = (a.zeros_bytes / 16 + gridDim.x - 1) / gridDim.x;
  const long long begin = blockIdx.x * share;
  const long long end = min(begin + share, a.zeros_bytes / 16);
#pragma unroll 4
  for (long long n = begin + threadIdx.x; n < end; n += kThreads) {
    reinterpret_cast<float4*>(a.zeros)[n] = float4{};
  }
}

__device__ __forceinline__ void WriteRanges(const Arguments& a, const Sequence& seq, int tile,
                                            int tiles) {
  __shared__ int scratch[4 * kWarps];
  const long long first = a.packed_q != 0 ? seq.first_q : 1ll * seq.idx * a.max_len_q;
  TileRange of_thread;
  for (int row = static_cast<int>(threadIdx.x); row < kTileQ; row += kThreads) {
    const int i = tile * kTileQ + row;
    if (i >= seq.rows_q) continue;
    KeyRange keys;
    if (i < seq.len_q) {
      keys = VisibleKeys(a, seq, i);
      Include(of_thread, keys);
    }
    reinterpret_cast<int2*>(a.row_ranges)[first + i] = {keys.begin, keys.end};
  }
  const TileRange range = ReduceBlock<kWarps>(ReduceWarp(of_thread), scratch);
  if (threadIdx.x == 0) {
    reinterpret_cast<int4*>(a.q_ranges)[1ll * seq.idx * tiles + tile] = {
        range.any_begin, range.any_end, range.all_begin, range.all_end};
  }
}

// Computes this lane's part of dot(dout, o), 8 columns of rows i, i + rows, ... With kVector it
// replaces `dots`, otherwise it is added to `dots`. Reads nothing outside of the sequence.
template <bool kVector>
__device__ __forceinline__ void Dots(const Arguments& a, const Sequence& seq, int head, int i,
                                     int rows, int column, float (&dots)[kInFlight<kVector>]) {
  constexpr int kRows = kInFlight<kVector>;
  RawChunk raw_o[kRows];
  RawChunk raw_dout[kRows];
#pragma unroll
  for (int n = 0; n < kRows && kVector; ++n) {
    const long long row = seq.first_q + i + n * rows;
    const int dim = i + n * rows < seq.len_q ? a.dim_vo : 0;
    raw_o[n] = LoadRaw(a.o, RowAddress(a.o, seq.idx, row, head), column, dim);
    raw_dout[n] = LoadRaw(a.dout, RowAddress(a.dout, seq.idx, row, head), column, dim);
  }
#pragma unroll
  for (int n = 0; n < kRows; ++n) {
    float o[8];
    float dout[8];
    if constexpr (kVector) {
      ToFloats(raw_o[n], a.o.type, o);
      ToFloats(raw_dout[n], a.dout.type, dout);
    } else {
      const long long row = seq.first_q + i + n * rows;
      const int dim = i + n * rows < seq.len_q ? a.dim_vo : 0;
      LoadChunk(a.o, RowAddress(a.o, seq.idx, row, head), column, dim, o);
      LoadChunk(a.dout, RowAddress(a.dout, seq.idx, row, head), column, dim, dout);
    }
    if (kVector) dots[n] = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) dots[n] = fmaf(o[e], dout[e], dots[n]);
  }
}

template <bool kVector>
__device__ __forceinline__ void WriteLseDelta(const Arguments& a, const Sequence& seq, int head,
                                              int i0) {
  const int lanes = LanesPerRow(a.dim_vo);
  const int rows = kThreads / lanes;  // per step of the block
  const int row_in_step = static_cast<int>(threadIdx.x) / lanes;
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
  const int end = min(kTileQ, seq.rows_q - i0);
  for (int first = row_in_step; first - row_in_step < end; first += kInFlight<kVector> * rows) {
    float delta[kInFlight<kVector>] = {};
    if (a.delta.base == nullptr) {
      if constexpr (kVector) {
        Dots<kVector>(a, seq, head, i0 + first, rows, column, delta);
      } else {
#pragma unroll 1
        for (int from = column; from < a.dim_vo; from += 8 * lanes) {
          Dots<kVector>(a, seq, head, i0 + first, rows, from, delta);
        }
      }
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (float& sum : delta) sum += __shfl_xor_sync(~0u, sum, distance);
      }
    }
    if (column != 0) continue;
#pragma unroll
    for (int n = 0; n < kInFlight<kVector>; ++n) {
      const int i = i0 + first + n * rows;
      if (first + n * rows >= end) continue;
      float2 value{kInfinity, 0.0f};
      const float lse = i < seq.len_q ? FloatAt(a.lse, seq, i, head) : -kInfinity;
      if (lse != -kInfinity) {
        value.x = lse * kLog2E;
        value.y = delta[n];
        if (a.delta.base != nullptr) value.y = FloatAt(a.delta, seq, i, head);
        if (a.dlse.base != nullptr && a.delta.base == nullptr) {
          value.y -= FloatAt(a.dlse, seq, i, head);
        }
      }
      *reinterpret_cast<float2*>(RowAddress(a.lse_delta, seq.idx, seq.first_q + i, head)) = value;
    }
  }
}

// The same for o and dout of the 16-bit type kDtype with vector access, if no delta is given. A
// lane issues all loads of kRows rows before it uses the first. Each of the first kRows lanes of a
// row writes one of the rows.
template <int kDtype>
__device__ __forceinline__ void WriteLseDelta16(const Arguments& a, const Sequence& seq, int head,
                                                int i0) {
  constexpr int kRows = kInFlight16;
  const int lanes = LanesPerRow(a.dim_vo);
  const int rows = kThreads / lanes;  // per step of the block
  const int row_in_step = static_cast<int>(threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int end = min(kTileQ, seq.rows_q - i0);
  const int valid = min(end, seq.len_q - i0);  // rows below it have values
  const int of_lane = lane * 8 < a.dim_vo ? valid : 0;
  const int step_o = rows * static_cast<int>(a.o.stride_row);
  const int step_dout = rows * static_cast<int>(a.dout.stride_row);
#pragma unroll 1
  for (int begin = 0; begin < end; begin += kRows * rows) {
    const int first = begin + row_in_step;
    const long long row = seq.first_q + i0 + first;
    const char* const from_o = RowAddress(a.o, seq.idx, row, head) + 16 * lane;
    const char* const from_dout = RowAddress(a.dout, seq.idx, row, head) + 16 * lane;
    uint4 o[kRows];
    uint4 dout[kRows];
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      o[n] = dout[n] = uint4{};
      if (first + n * rows < of_lane) {
        o[n] = *reinterpret_cast<const uint4*>(from_o + n * step_o);
        dout[n] = *reinterpret_cast<const uint4*>(from_dout + n * step_dout);
      }
    }
    const int own_row = first + lane * rows;
    float lse = -kInfinity;
    float dlse = 0.0f;
    if (lane < kRows && own_row < valid) {
      lse = FloatAt(a.lse, seq, i0 + own_row, head);
      if (a.dlse.base != nullptr) dlse = FloatAt(a.dlse, seq, i0 + own_row, head);
    }
    float delta = 0.0f;
#pragma unroll
    for (int n = 0; n < kRows; ++n) {
      const unsigned x[4] = {o[n].x, o[n].y, o[n].z, o[n].w};
      const unsigned y[4] = {dout[n].x, dout[n].y, dout[n].z, dout[n].w};
      float sum = 0.0f;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sum = fmaf(ptx::Low<kDtype>(x[e]), ptx::Low<kDtype>(y[e]), sum);
        sum = fmaf(ptx::High<kDtype>(x[e]), ptx::High<kDtype>(y[e]), sum);
      }
      for (int distance = lanes / 2; distance > 0; distance /= 2) {
        sum += __shfl_xor_sync(~0u, sum, distance);
      }
      if (lane == n) delta = sum;
    }
    if (lane >= kRows || own_row >= end) continue;
    float2 value{kInfinity, 0.0f};
    if (lse != -kInfinity) value = {lse * kLog2E, delta - dlse};
    *reinterpret_cast<float2*>(RowAddress(a.lse_delta, seq.idx, seq.first_q + i0 + own_row, head)) =
        value;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    attn_backward_preprocess(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  Zero(a);
  const int tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
  if (tiles == 0 || a.batch == 0) return;
  const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
  const unsigned heads = blockIdx.x / static_cast<unsigned>(tiles);
  const int head = static_cast<int>(heads % static_cast<unsigned>(a.heads_q));
  const Sequence seq = SequenceOf(a, static_cast<int>(heads / static_cast<unsigned>(a.heads_q)));
  if (head == 0) WriteRanges(a, seq, tile, tiles);
  // Up to dim 256 a lane has 8 columns of a row. Above, it loops over several chunks of 8.
  const bool vector =
      a.o.vector != 0 && a.dout.vector != 0 && a.dim_vo <= 8 * LanesPerRow(a.dim_vo);
  if (vector && a.o.type == a.dout.type && a.o.type != config::f32 && a.delta.base == nullptr) {
    if (a.o.type == config::bf16) {
      WriteLseDelta16<config::bf16>(a, seq, head, tile * kTileQ);
    } else {
      WriteLseDelta16<config::f16>(a, seq, head, tile * kTileQ);
    }
  } else if (vector) {
    WriteLseDelta<true>(a, seq, head, tile * kTileQ);
  } else {
    WriteLseDelta<false>(a, seq, head, tile * kTileQ);
  }
}
