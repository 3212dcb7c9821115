// bf16 with AVX-512: packing, the gradient of scores, and products with VDPBF16PS.
#include <hwy/highway.h>

#include "cpu/kernels/tile_ops/bf16_exp2_avx512.hpp"

#if HWY_ARCH_X86_64
#include <immintrin.h>

HWY_PUSH_ATTRIBUTES(ATTN_AVX512_BF16)
namespace attn::cpu {
namespace {

using avx512::Exp2;
using avx512::Kept;
using avx512::kLog2E;

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

// Rounds two rows of 16 f32 to bf16 and interleaves them: a pair of rows of a packed block.
HWY_INLINE void StorePair(__m512 first, __m512 second, Bf16Bits* out) {
  alignas(64) static constexpr std::uint16_t kOrder[32] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first));
  _mm512_storeu_si512(out, _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), both));
}

struct ProbGradient {
  __m512 p, ds;
};
// P and dS of the 16 pairs of row r from column c on. `kept`: pairs that dropout keeps. `seen`:
// visible pairs.
template <bool kDropout>
HWY_INLINE ProbGradient GradientOf(const Bf16Gradient& x, std::int64_t r, std::int64_t c,
                                   __mmask16 kept, __mmask16 seen) {
  const __m512 by = _mm512_set1_ps(x.scale * kLog2E);
  const __m512 minus = _mm512_set1_ps(-x.lse[r] * kLog2E);
  const std::int64_t at = r * x.cols + c;
  const __m512 exponential = Exp2(_mm512_fmadd_ps(_mm512_loadu_ps(x.s + at), by, minus));
  const __m512 p = _mm512_maskz_mov_ps(seen, exponential);
  __m512 dp = _mm512_loadu_ps(x.dp + at);
  // A hidden pair has no gradient even where dP is not finite.
  const __mmask16 visible = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_NEQ_UQ);
  __m512 dropped = p;
  if constexpr (kDropout) {
    dropped = _mm512_maskz_mov_ps(kept, p);
    dp = _mm512_maskz_mul_ps(kept, dp, _mm512_set1_ps(x.dropout.factor));
  }
  dp = _mm512_sub_ps(dp, _mm512_set1_ps(x.delta[r]));
  if (x.tanh != nullptr) {
    const __m512 t = _mm512_loadu_ps(x.tanh + at);
    dp = _mm512_mul_ps(dp, _mm512_fnmadd_ps(t, t, _mm512_set1_ps(1.0F)));
  }
  return {dropped, _mm512_maskz_mul_ps(visible, p, dp)};
}

template <bool kDropout>
HWY_INLINE void GradientRows(const Bf16Gradient& x, std::int64_t r) {
  const ProbGradient none{_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (std::int64_t c = 0; c < x.cols; c += 32) {
    ProbGradient rows[2][2] = {{none, none}, {none, none}};
    for (std::int64_t row = 0; row < 2 && r + row < x.count; ++row) {
      const __mmask32 kept = kDropout ? Kept(x.dropout, r + row, c) : __mmask32{0};
      const std::uint32_t seen = x.visible.words != nullptr
                                     ? x.visible.words[(r + row) * x.visible.row + c / 32]
                                     : ~std::uint32_t{0};
      for (std::int64_t half = 0; half < 2; ++half) {
        rows[row][half] = GradientOf<kDropout>(x, r + row, c + 16 * half,
                                               static_cast<__mmask16>(kept >> (16 * half)),
                                               static_cast<__mmask16>(seen >> (16 * half)));
        if (x.ds_f32 != nullptr) {
          _mm512_storeu_ps(x.ds_f32 + (r + row) * x.cols + c + 16 * half, rows[row][half].ds);
        }
      }
    }
    for (std::int64_t half = 0; half < 2; ++half) {
      const std::int64_t at = (c / kPackedCols + half) * kPackedBlock + r * kPackedCols;
      StorePair(rows[0][half].p, rows[1][half].p, x.p + at);
      StorePair(rows[0][half].ds, rows[1][half].ds, x.ds + at);
    }
    for (std::int64_t row = 0; row < 2; ++row) {
      _mm512_storeu_si512(
          x.ds_rows + (r + row) * x.cols + c,
          reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(rows[row][1].ds, rows[row][0].ds)));
    }
  }
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

void transpose_avx512(const char* const* rows, std::int64_t dim, Bf16Bits* out) {
  alignas(64) std::uint16_t first[32];
  for (std::uint16_t n = 0; n < 32; ++n) first[n] = static_cast<std::uint16_t>(2 * n);
  const __m512i even = _mm512_load_si512(first);
  const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
  for (std::int64_t begin = 0; begin < dim; begin += 32, out += 32 * 32) {
    __m512i low[16];
    __m512i high[16];
    for (int n = 0; n < 16; ++n) {
      low[n] = LoadPart(rows[n], begin, dim);
      high[n] = LoadPart(rows[16 + n], begin, dim);
    }
    Transpose(low);
    Transpose(high);
    for (int pair = 0; pair < 16; ++pair) {  // dims 2 pair and 2 pair + 1 of rows 0-15, 16-31
      _mm512_storeu_si512(out + 64 * pair, _mm512_permutex2var_epi16(low[pair], even, high[pair]));
      _mm512_storeu_si512(out + 64 * pair + 32,
                          _mm512_permutex2var_epi16(low[pair], odd, high[pair]));
    }
  }
}

void transpose_sums_avx512(const float* from, std::int64_t ld_from, float* to, std::int64_t ld_to) {
  __m512i block[16];
  for (int c = 0; c < 16; ++c) block[c] = _mm512_load_si512(from + c * ld_from);
  Transpose(block);
  for (int j = 0; j < 16; ++j) _mm512_storeu_si512(to + j * ld_to, block[j]);
}

void gradient_avx512(const Bf16Gradient& x) {
  for (std::int64_t r = 0; r < kBf16StripRows; r += 2) {
    if (x.dropout.bytes == nullptr) {
      GradientRows<false>(x, r);
    } else {
      GradientRows<true>(x, r);
    }
  }
}

const Bf16Engine* bf16_dot_engine() {
  static const Bf16Engine engine{"bf16_dot",
                                 Nothing,
                                 Nothing,
                                 Multiply,
                                 pack_keys_avx512,
                                 pack_values_avx512,
                                 find_visible_avx512,
                                 softmax_avx512,
                                 transpose_avx512,
                                 gradient_avx512,
                                 transpose_sums_avx512,
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
