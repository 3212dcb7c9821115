// Rotary embedding of rows (docs/semantics.md, "Rotary embedding"): of q and k before attention, of
// dq and dk after its backward, of rows that are appended to a cache, and for the operation rope.
// Also copies a cache that is paged or of an 8-bit type, in the type of q, before a forward that
// rotates its keys: keys rotated, values (0 pairs) not. Copies f8 queries in a 16-bit type, and
// multiplies descale_k by descale_q.
//
// Grid: one block per (8 rows, sequence) of a tensor; the blocks of each job (tensor) follow those
// of the previous one. A packed tensor counts as one sequence, and its rows look up the sequence
// that they belong to. A block computes the cosines and sines of its rows once for all heads. Then
// each thread rotates chunks of 8 pairs, two chunks of 8 elements. It reads both before it writes,
// so `to` may equal `from`.
// Config: none.
#include "config.cuh"
#include "passes/rope.cuh"
#include "ptx/grid.cuh"
#include "shared/element_8bit.cuh"
#include "shared/gradient.cuh"
#include "shared/page_table.cuh"
#include "shared/row_chunk.cuh"

namespace {

using namespace shared;

using attn::device::rope::Job;
using attn::device::rope::kKeys;
using attn::device::rope::kMaxJobs;
using attn::device::rope::kMaxPairs;
using attn::device::rope::kNewKeys;
using attn::device::rope::kQueries;
using attn::device::rope::kRows;
using attn::device::rope::kThreads;
using attn::device::rope::Params;

constexpr int kBlocks = 4;  // per SM: at most 64 registers

// How a row is processed: not written, set to 0, or rotated.
enum RowAction { kSkip, kZero, kRotate };

struct Row {
  long long position = 0;
  long long idx = 0;  // in `from` and `to`, of the sequence or of the page
  int action = kSkip;
  int from = 0;  // sequence or page
  int to = 0;
  const float* factors = nullptr;  // per head or group of heads; null: all are 1
};

// Returns the last sequence of a packed tensor that begins at or before the row.
__device__ __forceinline__ int SequenceOfRow(const LengthArray& cumulative, int batch,
                                             long long row) {
  int low = 0;
  int high = batch;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (cumulative.data[middle * cumulative.stride] <= row ? low : high) = middle;
  }
  return low;
}

// Locates key j of a paged cache and of its copy. In the copy, pages are in the order of the keys.
__device__ __forceinline__ void LocateInPages(const Params& p, const Job& job, int b, int j,
                                              Row& of) {
  const CacheRow at = CacheRowOf(p.cache, b, j);
  const int pages = (p.common.max_len_kv - 1) / p.cache.page_size + 1;
  of.to = b * pages + j / p.cache.page_size;
  of.from = at.block;
  of.idx = at.row;
  if (at.block < 0) of.action = kSkip;
  if (job.new_table != nullptr && at.row == 0) job.new_table[of.to] = at.block < 0 ? -1 : of.to;
}

__device__ __forceinline__ const float* FactorsOf(const Job& job, int seq_idx, const Row& of) {
  const Descale& descale = job.descale;
  if (descale.base == nullptr) return nullptr;
  if (job.descale_rows == 0) return descale.base + seq_idx * descale.stride_batch;
  return descale.base + of.from * descale.stride_batch + of.idx * descale.stride_row;
}

