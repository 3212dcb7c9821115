// bf16 with NEON: packing, softmax with a bf16 result, and products with BFMMLA, which adds the
// product of 2 x 4 by 4 x 2 bf16 to 2 x 2 f32 sums.
//
// BFMMLA reads four rows (depth) of two columns of B as one vector. In a packed block of 32 rows by
// 16 columns, rows [4 q, 4 q + 4) of columns 2 p and 2 p + 1 are the 8 elements from kQuad q + 8 p
// on, one column after the other.
#include <hwy/highway.h>

#include "core/divide_up.hpp"
#include "cpu/kernels/tile_ops/bf16_engine.hpp"

#if HWY_ARCH_ARM_A64
#include <arm_neon.h>

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <bit>
#include <cstring>
#include <limits>

HWY_PUSH_ATTRIBUTES("arch=armv8.2-a+bf16")
namespace attn::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736F;
constexpr std::int64_t kQuad = 4 * kPackedCols;  // elements of four rows of a packed block

// Elements [begin, begin + 8) of a row of `dim`; zeros past its end and for a null row.
HWY_INLINE uint16x8_t LoadPart(const char* row, std::int64_t begin, std::int64_t dim) {
  const std::int64_t count = row != nullptr ? dim - begin : 0;
  std::uint16_t part[8] = {};
  if (count >= 8) {
    std::memcpy(part, row + 2 * begin, sizeof(part));
  } else if (count > 0) {
    std::memcpy(part, row + 2 * begin, static_cast<std::size_t>(2 * count));
  }
  return vld1q_u16(part);
}

// The first (kHalf 0) or last four elements of two vectors, one after the other.
template <int kHalf>
HWY_INLINE uint16x8_t JoinHalves(uint16x8_t a, uint16x8_t b) {
  const uint64x2_t x = vreinterpretq_u64_u16(a);
  const uint64x2_t y = vreinterpretq_u64_u16(b);
  return vreinterpretq_u16_u64(kHalf == 0 ? vtrn1q_u64(x, y) : vtrn2q_u64(x, y));
}
template <int kHalf>
HWY_INLINE float32x4_t JoinHalves(float32x4_t a, float32x4_t b) {
  const float64x2_t x = vreinterpretq_f64_f32(a);
  const float64x2_t y = vreinterpretq_f64_f32(b);
  return vreinterpretq_f32_f64(kHalf == 0 ? vtrn1q_f64(x, y) : vtrn2q_f64(x, y));
}

// Transposes 8 x 8 elements.
HWY_INLINE void Transpose(uint16x8_t (&rows)[8]) {
  uint32x4_t pairs[8];
  for (int n = 0; n < 8; n += 2) {
    pairs[n] = vreinterpretq_u32_u16(vtrn1q_u16(rows[n], rows[n + 1]));
    pairs[n + 1] = vreinterpretq_u32_u16(vtrn2q_u16(rows[n], rows[n + 1]));
  }
  uint16x8_t quads[8];  // quads[n + c]: columns c and c + 4 of rows n .. n + 3
  for (int n = 0; n < 8; n += 4) {
    for (int odd = 0; odd < 2; ++odd) {
      quads[n + odd] = vreinterpretq_u16_u32(vtrn1q_u32(pairs[n + odd], pairs[n + 2 + odd]));
      quads[n + 2 + odd] = vreinterpretq_u16_u32(vtrn2q_u32(pairs[n + odd], pairs[n + 2 + odd]));
    }
  }
  for (int c = 0; c < 4; ++c) {
    rows[c] = JoinHalves<0>(quads[c], quads[4 + c]);
    rows[4 + c] = JoinHalves<1>(quads[c], quads[4 + c]);
  }
}

