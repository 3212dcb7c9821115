// Runs after the backward: dq = scale * dq_accum, rounded once. If the call requests it, dq is
// added to the stored values, or non-finite elements are replaced. Writes all rows of the tensor;
// rows that belong to no sequence become 0.
//
// Grid: one block per (64 rows, query head, sequence), rows fastest. A packed tensor counts as one
// sequence, and each of its rows looks up the sequence that it belongs to (shared/dq_accum.cuh).
// The kernel is memory-bound. Padded rows: a warp converts 16 rows in the layout of the
// accumulators, and the four lanes of a row exchange their parts. Packed rows, which may begin
// anywhere in an accumulator: 8 elements per lane, 4 rows in flight.
// Config: sole_tile_q, sole_tile_kv. 0, or tile_q and tile_kv of an sm90/backward.cu with
// writes_sole_dq: tiles of queries whose keys are all in one tile of keys have their dq already,
// and tiles of queries without keys may have no sums.
#include "config.cuh"
#include "passes/backward_postprocess.cuh"
#include "ptx/grid.cuh"
#include "shared/dq_accum.cuh"
#include "shared/gradient.cuh"
#include "shared/one_tile.cuh"
#include "shared/quad_transpose.cuh"
#include "shared/row_chunk.cuh"

namespace {

using namespace shared;

using attn::device::backward_postprocess::kRows;
using attn::device::backward_postprocess::kThreads;

constexpr int kInFlight = 4;  // rows or accumulators that a lane loads before it stores
static_assert(kRows == 16 * kThreads / 32);
constexpr int kBlocks = 8;  // per SM: up to 8 % faster than 5 with more registers

// Returns the row of dq_accum that holds a row of packed tensors; -1 if it belongs to no sequence.
__device__ __forceinline__ long long AccumRowOfPacked(const Arguments& a, long long row) {
  if (a.batch == 0) return -1;
  const auto begin = [&](int b) { return a.cu_len_q.data[b * a.cu_len_q.stride]; };
  int low = 0;  // the last sequence that begins at or before the row is in [low, high)
  int high = a.batch;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (begin(middle) <= row ? low : high) = middle;
  }
  const Sequence seq = SequenceOf(a, low);
  const long long i = row - seq.first_q;
  return i >= 0 && i < seq.rows_q ? DqAccumFirstRow(a, seq) + i : -1;
}

// Converts rows row0, row0 + step, ...: 8 columns per lane. kPlain: dq has vector access, does not
// accumulate, and non-finite results are not counted. Otherwise one row at a time, to keep
// compilation short.
template <bool kPlain>
__device__ __forceinline__ void ConvertRows(const Arguments& a, int b, int head, long long row0,
                                            long long num_rows, int step, int column) {
  constexpr int kTimes = kPlain ? kInFlight : 1;
  StridedTensor dq = a.dq;
  if (kPlain) dq.vector = 1;
#pragma unroll 1
  for (int first = 0; first * step < kRows; first += kTimes) {
    RawChunk sums[kTimes];
#pragma unroll
    for (int n = 0; n < kTimes; ++n) {
      const long long row = row0 + (first + n) * step;
      sums[n] = RawChunk{};
      if (row >= num_rows) continue;
      const long long sum = a.packed_q != 0 ? AccumRowOfPacked(a, row) : row;
      if (sum >= 0) sums[n] = LoadDqAccum(a.dq_accum, b, head, sum, column);
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

// Who has computed what of a tile of queries.
enum class Sums { kStored, kNone, kConverted };
__device__ __forceinline__ Sums SumsOf(const Arguments& a, int b, int row) {
  if constexpr (config::sole_tile_q == 0) return Sums::kStored;
  constexpr int kTileQ = config::sole_tile_q == 0 ? 1 : config::sole_tile_q;
  constexpr int kTileKv = config::sole_tile_q == 0 ? 1 : config::sole_tile_kv;
  const int tiles = (a.max_len_q + kTileQ - 1) / kTileQ;
  const int4 keys = reinterpret_cast<const int4*>(a.q_ranges)[1ll * b * tiles + row / kTileQ];
  if (keys.x >= keys.y) return Sums::kNone;
  return attn::device::InOneTile(keys.x, keys.y, kTileKv) ? Sums::kConverted : Sums::kStored;
}

// A warp converts rows [row0, row0 + 16) of padded dq of type kDtype, kInFlight accumulators at a
// time. Same conditions as kPlain. Without `has_sums` the rows become 0.
template <int kDtype>
__device__ __forceinline__ void ConvertFragments(const Arguments& a, int b, int head, int row0,
                                                 bool has_sums) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const char* sums = RowAddress(a.dq_accum, b, row0, head) + 16 * lane;
  const int row = row0 + lane / 4;
  char* const to = RowAddress(a.dq, b, row, head);
#pragma unroll 1
  for (int column = 0; column < a.dim_qk; column += 8 * kInFlight) {
    float4 c[kInFlight];
#pragma unroll
    for (int n = 0; n < kInFlight; ++n) {
      c[n] = float4{};
      const int from = column + 8 * n;
      if (from < a.dim_qk && has_sums) c[n] = *reinterpret_cast<const float4*>(sums + from * 64);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int first = 0; first < kInFlight; first += 4) {
        unsigned words[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const float4& sum = c[first + n];
          words[n] = ptx::Pack<kDtype>((half == 0 ? sum.x : sum.z) * a.scale,
                                       (half == 0 ? sum.y : sum.w) * a.scale);
        }
        Transpose(words);
        const int at = column + 8 * (first + lane % 4);
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
    attn_backward_postprocess(const __grid_constant__ Arguments a) {
  ptx::WaitForPrimary();
  const int num_rows = a.packed_q != 0 ? a.total_q : a.max_len_q;
  const int tiles = (num_rows + kRows - 1) / kRows;
  const int tile = static_cast<int>(blockIdx.x % static_cast<unsigned>(tiles));
  const unsigned heads = blockIdx.x / static_cast<unsigned>(tiles);
  const int head = static_cast<int>(heads % static_cast<unsigned>(a.heads_q));
  const int b = static_cast<int>(heads / static_cast<unsigned>(a.heads_q));
  const bool plain = a.dq.vector != 0 && a.accumulate == 0 && a.nonfinite_count == nullptr;
  const int lanes = a.dim_qk > 256 ? 64 : LanesPerRow(a.dim_qk);
  const long long row = 1ll * tile * kRows + static_cast<int>(threadIdx.x) / lanes;
  if (plain && a.packed_q == 0 && a.dq.type != config::f32) {
    const int row0 = tile * kRows + static_cast<int>(threadIdx.x) / 32 * 16;
    if (row0 >= a.max_len_q) return;
    const Sums sums = SumsOf(a, b, row0);
    if (sums == Sums::kConverted) return;
    if (a.dq.type == config::bf16) {
      ConvertFragments<config::bf16>(a, b, head, row0, sums == Sums::kStored);
    } else {
      ConvertFragments<config::f16>(a, b, head, row0, sums == Sums::kStored);
    }
    return;
  }
  const int column = static_cast<int>(threadIdx.x) % lanes * 8;
  if (column >= a.dim_qk) return;
  if (plain) {
    ConvertRows<true>(a, b, head, row, num_rows, kThreads / lanes, column);
  } else {
    ConvertRows<false>(a, b, head, row, num_rows, kThreads / lanes, column);
  }
}