__device__ __forceinline__ Row RowOf(const Params& p, const Job& job, int b, long long row) {
  const Arguments& a = p.common;
  const bool of_queries = job.kind == kQueries;
  Row of;
  of.idx = row;
  of.from = of.to = b;
  long long i = row;
  bool inside = false;
  Sequence seq;
  if (job.packed == 0 || a.batch > 0) {
    const LengthArray& cumulative = of_queries ? a.cu_len_q : a.cu_len_kv;
    seq = SequenceOf(a, job.packed != 0 ? SequenceOfRow(cumulative, a.batch, row) : b);
    if (job.packed != 0) i -= of_queries ? seq.first_q : seq.first_kv;
    inside = job.kind == kNewKeys || (i >= 0 && i < (of_queries ? seq.len_q : seq.len_kv));
  }
  of.action = inside || p.every_row != 0              ? kRotate
              : p.gradients != 0 && a.accumulate == 0 ? kZero
                                                      : kSkip;
  of.position = (inside ? i : row) + p.offset;
  if (job.kind == kNewKeys) of.position += seq.len_kv;
  if (of_queries) {
    const int appended = min(p.len_new, a.max_len_kv - seq.len_kv);
    of.position += seq.diag + (a.bottom_right != 0 ? appended : 0);
  }
  if (job.positions.base != nullptr) {
    of.position = *reinterpret_cast<const int*>(RowAddress(job.positions, b, row, 0));
  }
  if (job.kind == kKeys && p.cache.table != nullptr) {
    LocateInPages(p, job, b, static_cast<int>(row), of);
  }
  if (of.action == kRotate) of.factors = FactorsOf(job, seq.idx, of);
  return of;
}

// Returns the cosine in x and the sine in y.
__device__ __forceinline__ float2 Rotation(const Params& p, long long position, int pair) {
  float2 of;
  if (p.cosines != nullptr) {
    const long long row = min(max(position, 0ll), static_cast<long long>(p.table_rows - 1));
    of.x = reinterpret_cast<const float*>(p.cosines + row * p.cosines_stride)[pair];
    of.y = reinterpret_cast<const float*>(p.sines + row * p.sines_stride)[pair];
  } else {
    const unsigned long long turns = static_cast<unsigned long long>(position) * p.frequency[pair];
    // The upper half as a signed fraction of a turn, in [-0.5, 0.5).
    const int fraction = static_cast<int>(static_cast<unsigned>(turns >> 32));
    sincospif(static_cast<float>(fraction) * 0x1p-31f, &of.y, &of.x);
  }
  if (p.inverse != 0) of.y = -of.y;
  return of;
}

// A chunk of 8 pairs of a row: the first columns of its two halves, and the ends of the columns.
struct Chunk {
  int first = 0;
  int first_end = 0;
  int second = 0;
  int second_end = 0;
};

// Chunk n of a row. The chunks of pairs come first, then those of elements that are not rotated.
__device__ __forceinline__ Chunk ChunkOf(const Job& job, bool interleaved, int n) {
  const int rotated = 2 * job.pairs;
  const int of_pairs = (job.pairs + 7) / 8;
  if (n >= of_pairs) return {rotated + 8 * (n - of_pairs), job.dim, job.dim, job.dim};
  if (interleaved) return {16 * n, rotated, 16 * n + 8, rotated};
  return {8 * n, job.pairs, job.pairs + 8 * n, rotated};
}

__device__ __forceinline__ void Rotate(const float* cosines, const float* sines, bool interleaved,
                                       float (&x)[8], float (&y)[8]) {
  if (interleaved) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float x0 = x[2 * e];
      const float y0 = y[2 * e];
      x[2 * e] = x0 * cosines[e] - x[2 * e + 1] * sines[e];
      x[2 * e + 1] = x0 * sines[e] + x[2 * e + 1] * cosines[e];
      y[2 * e] = y0 * cosines[4 + e] - y[2 * e + 1] * sines[4 + e];
      y[2 * e + 1] = y0 * sines[4 + e] + y[2 * e + 1] * cosines[4 + e];
    }
  } else {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const float x0 = x[e];
      x[e] = x0 * cosines[e] - y[e] * sines[e];
      y[e] = x0 * sines[e] + y[e] * cosines[e];
    }
  }
}

// Loads columns [column, column + 8) that are below `end`, multiplied by `factor`.
__device__ __forceinline__ void Load(const StridedTensor& from, const char* row, float factor,
                                     int column, int end, float (&values)[8]) {
  if (!Is8Bit(from.type)) {
    LoadChunk(from, row, column, end, values);
    if (factor == 1.0f) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) values[e] *= factor;
    return;
  }
  const auto* const at = reinterpret_cast<const unsigned char*>(row) + column;
  uint2 bytes{};
  if (from.vector != 0 && column < end) bytes = *reinterpret_cast<const uint2*>(at);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (column + e >= end) continue;
    const unsigned word = e < 4 ? bytes.x : bytes.y;
    const auto byte = from.vector != 0 ? static_cast<unsigned char>(word >> (8 * (e % 4))) : at[e];
    values[e] = factor * From8Bit(byte, from.type);
  }
}

