// Launch constants and parameters of passes/rope.cu, for the host and the kernel.
#pragma once
#include "shared/cache.cuh"

namespace attn::device::rope {

inline constexpr int kThreads = 256;
inline constexpr int kRows = 8;        // rows per block, with all heads
inline constexpr int kMaxPairs = 256;  // of a row: dims are at most 512
inline constexpr int kMaxJobs = 3;
// Limit of a tensor's heads: a block counts its chunks in 32 bits.
inline constexpr int kMaxHeads = 1 << 23;

// Determines the position of row i of a sequence, unless positions are given.
enum RowKind {
  kQueries,  // i + diag + offset
  kKeys,     // i + offset
  kNewKeys,  // i + offset + the number of cached keys
};

// A tensor to rotate.
struct Job {
  StridedTensor from, to;   // [batch, row, head]; may be the same
  StridedTensor positions;  // i32, the same for all heads; null: computed from `kind`
  Descale descale;          // factors of `from`
  // Paged keys: the block table of the copies [batch, pages per sequence], which the job writes.
  // Page i of sequence b is copied to page b * pages + i; -1: it is missing. Null: not written.
  int* new_table = nullptr;
  long long num_rows = 0;  // of a sequence, or of the packed tensor
  int heads = 0;
  int dim = 0;
  int pairs = 0;  // rotated pairs; elements from 2 * pairs on are copied
  int kind = kQueries;
  int packed = 0;
  int descale_rows = 0;  // 1: one factor per row or page; 0: per sequence
  int heads_per_descale = 1;
  unsigned blocks = 0;  // one per kRows rows and sequence; 0: the job is not used
};

struct Params {
  // Provides lengths, the diagonal, and for gradients `accumulate` and `nonfinite_count`.
  Arguments common;
  Cache cache;         // the pages of jobs of kKeys, in `from`
  Job jobs[kMaxJobs];  // in the order of their blocks in the grid
  long long offset = 0;
  int len_new = 0;  // keys that are appended after the cached ones
  int interleaved = 0;
  int inverse = 0;
  // 1: the tensors are gradients. Rows that belong to no sequence become 0, or keep their values if
  // gradients accumulate. 0: such rows are not written.
  int gradients = 0;
  int every_row = 0;  // 1: rows that belong to no sequence are rotated by their index
  // Tables [table_rows, pairs] in f32; null: angles are computed from `frequency`. Strides in
  // bytes.
  const char* cosines = nullptr;
  const char* sines = nullptr;
  long long cosines_stride = 0;
  long long sines_stride = 0;
  int table_rows = 0;
  // Turns per position in units of 2^-64. The product with a position, modulo 2^64, is then the
  // fraction of a turn.
  unsigned long long frequency[kMaxPairs] = {};
};

}  // namespace attn::device::rope
