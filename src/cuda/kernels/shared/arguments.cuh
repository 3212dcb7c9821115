// Arguments: the parameters that all attention kernels share, passed as one `const
// __grid_constant__` structure. The host fills it (host/arguments.cpp, host/workspace.cpp) and
// device code reads it, so it has plain types only.
//
// Symbols as in attn/arguments.hpp: b batch, h heads_q, g heads_kv, n len_q, m len_kv. Strides are
// in bytes.
#pragma once

namespace attn::device {

inline constexpr long long kUnlimited = 1LL << 60;

// A tensor [batch, row, head] of rows: row i of head h of a sequence is at
//   base + b * stride_batch + (first + i) * stride_row + h * stride_head,
// where `first` is the sequence's first row (Sequence, sequence.cuh). Packed tensors have
// stride_batch 0; padded tensors have first 0. Row statistics (lse, delta) and indices (kv_begin)
// are rows of one element.
struct StridedTensor {
  char* base = nullptr;
  long long stride_batch = 0;
  long long stride_row = 0;
  long long stride_head = 0;
  int type = 0;    // number of the DType
  int vector = 0;  // rows can be loaded 16 bytes at a time; 256 rows span less than 2^31 bytes
};

// bias, mask, dbias: [b|b/s|1, h|1, n|1, m|1]; a broadcast dimension has stride 0. b/s: each entry
// of the batch dimension serves s consecutive sequences (shared/score_entries.cuh).
struct ScoreTensor {
  char* base = nullptr;
  long long stride_batch = 0;
  long long stride_head = 0;
  long long stride_q = 0;
  long long stride_kv = 0;
  int type = 0;
  int vector = 0;  // keys are contiguous, rows are 16-byte aligned
};

// Lengths of sequences (len_q, cu_len_q, ...); null if not given. `stride` is in elements.
struct LengthArray {
  const int* data = nullptr;
  long long stride = 0;
};

struct Arguments {
  StridedTensor q, k, v, o, lse;
  // Backward. lse_delta and dq_accum are in the workspace. lse_delta: f32 pairs [b, h, n] {lse in
  // units of log2, delta}; {inf, 0} for rows that see no key and have no sink, and for rows past
  // the length. dq_accum: f32 dq before the scale is applied (shared/dq_accum.cuh).
  StridedTensor dout, dlse, delta, dq, dk, dv, lse_delta, dq_accum;
  ScoreTensor bias, mask, dbias;
  StridedTensor kv_begin, kv_end;  // i32, the same for all heads

  LengthArray len_q, len_kv;        // padded
  LengthArray cu_len_q, cu_len_kv;  // packed

  const float* slopes = nullptr;  // ALiBi
  long long slopes_stride_batch = 0;
  long long slopes_stride_head = 0;
  const float* sinks = nullptr;
  long long sinks_stride = 0;
  float* dsink = nullptr;
  long long dsink_stride = 0;
  unsigned* nonfinite_count = nullptr;  // null: non-finite results are kept
  int accumulate = 0;                   // gradients are added to the tensors' old values

  int batch = 0;
  int heads_q = 0;
  int heads_kv = 0;
  int heads_per_kv = 1;  // query heads of one key head
  int max_len_q = 0;
  int max_len_kv = 0;
  int total_q = 0;  // rows of packed tensors
  int total_kv = 0;
  int packed_q = 0;
  int packed_kv = 0;
  int dim_qk = 0;
  int dim_vo = 0;

  // The diagonal of query i is key i + diag; with `bottom_right`, diag is the sequence's len_kv -
  // len_q. The query sees keys from diagonal - window_left to diagonal + window_right; causal means
  // window_right = 0. All values are within +- kUnlimited.
  int bottom_right = 0;
  long long diag = 0;
  long long window_left = kUnlimited;
  long long window_right = kUnlimited;

  float scale = 1.0f;        // of the raw product q.k
  float scale_log2 = 1.0f;   // |scale| * log2(e); the sign is in negative_scale
  int negative_scale = 0;    // scale < 0
  float softcap = 0.0f;      // in f32
  float inverse_cap = 0.0f;  // scale / softcap
  // Softcap: for raw products |x| <= cap_reach, the score in units of log2 is x times a polynomial
  // in x^2.
  float cap_series[5] = {};
  float cap_reach = -1.0f;
  float cap_unit = 0.0f;  // 1 / softcap, for a score in units of log2

  // Dropout: an element is kept if its random byte < keep_threshold; kept elements are multiplied
  // by keep_scale.
  unsigned keep_threshold = 256;
  float keep_scale = 1.0f;
  const unsigned long long* seed_at = nullptr;  // device address that replaces seed
  const unsigned long long* offset_at = nullptr;
  unsigned long long seed = 0;
  unsigned long long offset = 0;
  unsigned origin_q = 0;
  unsigned origin_kv = 0;
  unsigned origin_head = 0;   // origin.batch * heads + origin.head
  unsigned origin_heads = 0;  // heads of the larger problem

  // Workspace of the backward; see passes/backward_preprocess.cu.
  char* zeros = nullptr;  // buffers that the preprocess zeroes: host/workspace.hpp
  long long zeros_bytes = 0;
  int* q_ranges = nullptr;           // [b, tiles of queries] TileRange
  int* row_ranges = nullptr;         // [b, n] KeyRange
  unsigned* dq_semaphore = nullptr;  // [b, h, tiles of queries, n]; null: sums in any order
  int dq_ordered = 0;                // blocks add to dq_accum in a fixed order
  int dq_first_stores = 0;           // the first block stores, so dq_accum needs no zeroing
  int kv_heads_at_once = 1;          // key heads with interleaved tiles: sm90/backward_keys.cuh
  char* dbias_accum = nullptr;  // shared/dbias_accum.cuh; null: a separate kernel computes dbias
  long long dbias_accum_stride_batch = 0;
  long long dbias_accum_stride_head = 0;
  float* partials = nullptr;  // [splits][dbias's own shape] partial sums of dbias, or null
  int splits = 1;
  int dbias_full = 0;  // dimensions that dbias does not broadcast: batch 8, head 4, query 2, key 1
  int dbias_entries = 1;  // entries in its batch dimension
  int dbias_sharers = 1;  // sequences that share an entry
  // 2^63 / (sequences that share an entry), rounded up: see EntryOf() in score_entries.cuh.
  unsigned long long bias_factor = 1ull << 63;
  unsigned long long mask_factor = 1ull << 63;
};

}  // namespace attn::device
