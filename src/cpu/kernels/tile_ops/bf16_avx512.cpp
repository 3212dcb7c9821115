// bf16 with AVX-512: packing, transposing, and products with VDPBF16PS.
#include "cpu/kernels/tile_ops/bf16_avx512.hpp"

#include <hwy/highway.h>

#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu {
namespace {

// Elements [begin, begin + 32) of a row of `dim`; zeros past its end and for a null row.
HWY_INLINE __m512i LoadPart(const char* row, std::int64_t begin, std::int64_t dim) {
  if (row == nullptr) return _mm512_setzero_si512();
  const std::int64_t count = dim - begin;
  const __mmask32 mask = count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
  return _mm512_maskz_loadu_epi16(mask, row + 2 * begin);
}

// Transposes 16 x 16 32-bit words.
HWY_INLINE void Transpose(__m512i (&rows)[16]) {
  __m512i pairs[16];
  for (int n = 0; n < 16; n += 2) {
    pairs[n] = _mm512_unpacklo_epi32(rows[n], rows[n + 1]);
    pairs[n + 1] = _mm512_unpackhi_epi32(rows[n], rows[n + 1]);
  }
  for (int n = 0; n < 16; n += 4) {  // rows[n + c]: column c of each 128-bit lane, of rows n..n+3
    rows[n] = _mm512_unpacklo_epi64(pairs[n], pairs[n + 2]);
    rows[n + 1] = _mm512_unpackhi_epi64(pairs[n], pairs[n + 2]);
    rows[n + 2] = _mm512_unpacklo_epi64(pairs[n + 1], pairs[n + 3]);
    rows[n + 3] = _mm512_unpackhi_epi64(pairs[n + 1], pairs[n + 3]);
  }
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0x88);  // lanes 0, 2
    const __m512i odd_low = _mm512_shuffle_i32x4(rows[c], rows[4 + c], 0xDD);   // lanes 1, 3
    const __m512i even_high = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(rows[8 + c], rows[12 + c], 0xDD);
    pairs[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    pairs[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    pairs[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xDD);
    pairs[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD);
  }
  for (int n = 0; n < 16; ++n) rows[n] = pairs[n];
}

// Computes kRows rows by kVectors blocks of 16 columns of a product.
template <int kRows, int kVectors>
HWY_INLINE void MultiplyBlock(const Bf16Product& x, std::int64_t row, std::int64_t col) {
  const Bf16Bits* a = x.a + row * x.lda;
  const Bf16Bits* b = x.b + col / kPackedCols * x.b_cols;
  float* c = x.c + row * x.ldc + col;
  __m512 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = x.accumulate ? _mm512_loadu_ps(c + r * x.ldc + 16 * v) : _mm512_setzero_ps();
    }
  }
  for (std::int64_t k = 0; k < x.depth; k += kPackedDepth, b += x.b_depth) {
    for (std::int64_t pair = 0; pair < kPackedDepth; pair += 2) {
      __m512bh of_b[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        of_b[v] =
            reinterpret_cast<__m512bh>(_mm512_loadu_si512(b + v * x.b_cols + pair * kPackedCols));
      }
      for (int r = 0; r < kRows; ++r) {
        std::int32_t word;
        __builtin_memcpy(&word, a + r * x.lda + k + pair, sizeof(word));
        const auto of_a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(word));
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = _mm512_dpbf16_ps(sum[r][v], of_a, of_b[v]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + r * x.ldc + 16 * v, sum[r][v]);
  }
}

// 8 x 2 accumulators: 10 loads feed 16 products.
void Multiply(const Bf16Product& x) {
  constexpr int kRows = 8;
  static_assert(kBf16Rows % kRows == 0);
  std::int64_t col = 0;
  for (; col + 2 * kPackedCols <= x.cols; col += 2 * kPackedCols) {
    for (std::int64_t row = 0; row < x.rows; row += kRows) MultiplyBlock<kRows, 2>(x, row, col);
  }
  for (; col < x.cols; col += kPackedCols) {
    for (std::int64_t row = 0; row < x.rows; row += kRows) MultiplyBlock<kRows, 1>(x, row, col);
  }
}