// 2^x = 2^(x - floor x) * 2^(floor x). The first factor is a polynomial that is exactly 1 at 0 and
// has an error of at most 1e-7 (minimax on [0, 1)). The second is multiplied in two halves, so that
// results from the smallest subnormal to +inf are right. NaN stays NaN.
HWY_INLINE float32x4_t Exp2(float32x4_t x) {
  x = vminq_f32(vmaxq_f32(x, vdupq_n_f32(-160.0F)), vdupq_n_f32(160.0F));
  const float32x4_t floor = vrndmq_f32(x);
  const float32x4_t r = vsubq_f32(x, floor);
  float32x4_t y = vdupq_n_f32(1.8671305e-3F);
  y = vfmaq_f32(vdupq_n_f32(9.0170298e-3F), y, r);
  y = vfmaq_f32(vdupq_n_f32(5.5799913e-2F), y, r);
  y = vfmaq_f32(vdupq_n_f32(2.4016444e-1F), y, r);
  y = vfmaq_f32(vdupq_n_f32(6.9315130e-1F), y, r);
  y = vfmaq_f32(vdupq_n_f32(1.0F), y, r);
  const int32x4_t n = vcvtq_s32_f32(floor);
  const int32x4_t half = vshrq_n_s32(n, 1);
  const auto power = [](int32x4_t exponent) {
    constexpr int kMantissa = 23, kBias = 127;
    return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(exponent, vdupq_n_s32(kBias)), kMantissa));
  };
  return vmulq_f32(vmulq_f32(y, power(half)), power(vsubq_s32(n, half)));
}

// All ones in the lanes whose bit is set, from bit 0 on.
HWY_INLINE uint32x4_t LanesOf(std::uint32_t bits) {
  constexpr std::uint32_t kBits[4] = {1, 2, 4, 8};
  return vtstq_u32(vdupq_n_u32(bits), vld1q_u32(kBits));
}

HWY_INLINE float32x4_t Masked(uint32x4_t lanes, float32x4_t x) {
  return vreinterpretq_f32_u32(vandq_u32(lanes, vreinterpretq_u32_f32(x)));
}

// 8 consecutive values.
struct Eight {
  float32x4_t low, high;
};
struct EightLanes {
  uint32x4_t low, high;
};

HWY_INLINE Eight Load(const float* from) {
  return {vld1q_f32(from), vld1q_f32(from + 4)};
}
HWY_INLINE void Store(Eight x, float* to) {
  vst1q_f32(to, x.low);
  vst1q_f32(to + 4, x.high);
}
HWY_INLINE Eight Masked(EightLanes lanes, Eight x) {
  return {Masked(lanes.low, x.low), Masked(lanes.high, x.high)};
}
HWY_INLINE uint16x8_t Rounded(Eight x) {
  return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x.low), x.high));
}
// exp(scale s - shift), with by = scale log2(e) and minus = -shift log2(e).
HWY_INLINE Eight Exponential(Eight s, float32x4_t by, float32x4_t minus) {
  return {Exp2(vfmaq_f32(minus, s.low, by)), Exp2(vfmaq_f32(minus, s.high, by))};
}

// The visible pairs among the 8 from column c on of a row.
HWY_INLINE EightLanes Seen(const std::uint32_t* visible, std::int64_t c) {
  const std::uint32_t bits = visible[c / kVisibleBits] >> (c % kVisibleBits);
  return {LanesOf(bits), LanesOf(bits >> 4)};
}

// The pairs that dropout keeps among the 8 from row r, column c on.
HWY_INLINE EightLanes Kept(const Bf16Dropout& x, std::int64_t r, std::int64_t c) {
  const uint8x8_t kept = vcle_u8(vld1_u8(x.bytes + r * x.row + c), vdup_n_u8(x.last_kept));
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(kept));  // the sign fills the lane
  return {vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(wide))),
          vreinterpretq_u32_s32(vmovl_s16(vget_high_s16(wide)))};
}

// The largest visible value of a row, NaN ignored; -inf if none is visible.
HWY_INLINE float RowMax(const float* s, std::int64_t cols, const std::uint32_t* visible) {
  const float32x4_t none = vdupq_n_f32(-kInfinity);
  float32x4_t low = none;
  float32x4_t high = none;
  for (std::int64_t c = 0; c < cols; c += 8) {
    Eight x = Load(s + c);
    if (visible != nullptr) {
      const EightLanes seen = Seen(visible, c);
      x = {vbslq_f32(seen.low, x.low, none), vbslq_f32(seen.high, x.high, none)};
    }
    low = vmaxnmq_f32(low, x.low);
    high = vmaxnmq_f32(high, x.high);
  }
  return vmaxnmvq_f32(vmaxnmq_f32(low, high));
}

