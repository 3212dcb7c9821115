// C (+)= A * B for tiles that stay in cache: the matrix product of every pass.
//
// C[rows x cols] and B[depth x cols] are row-major, 64-byte aligned with aligned leading
// dimensions; cols is a multiple of the vector width. Elements of A are broadcast one at a time, so
// A may have any pair of strides: (ld, 1) reads A, (1, ld) reads its transpose. Each element of
// A B is one chain of fused multiply-adds over depth in ascending order, in whichever block it is.
// So results do not depend on how rows are grouped. The chain starts at zero, and C is added to its
// result: a chain that continued C over all tiles would have up to four times the rounding error.
//
// Register block: 6 rows x 4 vectors (24 accumulators) with 32 registers, 6 x 2 with 16. With 6 x
// 4, a step of depth has 10 loads for 24 multiply-adds, so two load ports keep up with two FMA
// ports.
#if defined(ATTN_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTN_CPU_GEMM_INL_H_
#undef ATTN_CPU_GEMM_INL_H_
#else
#define ATTN_CPU_GEMM_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kGemmVectors = 4;
// Whether bf16 problems may have an engine: engines.cpp chooses none for older instruction sets, so
// that their tasks are compiled for these alone.
inline constexpr bool kMayHaveBf16Engine = true;
#else
inline constexpr int kGemmVectors = 2;
inline constexpr bool kMayHaveBf16Engine = false;
#endif
inline constexpr int kGemmRows = 6;

template <class T>
struct GemmOperands {
  const T* a;
  std::int64_t a_row;
  std::int64_t a_depth;
  const T* b;
  std::int64_t ldb;
  T* c;
  std::int64_t ldc;
  std::int64_t rows;
  std::int64_t cols;
  std::int64_t depth;
  bool accumulate;
};

template <int kRows, int kVectors, class T>
HWY_INLINE void GemmBlock(const GemmOperands<T>& op, const T* HWY_RESTRICT a,
                          const T* HWY_RESTRICT b, T* HWY_RESTRICT c) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = hn::MaxLanes(d);
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::int64_t k = 0; k < op.depth; ++k) {
    V row_b[kVectors];
    for (int v = 0; v < kVectors; ++v) row_b[v] = hn::Load(d, b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const V value = hn::Set(d, a[r * op.a_row]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(value, row_b[v], sum[r][v]);
    }
    a += op.a_depth;
    b += op.ldb;
  }
  if (op.accumulate) {
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::Add(sum[r][v], hn::Load(d, c + r * op.ldc + v * kLanes));
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, c + r * op.ldc + v * kLanes);
  }
}

template <int kVectors, class T>
HWY_INLINE void GemmColumns(const GemmOperands<T>& op, std::int64_t col) {
  std::int64_t row = 0;
  const T* b = op.b + col;
  for (; row + kGemmRows <= op.rows; row += kGemmRows) {
    GemmBlock<kGemmRows, kVectors>(op, op.a + row * op.a_row, b, op.c + row * op.ldc + col);
  }
  const T* a = op.a + row * op.a_row;
  T* c = op.c + row * op.ldc + col;
  switch (op.rows - row) {
    case 5: GemmBlock<5, kVectors>(op, a, b, c); break;
    case 4: GemmBlock<4, kVectors>(op, a, b, c); break;
    case 3: GemmBlock<3, kVectors>(op, a, b, c); break;
    case 2: GemmBlock<2, kVectors>(op, a, b, c); break;
    case 1: GemmBlock<1, kVectors>(op, a, b, c); break;
    default: break;
  }
}

template <class T>
HWY_NOINLINE void Gemm(const GemmOperands<T>& op) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  std::int64_t col = 0;
  for (; col + kGemmVectors * kLanes <= op.cols; col += kGemmVectors * kLanes) {
    GemmColumns<kGemmVectors>(op, col);
  }
  switch ((op.cols - col) / kLanes) {
    case 3: GemmColumns<std::min(3, kGemmVectors)>(op, col); break;
    case 2: GemmColumns<std::min(2, kGemmVectors)>(op, col); break;
    case 1: GemmColumns<1>(op, col); break;
    default: break;
  }
}

}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // ATTN_CPU_GEMM_INL_H_
