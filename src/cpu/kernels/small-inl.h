// Matrix products, transposition and prefetches for problems of a few rows and keys. Everything of
// one (batch, head) fits in L1, so rows are multiplied and written where they lie in the caller's
// tensors.
//
// Scores are kept transposed, S^T[key][query]: a vector holds one key and several queries. So K
// needs no transposition (its elements are broadcast), a softmax needs no sum or maximum across
// lanes, and P^T, dS^T and their transposes serve as the broadcast operand of the other products.
#if defined(ATTN_CPU_SMALL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_SMALL_INL_H_
#undef ATTN_CPU_SMALL_INL_H_
#else
#define ATTN_CPU_SMALL_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "cpu/kernels/small_pairs.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Whether queries [i, i + lanes) see key j.
template <class D>
HWY_INLINE hn::Mask<D> Sees(D d, const SmallRanges& ranges, std::int64_t i, std::int64_t j) {
  const hn::RebindToSigned<D> di;
  const auto key = hn::Set(di, static_cast<std::int32_t>(j));
  const auto before = hn::Lt(key, hn::Load(di, ranges.begin + i));
  return hn::RebindMask(d, hn::AndNot(before, hn::Lt(key, hn::Load(di, ranges.end + i))));
}

// A block of C: 8 rows x 2 vectors with 32 registers, 6 x 2 with 16.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kSmallRows = 8;
#else
inline constexpr int kSmallRows = 6;
#endif
inline constexpr int kSmallVectors = 2;
inline constexpr std::int64_t kDepthOfStep = 8;  // steps of depth for each SmallAhead::step()

// C[rows x cols] (+)= A B. A is [rows x depth], or its transpose [depth x rows] if kTransposed. B
// and C are row-major at any address; cols is a multiple of the vector width. `factors`: if not
// null, row r of the product is multiplied by factors[r].
struct SmallProduct {
  const float* a;
  std::int64_t lda;
  const float* b;
  std::int64_t ldb;
  float* c;
  std::int64_t ldc;
  std::int64_t rows, cols, depth;
  const float* factors = nullptr;
  bool accumulate = false;
};

template <bool kTransposed, int kRows, int kVectors>
HWY_INLINE void SmallBlock(const SmallProduct& op, std::int64_t row, std::int64_t col,
                           SmallAhead& ahead) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const std::int64_t a_row = kTransposed ? 1 : op.lda;
  const std::int64_t a_depth = kTransposed ? op.lda : 1;
  const float* HWY_RESTRICT a = op.a + row * a_row;
  const float* HWY_RESTRICT b = op.b + col;
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::int64_t begin = 0; begin < op.depth; begin += kDepthOfStep) {
    ahead.step();
    const std::int64_t end = std::min(begin + kDepthOfStep, op.depth);
    for (std::int64_t k = begin; k < end; ++k) {
      V row_b[kVectors];
      for (int v = 0; v < kVectors; ++v) row_b[v] = hn::LoadU(d, b + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const V value = hn::Set(d, a[r * a_row]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, row_b[v], sum[r][v]);
      }
      a += a_depth;
      b += op.ldb;
    }
  }
  float* c = op.c + row * op.ldc + col;
  if (op.factors != nullptr) {
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, op.factors[row + r]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Mul(sum[r][v], factor);
    }
  }
  if (op.accumulate) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::Add(sum[r][v], hn::LoadU(d, c + r * op.ldc + v * kLanes));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * op.ldc + v * kLanes);
  }
}

template <bool kTransposed, int kRows>
HWY_INLINE void SmallRowBlock(const SmallProduct& op, std::int64_t row, SmallAhead& ahead) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  std::int64_t col = 0;
  for (; col + kSmallVectors * kLanes <= op.cols; col += kSmallVectors * kLanes) {
    SmallBlock<kTransposed, kRows, kSmallVectors>(op, row, col, ahead);
  }
  for (; col < op.cols; col += kLanes) SmallBlock<kTransposed, kRows, 1>(op, row, col, ahead);
}

template <bool kTransposed>
HWY_NOINLINE void MultiplySmall(const SmallProduct& op, SmallAhead& ahead) {
  std::int64_t row = 0;
  for (; row + kSmallRows <= op.rows; row += kSmallRows) {
    SmallRowBlock<kTransposed, kSmallRows>(op, row, ahead);
  }
  const std::int64_t left = op.rows - row;
  if (left == 0) return;
  switch (left) {
    case 7: SmallRowBlock<kTransposed, std::min(7, kSmallRows)>(op, row, ahead); break;
    case 6: SmallRowBlock<kTransposed, std::min(6, kSmallRows)>(op, row, ahead); break;
    case 5: SmallRowBlock<kTransposed, 5>(op, row, ahead); break;
    case 4: SmallRowBlock<kTransposed, 4>(op, row, ahead); break;
    case 3: SmallRowBlock<kTransposed, 3>(op, row, ahead); break;
    case 2: SmallRowBlock<kTransposed, 2>(op, row, ahead); break;
    default: SmallRowBlock<kTransposed, 1>(op, row, ahead); break;
  }
}

#if HWY_TARGET != HWY_SCALAR
// Columns [0, 4) of rows `row`, row + 4, row + 8, ..., one in each 128-bit block. Rows past `last`
// repeat it.
template <class D>
HWY_INLINE hn::Vec<D> LoadRowBlocks(D d, const SmallRows& rows, std::int64_t row,
                                    std::int64_t col) {
  if constexpr (hn::MaxLanes(d) <= 4) {
    return hn::LoadU(d, rows.first + std::min(row, rows.count - 1) * rows.stride + col);
  } else {
    const hn::Half<D> half;
    constexpr std::int64_t kHalf = hn::MaxLanes(half);
    return hn::Combine(d, LoadRowBlocks(half, rows, row + kHalf, col),
                       LoadRowBlocks(half, rows, row, col));
  }
}
#endif

// out[c * ld + r] = row r, column c. ld: the number of rows, rounded up to vectors. Lanes past the
// last row repeat it.
HWY_INLINE void TransposeSmall(const SmallRows& rows, float* HWY_RESTRICT out, std::int64_t ld) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t r = 0; r < ld; ++r) {
    for (std::int64_t c = 0; c < rows.dim; ++c) out[c * ld + r] = rows.first[r * rows.stride + c];
  }
#else
  const hn::ScalableTag<float> d;
  const hn::Repartition<double, decltype(d)> wide;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  for (std::int64_t r = 0; r < ld; r += kLanes) {
    for (std::int64_t c = 0; c < rows.dim; c += 4) {
      const auto row0 = LoadRowBlocks(d, rows, r, c);
      const auto row1 = LoadRowBlocks(d, rows, r + 1, c);
      const auto row2 = LoadRowBlocks(d, rows, r + 2, c);
      const auto row3 = LoadRowBlocks(d, rows, r + 3, c);
      const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, row0, row1));
      const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, row2, row3));
      const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, row0, row1));
      const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, row2, row3));
      float* at = out + c * ld + r;
      hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, at);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, at + ld);
      hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, at + 2 * ld);
      hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, at + 3 * ld);
    }
  }
#endif
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_SMALL_INL_H_
