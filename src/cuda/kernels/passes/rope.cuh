// Launch constants and parameters of passes/rope.cu, for the host and the kernel.
#pragma once
#include "shared/arguments.cuh"

namespace attn::device::rope {

inline constexpr int kThreads = 256;
inline constexpr int kRows = 8;        // of a block, all heads
inline constexpr int kMaxPairs = 128;  // of a row: half of the largest dim
inline constexpr int kMaxJobs = 3;
// Heads of a tensor, so that a block counts its chunks in 32 bits.
inline constexpr int kMaxHeads = 1 << 23;

// The position of row i of a sequence, unless positions are given.
enum RowKind {
  kQueries,  // i + diag + offset
  kKeys,     // i + offset
  kNewKeys,  // i + offset + the number of cached keys
};

// A tensor to rotate.
struct Job {
  StridedTensor from, to;   // [batch, row, head], the same or apart
  StridedTensor positions;  // i32, the same for all heads; null: by `kind`
  long long num_rows = 0;   // of a sequence, or of the packed tensor
  int heads = 0;
  int dim = 0;
  int pairs = 0;  // rotated; elements from 2 * pairs on are copied
  int kind = kQueries;
  int packed = 0;
  unsigned blocks = 0;  // one per kRows rows and sequence; 0: no job
};

struct Params {
  // Lengths, diagonal, and what a gradient adds to and counts (accumulate, nonfinite_count).
  Arguments common;
  Job jobs[kMaxJobs];  // blocks of the first come first
  long long offset = 0;
  int len_new = 0;  // keys that are appended after the cached ones
  int interleaved = 0;
  int inverse = 0;
  // Gradients: rows that belong to no sequence become 0, or stay if gradients accumulate. Else
  // these rows are not written.
  int gradients = 0;
  int every_row = 0;  // rows that belong to no sequence are rotated by their index in the tensor
  // Tables [table_rows, pairs], f32; null: angles by frequency. Strides in bytes.
  const char* cosines = nullptr;
  const char* sines = nullptr;
  long long cosines_stride = 0;
  long long sines_stride = 0;
  int table_rows = 0;
  // Turns per position in units of 2^-64, so that a product modulo 2^64 is the fraction of a turn.
  unsigned long long frequency[kMaxPairs] = {};
};

}  // namespace attn::device::rope
