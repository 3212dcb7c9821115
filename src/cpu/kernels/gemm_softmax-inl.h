// Scores and softmax of a strip in one pass, in f32 with 32 registers: the sums of a block of rows
// and 64 keys stay in registers until they are P. Next to a product and a softmax of the strip,
// this saves a store and two loads of each score, and the softmax's chains of dependent
// instructions overlap with the multiply-adds of the next block (docs/kernels/cpu_f32.md).
#if defined(ATTN_CPU_GEMM_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_GEMM_SOFTMAX_INL_H_
#undef ATTN_CPU_GEMM_SOFTMAX_INL_H_
#else
#define ATTN_CPU_GEMM_SOFTMAX_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <limits>

#include "cpu/kernels/gemm-inl.h"
#include "cpu/kernels/math-inl.h"
#include "cpu/kernels/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// MultiplyAndSoftmax() takes spans of exactly kFusedCols columns. Only instruction sets where a
// register block is 64 columns have it.
inline constexpr std::int64_t kFusedCols =
    kGemmVectors * static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<float>()));
inline constexpr bool kHasFusedSoftmax = kFusedCols == 64;

// What MultiplyAndSoftmax() does to scores before their maximum.
enum class FusedScores { plain, masked, biased };

// Q of the strip and K^T of the tile.
struct FusedOperands {
  const float* q;  // [rows x depth]
  std::int64_t ldq;
  const float* k_t;  // [depth x kFusedCols]
  std::int64_t ldk;
  std::int64_t depth;
  // Visible pairs, one bit each, of row 0; words from row to row. Null: all are visible.
  const std::uint32_t* visible = nullptr;
  std::int64_t visible_row = 0;
  // With FusedScores::biased: the scores are scale * product + bias. `bias` in f32: of row 0, from
  // the first column on; bytes from row to row, and to those of the next tile, which are
  // prefetched.
  float scale = 1.0F;
  const char* bias = nullptr;
  std::int64_t bias_row = 0;
  std::int64_t bias_ahead = 0;
};

// sum = Q K^T of rows [row0, row0 + kRows); with a bias the scores.
template <int kRows, FusedScores kScores, class V>
HWY_INLINE void MultiplyFused(const FusedOperands& op, std::int64_t row0,
                              V (&sum)[kRows][kGemmVectors]) {
  const hn::ScalableTag<float> d;
  constexpr int kVectors = kGemmVectors;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const float* HWY_RESTRICT a = op.q + row0 * op.ldq;
  const float* HWY_RESTRICT b = op.k_t;
  const auto bias = [&](std::int64_t r) { return op.bias + (row0 + r) * op.bias_row; };
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  // Lines of the next tile's bias, one in each step of depth.
  constexpr int kLines = kScores == FusedScores::biased ? kRows * kVectors : 0;
  for (std::int64_t k = 0; k < op.depth; ++k, b += op.ldk) {
    if (kLines > 0 && k < kLines) {
      __builtin_prefetch(bias(k / kVectors) + op.bias_ahead + k % kVectors * 64);
    }
    V row_b[kVectors];
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) row_b[v] = hn::Load(d, b + v * kLanes);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const V value = hn::Set(d, a[r * op.ldq + k]);
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, row_b[v], sum[r][v]);
    }
  }
  if constexpr (kScores == FusedScores::biased) {
    const V scale = hn::Set(d, op.scale);
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const auto* row = reinterpret_cast<const float*>(bias(r));
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(sum[r][v], scale, hn::LoadU(d, row + v * kLanes));
      }
    }
  }
}

// Rows [row0, row0 + kRows). GCC keeps the sums in registers only if all loops over them are
// unrolled early. Results have the bits of Gemm() and Softmax().
template <int kRows, FusedScores kScores>
HWY_INLINE void MultiplyAndSoftmaxRows(const SoftmaxStrip<float>& x, const FusedOperands& op,
                                       std::int64_t row0) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kVectors = kGemmVectors;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  constexpr int kReduced = 2 * kRowsAtOnce;
  static_assert(kRows <= kReduced);
  constexpr bool kHidden = kScores == FusedScores::masked;
  V sum[kRows][kVectors];
  MultiplyFused<kRows, kScores>(op, row0, sum);
  const auto visible = [&](int r, int v) {
    const std::uint32_t* words = op.visible + (row0 + r) * op.visible_row;
    return hn::LoadMaskBits(d, reinterpret_cast<const std::uint8_t*>(words) + v * kLanes / 8);
  };
  const V least = hn::Set(d, -std::numeric_limits<float>::infinity());
  V lanes[kReduced];
  alignas(64) float reduced[kReduced];
  HWY_UNROLL(8)
  for (int r = 0; r < kReduced; ++r) {
    const int row = r < kRows ? r : 0;
    const V* s = sum[row];
    lanes[r] = kHidden ? hn::IfThenElse(visible(row, 0), s[0], least) : s[0];
    HWY_UNROLL(8)
    for (int v = 1; v < kVectors; ++v) {
      lanes[r] = hn::Max(lanes[r], kHidden ? hn::IfThenElse(visible(row, v), s[v], least) : s[v]);
    }
  }
  ReduceRows<Larger>(d, lanes, reduced);
  if constexpr (kRows > kRowsAtOnce) {
    ReduceRows<Larger>(d, lanes + kRowsAtOnce, reduced + kRowsAtOnce);
  }
  float shift[kRows];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) shift[r] = UpdateMax(x, row0 + r, x.factor * reduced[r]);
  const V scale = hn::Set(d, x.factor);
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const V subtract = hn::Set(d, shift[r]);
    float* p = x.s + (row0 + r) * x.cols;
    lanes[r] = hn::Zero(d);
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      V value = ExpKeepNan(d, hn::MulSub(sum[r][v], scale, subtract));
      if constexpr (kHidden) value = hn::IfThenElseZero(visible(r, v), value);
      hn::Store(value, d, p + v * kLanes);
      lanes[r] = hn::Add(lanes[r], value);
    }
  }
  ReduceRows<Sum>(d, lanes, reduced);
  if constexpr (kRows > kRowsAtOnce) {
    ReduceRows<Sum>(d, lanes + kRowsAtOnce, reduced + kRowsAtOnce);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) x.row_sum[row0 + r] += reduced[r];
}

// P of rows [0, count) of a strip, and their maxima and sums. x.s: P [count x kFusedCols].
template <FusedScores kScores>
HWY_NOINLINE void MultiplyAndSoftmax(const SoftmaxStrip<float>& x, const FusedOperands& op,
                                     std::int64_t count) {
  std::int64_t row = 0;
  for (; row + kGemmRows <= count; row += kGemmRows) {
    MultiplyAndSoftmaxRows<kGemmRows, kScores>(x, op, row);
  }
  for (; row < count; ++row) MultiplyAndSoftmaxRows<1, kScores>(x, op, row);
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_GEMM_SOFTMAX_INL_H_
