// Arguments: what every attention kernel is given, by one `const __grid_constant__` structure. Read
// by the host, which fills it (host/call.cpp), and by device code alike: plain types only.
//
// Symbols as in attn/arguments.hpp: b batch, h heads_q, g heads_kv, n len_q, m len_kv. Strides are
// in bytes.
#pragma once

namespace attn::device {

inline constexpr long long kUnlimited = 1LL << 60;

// Rows of a tensor: row i of head h of an entry is at
//   base + b * stride_batch + (first + i) * stride_row + h * stride_head,
// with `first` of the entry (Entry, entry.cuh); packed tensors have stride_batch 0, padded ones
// first 0. Also statistics (lse, delta) and indices (kv_begin), whose rows are one element.
struct Rows {
  char* base = nullptr;
  long long stride_batch = 0;
  long long stride_row = 0;
  long long stride_head = 0;
  int type = 0;    // number of the DType
  int vector = 0;  // rows are 16 bytes at a time, and 256 of them within 2^31 bytes
};

// bias, mask, dbias: [b|1, h|1, n|1, m|1]; a broadcast dimension has stride 0.
struct Pairs {
  char* base = nullptr;
  long long stride_batch = 0;
  long long stride_head = 0;
  long long stride_q = 0;
  long long stride_kv = 0;
  int type = 0;
  int vector = 0;  // keys side by side, rows 16-byte aligned
};

// len_q and the like; null where not given. stride in elements.
struct Integers {
  const int* data = nullptr;
  long long stride = 0;
};

struct Arguments {
  Rows q, k, v, o, lse;
  // Backward. In the workspace: stats, {lse in units of log2, delta} f32 [b, h, n], {inf, 0} for
  // rows that see nothing or are past the length; dq_sum, dq without its scale, f32
  // [b, h, n, dim_qk of the Config].
  Rows dout, dlse, delta, dq, dk, dv, stats, dq_sum;
  Pairs bias, mask, dbias;
  Rows kv_begin, kv_end;  // i32, the same for all heads

  Integers len_q, len_kv;        // padded
  Integers cu_len_q, cu_len_kv;  // packed

  const float* slopes = nullptr;  // ALiBi
  long long slopes_stride_batch = 0;
  long long slopes_stride_head = 0;
  const float* sinks = nullptr;
  long long sinks_stride = 0;
  float* dsink = nullptr;
  long long dsink_stride = 0;
  unsigned* nonfinite_count = nullptr;  // null: non-finite results stay
  int accumulate = 0;                   // gradients are added to

  int batch = 0;
  int heads_q = 0;
  int heads_kv = 0;
  int group = 1;  // query heads of one key head
  int max_len_q = 0;
  int max_len_kv = 0;
  int total_q = 0;  // rows of packed tensors
  int total_kv = 0;
  int packed_q = 0;
  int packed_kv = 0;
  int dim_qk = 0;
  int dim_vo = 0;

  // Query i stands at key i + diag: len_kv - len_q of the entry where `bottom_right`, else `diag`.
  // It sees keys from there - left to there + right; causal is right = 0. Within +- kUnlimited.
  int bottom_right = 0;
  long long diag = 0;
  long long left = kUnlimited;
  long long right = kUnlimited;

  float scale = 1.0f;        // of the raw product
  float scale_log2 = 1.0f;   // scale * log2(e), its size alone; see negative
  int negative = 0;          // the scale is below 0
  float softcap = 0.0f;      // in f32
  float inverse_cap = 0.0f;  // scale / softcap
  // Scores of raw products x up to cap_reach, in units of log2: x times a polynomial in x^2.
  float cap_series[5] = {};
  float cap_reach = -1.0f;
  float cap_unit = 0.0f;  // 1 / softcap, of a score in units of log2

  // Dropout: keep where byte < keep_threshold; what is kept grows by keep_scale.
  unsigned keep_threshold = 256;
  float keep_scale = 1.0f;
  const unsigned long long* seed_at = nullptr;  // on the device, instead of seed
  const unsigned long long* offset_at = nullptr;
  unsigned long long seed = 0;
  unsigned long long offset = 0;
  unsigned origin_q = 0;
  unsigned origin_kv = 0;
  unsigned origin_head = 0;   // origin.batch * heads + origin.head
  unsigned origin_heads = 0;  // heads of the larger problem

  // Backward's workspace, see portable/prepare.cu.
  char* zeros = nullptr;  // dq_sum, turns and dbias_sum, to become zero
  long long zeros_bytes = 0;
  int* q_ranges = nullptr;    // [b, tiles of queries] TileRange
  int* row_ranges = nullptr;  // [b, n] KeyRange
  unsigned* turns = nullptr;  // [b, h, tiles of queries]
  char* dbias_sum = nullptr;  // see shared/bias_sums.cuh; null: dbias is of a kernel of its own
  long long dbias_sum_stride_batch = 0;
  long long dbias_sum_stride_head = 0;
  float* partials = nullptr;  // of dbias, [splits][its own shape]; null: not needed
  int splits = 1;
  int dbias_full = 0;  // which of dbias's dimensions are full: batch 8, head 4, query 2, key 1
};

}  // namespace attn::device