// Stores columns [column, column + 8) that are below `end`. Gradients are added to the stored
// values, or non-finite elements replaced, if the call requests it.
__device__ __forceinline__ void Store(const Params& p, const Job& job, char* to, int column,
                                      int end, float (&values)[8]) {
  if (p.gradients != 0) {
    float old[8] = {};
    if (p.common.accumulate != 0) LoadChunk(job.to, to, column, end, old);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      if (column + e < end) values[e] = Finite(p.common, values[e] + old[e]);
    }
  }
  if (!Is8Bit(job.to.type)) return StoreChunk(job.to, to, column, end, values);
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    if (column + e < end) {
      reinterpret_cast<unsigned char*>(to)[column + e] = To8Bit(values[e], job.to.type);
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads, kBlocks)
    attn_rope(const __grid_constant__ Params p) {
  ptx::WaitForPrimary();
  __shared__ Row rows[kRows];
  __shared__ float cosines[kRows][kMaxPairs];
  __shared__ float sines[kRows][kMaxPairs];
  unsigned block = blockIdx.x;
  int n = 0;
  while (n < kMaxJobs - 1 && block >= p.jobs[n].blocks) block -= p.jobs[n++].blocks;
  const Job& job = p.jobs[n];
  const auto tiles = static_cast<unsigned>((job.num_rows + kRows - 1) / kRows);
  const int b = static_cast<int>(block / tiles);
  const long long row0 = 1ll * (block % tiles) * kRows;
  const int num_rows = static_cast<int>(min(static_cast<long long>(kRows), job.num_rows - row0));
  const int thread = static_cast<int>(threadIdx.x);

  if (thread < num_rows) rows[thread] = RowOf(p, job, b, row0 + thread);
  __syncthreads();
  for (int at = thread; at < num_rows * job.pairs; at += kThreads) {
    const int row = at / job.pairs;
    const int pair = at - row * job.pairs;
    const float2 rotation = Rotation(p, rows[row].position, pair);
    cosines[row][pair] = rotation.x;
    sines[row][pair] = rotation.y;
  }
  __syncthreads();

  const bool interleaved = p.interleaved != 0;
  const auto chunks =
      static_cast<unsigned>((job.pairs + 7) / 8 + (job.dim - 2 * job.pairs + 7) / 8);
  const unsigned chunks_per_row = chunks * static_cast<unsigned>(job.heads);
#pragma unroll 1
  for (unsigned at = threadIdx.x; at < chunks_per_row * static_cast<unsigned>(num_rows);
       at += kThreads) {
    const int row = static_cast<int>(at / chunks_per_row);
    const int head = static_cast<int>(at % chunks_per_row / chunks);
    const int index = static_cast<int>(at % chunks);
    const int action = rows[row].action;
    if (action == kSkip) continue;
    const Chunk chunk = ChunkOf(job, interleaved, index);
    float x[8] = {};
    float y[8] = {};
    if (action == kRotate) {
      const Row& of = rows[row];
      const char* from = RowAddress(job.from, of.from, of.idx, head);
      const float factor = of.factors != nullptr
                               ? of.factors[head / job.heads_per_descale * job.descale.stride_head]
                               : 1.0f;
      Load(job.from, from, factor, chunk.first, chunk.first_end, x);
      Load(job.from, from, factor, chunk.second, chunk.second_end, y);
      if (8 * index < job.pairs) {
        Rotate(&cosines[row][8 * index], &sines[row][8 * index], interleaved, x, y);
      }
    }
    char* const to = RowAddress(job.to, rows[row].to, rows[row].idx, head);
    Store(p, job, to, chunk.first, chunk.first_end, x);
    Store(p, job, to, chunk.second, chunk.second_end, y);
  }
}
