// The parts of bf16 engines that need AVX-512 with bf16 conversions; see bf16_engine.hpp.
#pragma once

#include "cpu/kernels/tile_ops/bf16_engine.hpp"

// The instruction sets that the code of these engines is compiled for.
#define ATTN_AVX512_BF16 "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma"

namespace attn::cpu {

// Whether the processor and the operating system have AVX-512 (F, BW, DQ, VL) and its bf16
// instructions.
bool has_avx512_bf16();
void pack_keys_avx512(const char* const* rows, std::int64_t dim, Bf16Bits* out);
void pack_values_avx512(const char* const* rows, std::int64_t dim, Bf16Bits* out);
bool find_visible_avx512(const SeenRow* rows, std::int64_t count, std::int64_t cols,
                         std::uint32_t* words);
void softmax_avx512(const Bf16Softmax& x);
void transpose_avx512(const char* const* rows, std::int64_t dim, Bf16Bits* out, std::int64_t ld_out,
                      Bf16Bits* copy);
void gradient_avx512(const Bf16Gradient& x);
void store_sums_avx512(const float* from, std::int64_t ld_from, float factor, std::int64_t dim,
                       char* const* rows);
void store_rows_avx512(const float* from, std::int64_t ld_from, const float* factors,
                       std::int64_t count, std::int64_t dim, char* const* rows);
void transpose_sums_avx512(const float* from, std::int64_t ld_from, float* to, std::int64_t ld_to);

}  // namespace attn::cpu
