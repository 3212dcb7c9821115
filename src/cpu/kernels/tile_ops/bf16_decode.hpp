// Products of a few query rows with a bf16 cache, for float_ops-inl.h: by AMX or by VDPBF16PS. Rows
// of the cache are read in place. VDPBF16PS takes half of the instructions of conversion to f32 and
// an FMA (decode-inl.h), AMX far fewer (docs/kernels/cpu_decode.md).
#pragma once

#include "cpu/kernels/tile_ops/bf16_engine.hpp"

namespace attn::cpu {

inline constexpr std::int64_t kMostDecodeRows = 16;  // query rows of a call

// Called after the products of each `keys` keys, to prefetch the next ones.
struct Bf16Ahead {
  void (*step)(void* context, std::int64_t keys);
  void* context;
};

// S[rows x keys] = Q K^T.
struct Bf16Scores {
  const Bf16Bits* q;  // from pack_queries()
  std::int64_t rows;
  const char* const* k;  // `dim` bf16 elements each
  std::int64_t keys;     // a multiple of kKeysOfScores
  std::int64_t dim;      // a multiple of kPackedDepth
  float* s;
  std::int64_t lds;
};
inline constexpr std::int64_t kKeysOfScores = 16;

// O[rows x cols] += P V. P is rounded to bf16. Columns of o are in another
// order until order_values().
struct Bf16Values {
  const float* p;
  std::int64_t ldp;
  std::int64_t rows;
  const char* const* v;  // `cols` bf16 elements each
  std::int64_t keys;
  std::int64_t cols;  // a multiple of kPackedDepth
  float* o;           // aligned to 64 bytes, as are its rows
  std::int64_t ldo;
};

// One step of the online softmax, with both products: O = O exp(old maximum - new) + P V. All rows
// see all keys.
struct Bf16Attend {
  Bf16Scores scores;  // without s and lds
  Bf16Values values;  // without p and ldp
  float scale;        // > 0
  float* row_max;     // [rows] running maximum of scale times the products
  float* row_sum;     // [rows]
};

struct Bf16Decode {
  // Called before and after the products of a task, on its thread. All its products have `rows`
  // rows.
  void (*begin)(std::int64_t rows);
  void (*end)();
  // Reorders q [rows x dim] for dot_rows. `to`: [kMostDecodeRows x dim].
  void (*pack_queries)(const Bf16Bits* q, std::int64_t rows, std::int64_t dim, Bf16Bits* to);
  void (*dot_rows)(const Bf16Scores&, const Bf16Ahead&);
  void (*add_values)(const Bf16Values&, const Bf16Ahead&);
  void (*order_values)(float* o, std::int64_t cols);
  // For more than `attend_above` rows: faster than the two products and a softmax between them. May
  // be null. The number of keys is a multiple of kKeysOfScores.
  void (*attend)(const Bf16Attend&, const Bf16Ahead&) = nullptr;
  std::int64_t attend_above = kMostDecodeRows;
};

// Null if the processor or the operating system lacks a feature, as in bf16_engine.hpp.
const Bf16Decode* bf16_dot_decode();
const Bf16Decode* amx_bf16_decode();

}  // namespace attn::cpu