// s = exp(scale s - shift), 0 where hidden, rounded to bf16 in the first half of row r. Returns its
// sum before rounding.
HWY_INLINE float ExponentiateRow(const Bf16Softmax& x, std::int64_t r, float shift,
                                 const std::uint32_t* visible) {
  const float32x4_t by = vdupq_n_f32(x.scale * kLog2E);
  const float32x4_t minus = vdupq_n_f32(-shift * kLog2E);
  float32x4_t low = vdupq_n_f32(0.0F);
  float32x4_t high = low;
  float* s = x.s + r * x.lds;
  auto* out = reinterpret_cast<Bf16Bits*>(s);
  for (std::int64_t c = 0; c < x.cols; c += 8) {
    Eight p = Exponential(Load(s + c), by, minus);
    if (visible != nullptr) p = Masked(Seen(visible, c), p);
    low = vaddq_f32(low, p.low);
    high = vaddq_f32(high, p.high);
    if (x.dropout.bytes != nullptr) p = Masked(Kept(x.dropout, r, c), p);
    vst1q_u16(out + c, Rounded(p));
  }
  return vaddvq_f32(vaddq_f32(low, high));
}

void SoftmaxRow(const Bf16Softmax& x, std::int64_t r) {
  const std::uint32_t* visible =
      x.visible.words != nullptr ? x.visible.words + r * x.visible.row : nullptr;
  const float before = x.row_max[r];
  const float tile_max = x.scale * RowMax(x.s + r * x.lds, x.cols, visible);
  const float largest = tile_max > before ? tile_max : before;
  // If nothing is visible yet, the shift is 0: exp(-inf - 0) = 0, and a NaN stays NaN.
  const float shift = largest == -kInfinity ? 0.0F : largest;
  if (tile_max > before) {
    const float rescale = vgetq_lane_f32(Exp2(vdupq_n_f32((before - shift) * kLog2E)), 0);
    float* o = x.o + r * x.ldo;
    for (std::int64_t c = 0; c < x.ldo; c += 4) {
      vst1q_f32(o + c, vmulq_n_f32(vld1q_f32(o + c), rescale));
    }
    x.row_sum[r] *= rescale;
    x.row_max[r] = largest;
  }
  x.row_sum[r] += ExponentiateRow(x, r, shift, visible);
}

void Softmax(const Bf16Softmax& x) {
  for (std::int64_t r = 0; r < x.rows; ++r) SoftmaxRow(x, r);
}

struct ProbGradient {
  Eight p, ds;
};

// P and dS of 4 pairs. `kept`: pairs that dropout keeps; `tanh`: of the pairs; null: no softcap.
HWY_INLINE void GradientOf(const Bf16Gradient& x, std::int64_t r, uint32x4_t kept,
                           const float* tanh, float32x4_t dp, float32x4_t& p, float32x4_t& ds) {
  // A hidden pair has no gradient even where dP is not finite.
  const uint32x4_t visible = vmvnq_u32(vceqzq_f32(p));
  if (x.dropout.bytes != nullptr) {
    dp = Masked(kept, vmulq_n_f32(dp, x.dropout.factor));
  }
  dp = vsubq_f32(dp, vdupq_n_f32(x.delta[r]));
  if (tanh != nullptr) {
    const float32x4_t t = vld1q_f32(tanh);
    dp = vmulq_f32(dp, vfmsq_f32(vdupq_n_f32(1.0F), t, t));
  }
  ds = Masked(visible, vmulq_f32(p, dp));
  if (x.dropout.bytes != nullptr) p = Masked(kept, p);
}

