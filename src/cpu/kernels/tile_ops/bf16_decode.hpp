// Products of a few query rows with a bf16 cache by VDPBF16PS, for float_ops-inl.h. Rows are read
// in place. The products take half of the instructions that conversion to f32 takes (decode-inl.h).
#pragma once

#include "cpu/kernels/tile_ops/bf16_engine.hpp"

namespace attn::cpu {

inline constexpr std::int64_t kMostDecodeRows = 16;  // query rows of a call of add_values

// Called after the products of each `keys` keys, to prefetch the next ones.
struct Bf16Ahead {
  void (*step)(void* context, std::int64_t keys);
  void* context;
};

// S[rows x keys] = Q K^T.
struct Bf16Scores {
  const Bf16Bits* q;  // [rows x dim]
  std::int64_t ldq;
  std::int64_t rows;
  const char* const* k;  // `dim` bf16 elements each
  std::int64_t keys;     // a multiple of 4
  std::int64_t dim;      // a multiple of kPackedDepth
  float* s;
  std::int64_t lds;
};

// O[rows x cols] += P V. P is rounded to bf16. Columns of o are in another
// order until order_values_avx512().
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

// These functions need the features of bf16_dot_engine().
void dot_rows_avx512(const Bf16Scores& x, const Bf16Ahead& ahead);
void add_values_avx512(const Bf16Values& x, const Bf16Ahead& ahead);
void order_values_avx512(float* o, std::int64_t cols);

}  // namespace attn::cpu
