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
inline constexpr bool kManyRegisters = true;
inline constexpr int kSmallRows = 8;
#else
inline constexpr bool kManyRegisters = false;
inline constexpr int kSmallRows = 6;
#endif
inline constexpr int kSmallVectors = 2;
// With 16 registers and a B that stays in L1: 2 rows x 4 vectors. 8 sums are just enough to hide
// the latency of a multiplication, 6 loads serve 8 of them, and lengths are usually multiples of 2.
// On Zen 3 a product of 32 x 32 x 32 takes 2130 cycles, with 6 x 2 2380; the bound is 2048. But
// each row reads B 3 times as often: with 64 rows of B that lie 512 bytes apart, which evict each
// other from L1, 2 x 4 takes 30 % longer.
inline constexpr int kNearSums = 8;
inline constexpr int kNearVectors = 4;
inline constexpr std::int64_t kNearBytes = 16 << 10;
// Steps of depth for each SmallAhead::step().
constexpr std::int64_t depth_of_step(int sums) {
  return sums <= kNearSums ? 16 : 8;
}

// C[rows x cols] (+)= A B. A is [rows x depth], or its transpose [depth x rows] if kTransposed. B
// and C are row-major at any address; cols is a multiple of the vector width. `factors`: if not
// null, row r of the product is multiplied by factors[r]. `largest`: if not null, [cols], raised to
// the largest value of each column of the product.
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
  float* largest = nullptr;
};

// GCC would load a vector that several multiplications use again for each of them, as their memory
// operand, and would keep the address of every row in a register or on the stack. With 16 registers
// both cost 10 to 20 % of a product.
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL && HWY_TARGET > HWY_AVX3 && \
    HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
template <class V>
HWY_INLINE V KeepInRegister(V v) {
  asm("" : "+x"(v.raw));
  return v;
}
HWY_INLINE void KeepAddresses(const float*& a, const float*& b) {
  asm("" : "+r"(a), "+r"(b));
}
#else
template <class V>
HWY_INLINE V KeepInRegister(V v) {
  return v;
}
HWY_INLINE void KeepAddresses(const float*&, const float*&) {}
#endif

// Adds the products of a column of A and a row of B. `a_row`: elements between rows of A.
template <int kRows, int kVectors, class D, class V = hn::Vec<D>>
HWY_INLINE void AddStep(D d, const float* a, std::int64_t a_row, const float* b,
                        V (&sum)[kRows][kVectors]) {
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  V row_b[kVectors];
  HWY_UNROLL(8)
  for (int v = 0; v < kVectors; ++v) row_b[v] = KeepInRegister(hn::LoadU(d, b + v * kLanes));
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    const V value = hn::Set(d, a[r * a_row]);
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, row_b[v], sum[r][v]);
  }
}

template <bool kTransposed, int kRows, int kVectors>
HWY_INLINE void SmallBlock(const SmallProduct& op, std::int64_t row, std::int64_t col,
                           SmallAhead& ahead) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  const std::int64_t a_row = kTransposed ? 1 : op.lda;
  const std::int64_t a_depth = kTransposed ? op.lda : 1;
  const float* a = op.a + row * a_row;
  const float* b = op.b + col;
  V sum[kRows][kVectors];
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  constexpr std::int64_t kDepth = depth_of_step(kRows * kVectors);
  for (std::int64_t begin = 0; begin < op.depth; begin += kDepth) {
    ahead.step();
    std::int64_t left = std::min(kDepth, op.depth - begin);
    // Unrolled completely, a product takes 8 % longer on Zen 3.
    HWY_UNROLL(1)
    for (; left >= 2; left -= 2) {
      HWY_UNROLL(2)
      for (int n = 0; n < 2; ++n) {
        AddStep<kRows, kVectors>(d, a, a_row, b, sum);
        a += a_depth;
        b += op.ldb;
        KeepAddresses(a, b);
      }
    }
    if (left > 0) AddStep<kRows, kVectors>(d, a, a_row, b, sum);
  }
  float* c = op.c + row * op.ldc + col;
  if (op.largest != nullptr) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) {
      V largest = hn::Load(d, op.largest + col + v * kLanes);
      HWY_UNROLL(8)
      for (int r = 0; r < kRows; ++r) largest = hn::Max(largest, sum[r][v]);
      hn::Store(largest, d, op.largest + col + v * kLanes);
    }
  }
  if (op.factors != nullptr) {
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(d, op.factors[row + r]);
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Mul(sum[r][v], factor);
    }
  }
  if (op.accumulate) {
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::Add(sum[r][v], hn::LoadU(d, c + r * op.ldc + v * kLanes));
      }
    }
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kRows; ++r) {
    HWY_UNROLL(8)
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

// All rows of kVectors vectors of columns.
template <bool kTransposed, int kVectors>
HWY_INLINE void NearColumns(const SmallProduct& op, std::int64_t col, SmallAhead& ahead) {
  constexpr int kRows = kNearSums / kVectors;
  std::int64_t row = 0;
  for (; row + kRows <= op.rows; row += kRows) {
    SmallBlock<kTransposed, kRows, kVectors>(op, row, col, ahead);
  }
  for (; row < op.rows; ++row) SmallBlock<kTransposed, 1, kVectors>(op, row, col, ahead);
}

// The product with a B that stays in L1.
template <bool kTransposed>
HWY_NOINLINE void MultiplyNear(const SmallProduct& op, SmallAhead& ahead) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  std::int64_t col = 0;
  const auto fits = [&](int vectors) { return col + vectors * kLanes <= op.cols; };
  for (; fits(kNearVectors); col += kNearVectors * kLanes) {
    NearColumns<kTransposed, kNearVectors>(op, col, ahead);
  }
  for (; fits(2); col += 2 * kLanes) NearColumns<kTransposed, 2>(op, col, ahead);
  if (fits(1)) NearColumns<kTransposed, 1>(op, col, ahead);
}

template <bool kTransposed>
HWY_NOINLINE void MultiplySmall(const SmallProduct& op, SmallAhead& ahead) {
  if constexpr (!kManyRegisters) {
    const std::int64_t bytes = op.ldb * op.depth * std::int64_t{sizeof(float)};
    if (op.ldb == op.cols || bytes <= kNearBytes) return MultiplyNear<kTransposed>(op, ahead);
  }
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

// Calls of SmallAhead::step() of a product. MultiplyNear makes the fewest.
inline std::int64_t StepsOfProduct(std::int64_t rows, std::int64_t cols, std::int64_t depth) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  constexpr int kVectors = kManyRegisters ? kSmallVectors : kNearVectors;
  constexpr int kRows = kManyRegisters ? kSmallRows : kNearSums / kNearVectors;
  const std::int64_t blocks = divide_up(rows, kRows) * divide_up(cols, kVectors * kLanes);
  return blocks * divide_up(depth, depth_of_step(kRows * kVectors));
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