// P and dS of the 8 pairs of row r from column c on.
HWY_INLINE ProbGradient GradientOf(const Bf16Gradient& x, std::int64_t r, std::int64_t c) {
  const float32x4_t by = vdupq_n_f32(x.scale * kLog2E);
  const float32x4_t minus = vdupq_n_f32(-x.lse[r] * kLog2E);
  const std::int64_t at = r * x.cols + c;
  ProbGradient out;
  out.p = Exponential(Load(x.s + at), by, minus);
  if (x.visible.words != nullptr) {
    out.p = Masked(Seen(x.visible.words + r * x.visible.row, c), out.p);
  }
  EightLanes kept{};
  if (x.dropout.bytes != nullptr) kept = Kept(x.dropout, r, c);
  const Eight dp = Load(x.dp + at);
  const float* tanh = x.tanh != nullptr ? x.tanh + at : nullptr;
  GradientOf(x, r, kept.low, tanh, dp.low, out.p.low, out.ds.low);
  GradientOf(x, r, kept.high, tanh != nullptr ? tanh + 4 : nullptr, dp.high, out.p.high,
             out.ds.high);
  return out;
}

// Computes kPairs pairs of rows by kPairs pairs of columns of a product.
constexpr int kPairs = 4;
HWY_INLINE void MultiplyBlock(const Bf16Product& x, std::int64_t row, std::int64_t col) {
  const Bf16Bits* a = x.a + row * x.lda;
  const Bf16Bits* b = x.b + col / kPackedCols * x.b_cols + col % kPackedCols * 4;
  float* c = x.c + row * x.ldc + col;
  float32x4_t sum[kPairs][kPairs];  // two rows of two columns each
  for (int r = 0; r < kPairs; ++r) {
    for (int p = 0; p < kPairs; p += 2) {
      const float* at = c + 2 * r * x.ldc + 2 * p;
      const float32x4_t even = x.accumulate ? vld1q_f32(at) : vdupq_n_f32(0.0F);
      const float32x4_t odd = x.accumulate ? vld1q_f32(at + x.ldc) : vdupq_n_f32(0.0F);
      sum[r][p] = JoinHalves<0>(even, odd);
      sum[r][p + 1] = JoinHalves<1>(even, odd);
    }
  }
  const auto multiply = [&](const uint16x8_t(&of_a)[kPairs], const Bf16Bits* of_b) {
    for (int p = 0; p < kPairs; ++p) {
      const bfloat16x8_t columns = vreinterpretq_bf16_u16(vld1q_u16(of_b + 8 * p));
      for (int r = 0; r < kPairs; ++r) {
        sum[r][p] = vbfmmlaq_f32(sum[r][p], vreinterpretq_bf16_u16(of_a[r]), columns);
      }
    }
  };
  for (std::int64_t k = 0; k < x.depth; k += kPackedDepth, b += x.b_depth) {
    for (std::int64_t eight = 0; eight < kPackedDepth; eight += 8) {
      uint16x8_t first[kPairs];
      uint16x8_t second[kPairs];
      for (int r = 0; r < kPairs; ++r) {
        const Bf16Bits* at = a + 2 * r * x.lda + k + eight;
        const uint16x8_t even = vld1q_u16(at);
        const uint16x8_t odd = vld1q_u16(at + x.lda);
        first[r] = JoinHalves<0>(even, odd);
        second[r] = JoinHalves<1>(even, odd);
      }
      multiply(first, b + eight / 4 * kQuad);
      multiply(second, b + (eight / 4 + 1) * kQuad);
    }
  }
  for (int r = 0; r < kPairs; ++r) {
    for (int p = 0; p < kPairs; p += 2) {
      float* at = c + 2 * r * x.ldc + 2 * p;
      vst1q_f32(at, JoinHalves<0>(sum[r][p], sum[r][p + 1]));
      vst1q_f32(at + x.ldc, JoinHalves<1>(sum[r][p], sum[r][p + 1]));
    }
  }
}

// 4 x 4 accumulators: 8 vectors of operands feed 16 products.
void Multiply(const Bf16Product& x) {
  static_assert(kBf16Rows % (2 * kPairs) == 0 && kPackedCols % (2 * kPairs) == 0);
  for (std::int64_t col = 0; col < x.cols; col += 2 * kPairs) {
    for (std::int64_t row = 0; row < x.rows; row += 2 * kPairs) MultiplyBlock(x, row, col);
  }
}

