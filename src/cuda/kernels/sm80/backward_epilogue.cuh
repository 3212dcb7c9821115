// sm80/backward.cu: writes dK and dV of the block's keys to global memory, through shared memory
// that overlays the tiles.
#pragma once
#include "sm80/backward_tile.cuh"
#include "sm80/tile_output.cuh"

namespace sm80::backward {

// With split_dk_dv each half of the threads writes the gradient that it accumulated, with the same
// code. The code then exists once, which makes short rows 3 % faster. Not used with a bias or a
// mask, where it makes the main loop spill.
constexpr bool kWriteByHalves = kSplitDkDv && !kHasBias && !kHasMask;

// Stores the warp's part of dK or dV, times `factor`, to rows in shared memory, if `enabled`.
template <int kPart, int kColumns, class Staged>
__device__ __forceinline__ void StageKeyGradient(const float (&sums)[kBlocksM][kColumns][4],
                                                 float factor, bool enabled, const Staged& staged) {
  static_assert(kColumns == kPart / 8);
  if (!enabled) return;
  const auto part = staged.template PartAt<kPart>(DkDvWarp() / kDkDvParts * kDkDvKeys,
                                                  DkDvWarp() % kDkDvParts * kPart);
#pragma unroll
  for (int m = 0; m < kBlocksM; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int d = 0; d < kPart / 8; ++d) {
        if constexpr (kF32 && !kPDsInSmem) {
          // The lane's columns of each 32 are those of MultiplyF32(): 8 adjacent ones. Store() adds
          // twice the lane's index of 4.
          const int lane = static_cast<int>(threadIdx.x) % 4;
          const int first = d / 4 * 4, pair = d % 4;
          const float(&x)[4] = sums[m][first + pair % 2 * 2];
          const float(&y)[4] = sums[m][first + pair % 2 * 2 + 1];
          part.Store(16 * m + 8 * r, 8 * first + 6 * lane + 2 * pair, x[2 * r + pair / 2] * factor,
                     y[2 * r + pair / 2] * factor);
        } else {
          part.Store(16 * m + 8 * r, 8 * d, sums[m][d][2 * r] * factor,
                     sums[m][d][2 * r + 1] * factor);
        }
      }
}

// The rows of dk and dv that the block writes, and the factor of dV.
struct KeyGradientRows {
  Sequence seq;
  int j0, head_kv, num_rows;
  float dv_factor;
  bool packed;  // PackedRows can write both dk and dv