void Nothing() {}
// Orders the streaming stores of dbias before those that end the task.
void FinishStores() {
  _mm_sfence();
}

}  // namespace

void pack_keys_avx512(const char* const* rows, std::int64_t dim, Bf16Bits* out) {
  for (std::int64_t begin = 0; begin < dim; begin += kPackedDepth, out += kPackedBlock) {
    __m512i block[16];
    for (int n = 0; n < 16; ++n) block[n] = LoadPart(rows[n], begin, dim);
    Transpose(block);
    for (int pair = 0; pair < 16; ++pair) _mm512_storeu_si512(out + 32 * pair, block[pair]);
  }
}

void pack_values_avx512(const char* const* rows, std::int64_t dim, Bf16Bits* out) {
  alignas(64) std::uint16_t first[32];
  for (std::uint16_t n = 0; n < 16; ++n) {
    first[2 * n] = n;
    first[2 * n + 1] = static_cast<std::uint16_t>(32 + n);
  }
  const __m512i low = _mm512_load_si512(first);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (std::int64_t begin = 0; begin < dim; begin += 2 * kPackedCols, out += 2 * kPackedBlock) {
    for (int pair = 0; pair < 16; ++pair) {
      const __m512i even = LoadPart(rows[2 * pair], begin, dim);
      const __m512i odd = LoadPart(rows[2 * pair + 1], begin, dim);
      _mm512_storeu_si512(out + 32 * pair, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(out + kPackedBlock + 32 * pair,
                          _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}

bool find_visible_avx512(const SeenRow* rows, std::int64_t count, std::int64_t cols,
                         std::uint32_t* words) {
  std::uint64_t any = 0;
  const auto bits_below = [](std::int64_t n) {
    if (n >= 64) return ~std::uint64_t{0};
    return n <= 0 ? 0 : (std::uint64_t{1} << n) - 1;
  };
  for (std::int64_t r = 0; r < count; ++r) {
    const SeenRow& row = rows[r];
    const bool all = row.begin <= 0 && row.end >= cols;
    if (all && cols % 64 == 0 && row.mask != nullptr && row.missing == nullptr) {
      for (std::int64_t c = 0; c < cols; c += 64, words += 2) {
        const __m512i bytes = _mm512_loadu_si512(row.mask + c);
        const std::uint64_t seen = _mm512_test_epi8_mask(bytes, bytes);
        __builtin_memcpy(words, &seen, sizeof(seen));
        any |= seen;
      }
      continue;
    }
    for (std::int64_t c = 0; c < cols; c += 64) {
      __mmask64 seen = bits_below(row.end - c) & ~bits_below(row.begin - c);
      if (row.mask != nullptr) {
        const __m512i bytes = _mm512_maskz_loadu_epi8(seen, row.mask + c);
        seen = _mm512_mask_test_epi8_mask(seen, bytes, bytes);
      }
      if (row.missing != nullptr) {
        const __m512i bytes = _mm512_maskz_loadu_epi8(seen, row.missing + c);
        seen = _mm512_mask_testn_epi8_mask(seen, bytes, bytes);
      }
      *words++ = static_cast<std::uint32_t>(seen);
      if (c + 32 < cols) *words++ = static_cast<std::uint32_t>(seen >> 32);
      any |= seen;
    }
  }
  return any != 0;
}

void transpose_avx512(const char* const* rows, std::int64_t dim, Bf16Bits* out, std::int64_t ld_out,
                      Bf16Bits* copy) {
  const std::int64_t width = (dim + 31) / 32 * 32;
  alignas(64) std::uint16_t first[32];
  for (std::uint16_t n = 0; n < 32; ++n) first[n] = static_cast<std::uint16_t>(2 * n);
  const __m512i even = _mm512_load_si512(first);
  const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
  for (std::int64_t begin = 0; begin < dim; begin += 32) {
    __m512i low[16];
    __m512i high[16];
    for (int n = 0; n < 16; ++n) {
      low[n] = LoadPart(rows[n], begin, dim);
      high[n] = LoadPart(rows[16 + n], begin, dim);
      _mm512_storeu_si512(copy + n * width + begin, low[n]);
      _mm512_storeu_si512(copy + (16 + n) * width + begin, high[n]);
    }
    Transpose(low);
    Transpose(high);
    for (int pair = 0; pair < 16; ++pair) {  // dims 2 pair and 2 pair + 1 of rows 0-15, 16-31
      _mm512_storeu_si512(out, _mm512_permutex2var_epi16(low[pair], even, high[pair]));
      out += ld_out;
      _mm512_storeu_si512(out, _mm512_permutex2var_epi16(low[pair], odd, high[pair]));
      out += ld_out;
    }
  }
}

void transpose_sums_avx512(const float* from, std::int64_t ld_from, float* to, std::int64_t ld_to) {
  // In gradient_avx512, four columns of each eight are in the first block, four in the second.
  for (int half = 0; half < 2; ++half) {
    __m512i block[16];
    for (int c = 0; c < 16; ++c) block[c] = _mm512_load_si512(from + c * ld_from + 16 * half);
    Transpose(block);
    for (int j = 0; j < 16; ++j) {
      _mm512_storeu_si512(to + (j / 4 * 8 + 4 * half + j % 4) * ld_to, block[j]);
    }
  }
}

void store_sums_avx512(const float* from, std::int64_t ld_from, float factor, std::int64_t dim,
                       char* const* rows) {
  const __m512 by = _mm512_set1_ps(factor);
  for (std::int64_t begin = 0; begin < dim; begin += 32) {
    const std::int64_t left = dim - begin;
    const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
    for (int half = 0; half < 2; ++half) {  // see transpose_sums_avx512
      const float* at = from + begin * ld_from + 16 * half;
      __m512i low[16];
      __m512i high[16];
      for (int c = 0; c < 16; ++c) low[c] = _mm512_load_si512(at + c * ld_from);
      Transpose(low);
      for (int c = 0; c < 16; ++c) high[c] = _mm512_load_si512(at + (16 + c) * ld_from);
      Transpose(high);
      for (int j = 0; j < 16; ++j) {
        char* row = rows[j / 4 * 8 + 4 * half + j % 4];
        if (row == nullptr) continue;
        const auto rounded = reinterpret_cast<__m512i>(
            _mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_castsi512_ps(high[j]), by),
                                _mm512_mul_ps(_mm512_castsi512_ps(low[j]), by)));
        _mm512_mask_storeu_epi16(row + 2 * begin, mask, rounded);
      }
    }
  }
}

void store_rows_avx512(const float* from, std::int64_t ld_from, const float* factors,
                       std::int64_t count, std::int64_t dim, char* const* rows) {
  for (std::int64_t r = 0; r < count; ++r, from += ld_from) {
    if (rows[r] == nullptr) continue;
    const __m512 by = _mm512_set1_ps(factors[r]);
    for (std::int64_t begin = 0; begin < dim; begin += 32) {
      const std::int64_t left = dim - begin;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
      const auto low = static_cast<__mmask16>(mask);
      const auto high = static_cast<__mmask16>(mask >> 16);
      const auto rounded = reinterpret_cast<__m512i>(
          _mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_maskz_loadu_ps(high, from + begin + 16), by),
                              _mm512_mul_ps(_mm512_maskz_loadu_ps(low, from + begin), by)));
      _mm512_mask_storeu_epi16(rows[r] + 2 * begin, mask, rounded);
    }
  }
}

const Bf16Engine* bf16_dot_engine() {
  static const Bf16Engine engine{"bf16_dot",
                                 Nothing,
                                 FinishStores,
                                 Multiply,
                                 pack_keys_avx512,
                                 pack_values_avx512,
                                 find_visible_avx512,
                                 softmax_avx512,
                                 transpose_avx512,
                                 gradient_avx512,
                                 transpose_sums_avx512,
                                 store_sums_avx512,
                                 store_rows_avx512,
                                 true,
                                 true,
                                 true};
  static const bool usable = has_avx512_bf16();
  return usable ? &engine : nullptr;
}

}  // namespace attn::cpu
HWY_POP_ATTRIBUTES

#else

namespace attn::cpu {
const Bf16Engine* bf16_dot_engine() {
  return nullptr;
}
}  // namespace attn::cpu

#endif