// Interleaves 8 columns of four rows: half of the columns of four rows of a packed block.
HWY_INLINE void StoreQuad(const uint16x8_t (&rows)[4], Bf16Bits* out) {
  const uint16x8x4_t all{{rows[0], rows[1], rows[2], rows[3]}};
  vst4q_u16(out, all);
}

void Gradient(const Bf16Gradient& x) {
  for (std::int64_t r = 0; r < kBf16PartRows; r += 4) {
    for (std::int64_t c = 0; c < x.cols; c += 8) {
      uint16x8_t p[4] = {};
      uint16x8_t ds[4] = {};
      for (std::int64_t row = 0; row < 4; ++row) {
        const std::int64_t at = (r + row) * x.cols + c;
        if (r + row < x.count) {
          const ProbGradient found = GradientOf(x, r + row, c);
          p[row] = Rounded(found.p);
          ds[row] = Rounded(found.ds);
          if (x.ds_f32 != nullptr) Store(found.ds, x.ds_f32 + at);
        }
        vst1q_u16(x.ds_rows + at, ds[row]);
      }
      const std::int64_t at = c / kPackedCols * x.packed_cols + r / 4 * kQuad + c % kPackedCols * 4;
      StoreQuad(p, x.p + at);
      StoreQuad(ds, x.ds + at);
    }
  }
}

void PackKeys(const char* const* rows, std::int64_t dim, Bf16Bits* out) {
  for (std::int64_t begin = 0; begin < dim; begin += kPackedDepth, out += kPackedBlock) {
    for (std::int64_t d = 0; d < kPackedDepth; d += 8) {
      Bf16Bits* to = out + d / 4 * kQuad;
      for (int n = 0; n < kPackedCols; n += 2, to += 8) {
        const uint16x8_t even = LoadPart(rows[n], begin + d, dim);
        const uint16x8_t odd = LoadPart(rows[n + 1], begin + d, dim);
        vst1q_u16(to, JoinHalves<0>(even, odd));
        vst1q_u16(to + kQuad, JoinHalves<1>(even, odd));
      }
    }
  }
}

void PackValues(const char* const* rows, std::int64_t dim, Bf16Bits* out) {
  for (std::int64_t begin = 0; begin < dim; begin += 2 * kPackedCols, out += 2 * kPackedBlock) {
    for (std::int64_t c = 0; c < 2 * kPackedCols; c += 8) {
      Bf16Bits* to = out + c / kPackedCols * kPackedBlock + c % kPackedCols * 4;
      for (int k = 0; k < kPackedDepth; k += 4, to += kQuad) {
        uint16x8_t quad[4];
        for (int n = 0; n < 4; ++n) quad[n] = LoadPart(rows[k + n], begin + c, dim);
        StoreQuad(quad, to);
      }
    }
  }
}

// Bit n of the result is set where byte n is not 0.
HWY_INLINE std::uint32_t NotZero(const std::uint8_t* bytes) {
  constexpr std::uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t bits = vld1q_u8(kBits);
  const uint8x16_t low = vld1q_u8(bytes);
  const uint8x16_t high = vld1q_u8(bytes + 16);
  uint8x16_t sum =
      vpaddq_u8(vandq_u8(vtstq_u8(low, low), bits), vandq_u8(vtstq_u8(high, high), bits));
  sum = vpaddq_u8(sum, sum);
  sum = vpaddq_u8(sum, sum);
  return vgetq_lane_u32(vreinterpretq_u32_u8(sum), 0);
}

// Those of the pairs `seen` whose byte is not 0. Bytes of other pairs may be outside of the tensor.
HWY_INLINE std::uint32_t NotZeroOf(const std::uint8_t* bytes, std::uint32_t seen) {
  if (seen == ~std::uint32_t{0}) return NotZero(bytes);
  std::uint32_t found = 0;
  for (std::uint32_t left = seen; left != 0; left &= left - 1) {
    const int n = std::countr_zero(left);
    if (bytes[n] != 0) found |= std::uint32_t{1} << n;
  }
  return found;
}