  __device__ __forceinline__ KeyGradientRows(const Arguments& a, const Sequence& seq, int j0,
                                             int head_kv)
      : seq(seq), j0(j0), head_kv(head_kv) {
    dv_factor = kHasDropout ? a.keep_scale * kKeptScale<kDtype> : 1.0f;
    num_rows = min(kTileKv, seq.rows_kv - j0);
    packed = !kF32 && (a.dk.base == nullptr || WritesPacked<kDtype>(a, a.dk, a.accumulate != 0)) &&
             (a.dv.base == nullptr || WritesPacked<kDtype>(a, a.dv, a.accumulate != 0));
  }
  __device__ __forceinline__ char* AddressIn(const StridedTensor& tensor) const {
    return RowAddress(tensor, seq.idx, seq.first_kv + j0, head_kv);
  }
};

// With kWriteByHalves: `sums` is dV in the first half of the threads and dK in the second half.
__device__ __forceinline__ void WriteByHalves(const Arguments& a, const KeyGradientRows& rows,
                                              const Accumulator<kPartQk>& sums, unsigned base) {
  constexpr int kHalf = kThreads / 2;
  const int thread = ptx::RereadThreadIdx();
  const bool has_dv = thread < kHalf;
  const StridedTensor& tensor = has_dv ? a.dv : a.dk;
  const bool enabled = tensor.base != nullptr;
  const float factor = has_dv ? rows.dv_factor : a.scale;
  const int dim = has_dv ? a.dim_vo : a.dim_qk;
  char* const to = rows.AddressIn(tensor);
  if (rows.packed) {
    const PackedRows<kDimQk, kDtype, kTileKv, kHalf> packed{base +
                                                            (has_dv ? kShared.v : kShared.k)};
    StageKeyGradient<kPartQk>(sums, factor, enabled, packed);
    __syncthreads();
    if (enabled) packed.Write(tensor.stride_row, to, rows.num_rows, dim, thread % kHalf);
  } else {
    const StagedRows<kDimQk, kDtype> staged{base + (has_dv ? kTileKv * kDimQk * 4 : 0)};
    StageKeyGradient<kPartQk>(sums, factor, enabled, staged);
    __syncthreads();
    if (enabled) {
      staged.Write(a, tensor, to, rows.num_rows, dim, a.accumulate != 0, thread % kHalf, kHalf);
    }
  }
}

// All threads write dK and dV. With split_dk_dv a warp has only one of the two, and `dk` holds
// either.
__device__ __forceinline__ void WriteByAll(const Arguments& a, const KeyGradientRows& rows,
                                           const Accumulator<kPartQk>& dk,
                                           const Accumulator<kPartVo>& dv, unsigned base) {
  const bool has_dk = a.dk.base != nullptr && (!kSplitDkDv || !AccumulatesDv());
  const bool has_dv = a.dv.base != nullptr && (!kSplitDkDv || AccumulatesDv());
  const auto& dv_sums = [&]() -> const auto& {
    if constexpr (kSplitDkDv) {
      return dk;
    } else {
      return dv;
    }
  }();
  char* const dk_rows = rows.AddressIn(a.dk);
  char* const dv_rows = rows.AddressIn(a.dv);
  const int thread = static_cast<int>(threadIdx.x);
  if (rows.packed) {
    const PackedRows<kDimQk, kDtype, kTileKv, kThreads> packed_dk{base + kShared.k};
    const PackedRows<kDimVo, kDtype, kTileKv, kThreads> packed_dv{base + kShared.v};
    StageKeyGradient<kPartQk>(dk, a.scale, has_dk, packed_dk);
    StageKeyGradient<kPartVo>(dv_sums, rows.dv_factor, has_dv, packed_dv);
    __syncthreads();
    if (a.dk.base != nullptr) {
      packed_dk.Write(a.dk.stride_row, dk_rows, rows.num_rows, a.dim_qk, thread);
    }
    if (a.dv.base != nullptr) {
      packed_dv.Write(a.dv.stride_row, dv_rows, rows.num_rows, a.dim_vo, thread);
    }
    return;
  }
  const StagedRows<kDimQk, kDtype> staged_dk{base};
  const StagedRows<kDimVo, kDtype> staged_dv{base};
  StageKeyGradient<kPartQk>(dk, a.scale, has_dk, staged_dk);
  __syncthreads();
  if (a.dk.base != nullptr) {
    staged_dk.Write(a, a.dk, dk_rows, rows.num_rows, a.dim_qk, a.accumulate != 0, thread, kThreads);
  }
  __syncthreads();
  StageKeyGradient<kPartVo>(dv_sums, rows.dv_factor, has_dv, staged_dv);
  __syncthreads();
  if (a.dv.base != nullptr) {
    staged_dv.Write(a, a.dv, dv_rows, rows.num_rows, a.dim_vo, a.accumulate != 0, thread, kThreads);
  }
}

// Writes dK and dV of the keys from j0.
__device__ __forceinline__ void WriteKeyGradients(const Arguments& a, const Sequence& seq, int j0,
                                                  int head_kv, const Accumulator<kPartQk>& dk,
                                                  const Accumulator<kPartVo>& dv, unsigned base) {
  const KeyGradientRows rows(a, seq, j0, head_kv);
  if constexpr (kWriteByHalves) {
    WriteByHalves(a, rows, dk, base);
  } else {
    WriteByAll(a, rows, dk, dv, base);
  }
}

}  // namespace sm80::backward
