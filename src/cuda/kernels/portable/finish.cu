// After the backward: dq = scale * dq_sum, rounded once, added to what is there or with non-finite
// elements replaced where it is so asked. All rows of the tensor; those of no entry have sums of 0.
//
// Grid: a block for each (64 rows, query head, batch entry), rows counting fastest; packed tensors
// are one entry, and their rows look for the one whose sums they take (shared/query_sums.cuh).
// Bound by memory. Padded rows: a warp takes 16 of them, as their accumulators lie, and four lanes
// exchange what they have of a row. Packed ones, which may begin anywhere in an accumulator: 8
// elements to a lane, 4 rows of it under way at once.
// Config: none.
#include "config.cuh"
#include "shared/output.cuh"
#include "shared/query_sums.cuh"
#include "shared/row_chunk.cuh"

namespace {

using namespace shared;

constexpr int kThreads = 128;
constexpr int kRows = 64;
constexpr int kAtOnce = 4;
static_assert(kRows == 16 * kThreads / 32);
constexpr int kBlocks = 8;  // of an SM: up to 8 % quicker than with the registers of 5

// The sums' row for a row of packed tensors; -1 where no entry has it.
__device__ __forceinline__ long long SumOfPacked(const Arguments& a, long long row) {
  if (a.batch == 0) return -1;
  const auto begin = [&](int b) { return a.cu_len_q.data[b * a.cu_len_q.stride]; };
  int low = 0;  // the last entry that begins at the row or before, among [low, high)
  int high = a.batch;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (begin(middle) <= row ? low : high) = middle;
  }
  const Entry entry = EntryOf(a, low);
  const long long i = row - entry.first_q;
  return i >= 0 && i < entry.rows_q ? FirstSumOf(a, entry) + i : -1;
}

// Rows row0, row0 + step, ...: this lane's 8 columns. kPlain: of dq with `vector`, neither added to
// nor counted; else one row at a time, as its code is long to compile.
template <bool kPlain>
__device__ __forceinline__ void FinishRows(const Arguments& a, int b, int head, long long row0,
                                           long long num_rows, int step, int column) {
  constexpr int kTimes = kPlain ? kAtOnce : 1;
  Rows dq = a.dq;
  if (kPlain) dq.vector = 1;
#pragma unroll 1
  for (int first = 0; first * step < kRows; first += kTimes) {
    RawChunk sums[kTimes];
#pragma unroll
    for (int n = 0; n < kTimes; ++n) {
      const long long row = row0 + (first + n) * step;
      sums[n] = RawChunk{};
      if (row >= num_rows) continue;
      const long long sum = a.packed_q != 0 ? SumOfPacked(a, row) : row;
      if (sum >= 0) sums[n] = LoadQuerySums(a.dq_sum, b, head, sum, column);
    }
#pragma unroll
    for (int n = 0; n < kTimes; ++n) {
      const long long row = row0 + (first + n) * step;
      if (row >= num_rows) continue;
      char* to = RowAddress(dq, b, row, head);
      float values[8];
      float old[8] = {};
      ToFloats(sums[n], config::f32, values);
      if (!kPlain && a.accumulate != 0) LoadChunk(dq, to, column, a.dim_qk, old);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        values[e] = fmaf(values[e], a.scale, old[e]);
        if (!kPlain && column + e < a.dim_qk) values[e] = Finite(a, values[e]);
      }
      StoreChunk(dq, to, column, a.dim_qk, values);
    }
  }
}

// words[n] of lane t of four becomes words[t] of lane n.
__device__ __forceinline__ void Transpose(unsigned (&words)[4]) {
  const auto swap = [&](bool upper, int distance, unsigned& low, unsigned& high) {
    const unsigned got = __shfl_xor_sync(~0u, upper ? low : high, distance);
    (upper ? low : high) = got;
  };
  const bool odd = threadIdx.x % 2 != 0;
  swap(odd, 1, words[0], words[1]);
  swap(odd, 1, words[2], words[3]);
  const bool upper = threadIdx.x % 4 >= 2;
  swap(upper, 2, words[0], words[2]);
  swap(upper, 2, words[1], words[3]);
}

// Rows [row0, row0 + 16) of padded dq with `vector`, neither added to nor counted, of type kDtype:
// by a warp, kAtOnce accumulators at a time.
template <int kDtype>
__device__ __forceinline__ void FinishFragments(const Arguments& a, int b, int head, int row0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const char* sums = RowAddress(a.dq_sum, b, row0, head) + 16 * lane;
  const int row = row0 + lane / 4;
  char* const to = RowAddress(a.dq, b, row, head);
#pragma unroll 1
  for (int column = 0; column < a.dim_qk; column += 8 * kAtOnce) {
    float4 c[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      c[n] = float4{};
      const int from = column + 8 * n;
      if (from < a.dim_qk) c[n] = *reinterpret_cast<const float4*>(sums + from * 64);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int four = 0; four < kAtOnce; four += 4) {
        unsigned words[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float4& sum = c[four + n];
          words[n] = ptx::Pack<kDtype>((half == 0 ? sum.x : sum.z) * a.scale,
                                       (half == 0 ? sum.y : sum.w) * a.scale);
        }
        Transpose(words);
        const int at = column + 8 * (four + lane % 4);
        if (row + 8 * half < a.max_len_q && at < a.dim_qk) {
          *reinterpret_cast<uint4*>(to + 8 * half * a.dq.stride_row + 2 * at) = {
              words[0], words[1], words[2], words[3]};
        }
      }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    attn_finish(const __grid_constant__ Arguments a) {
  const int num_rows = a.packed_q != 0 ? a.total_q : a.max_len_q;
  const int tiles = (num_rows + kRows - 1) / kRows;
  const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
  const unsigned heads = blockIdx.x / static_cast<unsigned>(tiles);
  const int head = static_cast<int>(heads % static_cast<unsigned>(a.heads_q));
  const int b = static_cast<int>(heads / static_cast<unsigned>(a.heads_q));
  const bool plain = a.dq.vector != 0 && a.accumulate == 0 && a.nonfinite_count == nullptr;
  const int lanes = LanesOfRow(a.dim_qk);
  const long long row = 1ll * tile * kRows + static_cast<int>(threadIdx.x) / lanes;
  if (plain && a.packed_q == 0 && a.dq.type != config::f32) {
    const int row0 = tile * kRows + static_cast<int>(threadIdx.x) / 32 * 16;
    if (row0 >= a.max_len_q) return;
    if (a.dq.type == config::bf16) {
      FinishFragments<config::bf16>(a, b, head, row0);
    } else {
      FinishFragments<config::f16>(a, b, head, row0);
    }
    return;
  }
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
  if (column >= a.dim_qk) return;
  if (plain) {
    FinishRows<true>(a, b, head, row, num_rows, kThreads / lanes, column);
  } else {
    FinishRows<false>(a, b, head, row, num_rows, kThreads / lanes, column);
  }
}