bool FindVisible(const SeenRow* rows, std::int64_t count, std::int64_t cols, std::uint32_t* words) {
  std::uint32_t any = 0;
  const auto bits_below = [](std::int64_t n) {
    if (n >= kVisibleBits) return ~std::uint32_t{0};
    return n <= 0 ? 0 : (std::uint32_t{1} << n) - 1;
  };
  for (std::int64_t r = 0; r < count; ++r) {
    const SeenRow& row = rows[r];
    for (std::int64_t c = 0; c < cols; c += kVisibleBits) {
      std::uint32_t seen = bits_below(row.end - c) & ~bits_below(row.begin - c);
      if (row.mask != nullptr) seen = NotZeroOf(row.mask + c, seen);
      if (row.missing != nullptr) seen &= ~NotZeroOf(row.missing + c, seen);
      *words++ = seen;
      any |= seen;
    }
  }
  return any != 0;
}

void TransposeRows(const char* const* rows, std::int64_t dim, Bf16Bits* out, std::int64_t ld_out,
                   Bf16Bits* copy) {
  constexpr std::int64_t kRows = 32;
  const std::int64_t width = core::round_up(dim, kRows);
  for (std::int64_t begin = 0; begin < width; begin += 8, out += 8 * ld_out) {
    for (int n = 0; n < kRows; n += 8) {
      uint16x8_t block[8];
      for (int r = 0; r < 8; ++r) {
        block[r] = LoadPart(rows[n + r], begin, dim);
        vst1q_u16(copy + (n + r) * width + begin, block[r]);
      }
      Transpose(block);
      for (int c = 0; c < 8; ++c) vst1q_u16(out + c * ld_out + n, block[c]);
    }
  }
}

void TransposeSums(const float* from, std::int64_t ld_from, float* to, std::int64_t ld_to) {
  for (std::int64_t c = 0; c < 16; c += 4) {
    for (std::int64_t j = 0; j < 32; j += 4) {
      float32x4_t x[4];
      for (int n = 0; n < 4; ++n) x[n] = vld1q_f32(from + (c + n) * ld_from + j);
      const float32x4_t even_low = vtrn1q_f32(x[0], x[1]);  // columns 0 and 2
      const float32x4_t odd_low = vtrn2q_f32(x[0], x[1]);   // 1 and 3
      const float32x4_t even_high = vtrn1q_f32(x[2], x[3]);
      const float32x4_t odd_high = vtrn2q_f32(x[2], x[3]);
      float* out = to + j * ld_to + c;
      vst1q_f32(out, JoinHalves<0>(even_low, even_high));
      vst1q_f32(out + ld_to, JoinHalves<0>(odd_low, odd_high));
      vst1q_f32(out + 2 * ld_to, JoinHalves<1>(even_low, even_high));
      vst1q_f32(out + 3 * ld_to, JoinHalves<1>(odd_low, odd_high));
    }
  }
}

void Nothing() {}

bool has_bf16() {
#if defined(__linux__)
  constexpr unsigned long kBf16 = 1UL << 14;  // HWCAP2_BF16
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#elif defined(__APPLE__)
  int found = 0;
  std::size_t size = sizeof(found);
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &found, &size, nullptr, 0) == 0 && found != 0;
#else
  return false;
#endif
}

}  // namespace

const Bf16Engine* bf16_mmla_engine() {
  static const Bf16Engine engine{
      "bf16_mmla",   Nothing,  Nothing,       Multiply, PackKeys, PackValues, FindVisible, Softmax,
      TransposeRows, Gradient, TransposeSums, nullptr,  nullptr,  false,      false,       false};
  static const bool usable = has_bf16();
  return usable ? &engine : nullptr;
}

bool bf16_mmla_is_fast() {
#if defined(__linux__)
  return bf16_mmla_engine() != nullptr;
#else
  return false;
#endif
}

}  // namespace attn::cpu
HWY_POP_ATTRIBUTES

#else

namespace attn::cpu {
const Bf16Engine* bf16_mmla_engine() {
  return nullptr;
}
bool bf16_mmla_is_fast() {
  return false;
}
}  // namespace attn::cpu

#endif
