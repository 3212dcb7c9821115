// sm80/decode.cu: dropout. The rows of a tile belong to different heads, so for each 16 keys a lane
// makes one Philox call for each of its two rows and uses a quarter of the bits.
#pragma once
#include "shared/dropout.cuh"
#include "sm80/decode_rows.cuh"

namespace sm80::decode {

// A Philox call covers 16 keys from a multiple of 16, so tiles begin at multiples of 16 too.
__device__ __forceinline__ int FirstKey(const Span& span) {
  return kHasDropout ? span.begin & ~15 : span.begin;
}

class RowDropout {
 public:
  __device__ __forceinline__ RowDropout(const Arguments& a, const Block& block) {
    if constexpr (kHasDropout) {
      const Dropout dropout = DropoutOf(a, block.seq.idx, 0);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Row row = RowOf(a, block, 16 * WarpM() + LaneIdx() / 4 + 8 * r);
        row_[r] = dropout.row + static_cast<unsigned>(row.i);
        head_[r] = dropout.head + static_cast<unsigned>(row.head);
      }
    }
  }

  // Drops elements of the tile's P. WriteRow() later multiplies o by the factor of kept elements.
  __device__ __forceinline__ void Apply(const Arguments& a, int j0, Scores& s) const {
    if constexpr (kHasDropout) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        Dropout dropout = DropoutOf(a, 0, 0);  // reloaded per tile to save registers
        dropout.head = head_[r];
#pragma unroll
        for (int k = 0; k < kTileKv / 16; ++k) {
          DropoutBits bits;
          bits.words[r] = WordOf(dropout, row_[r], j0 + 16 * k);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const unsigned keeps = KeepFactors<false>(dropout, bits, half, r);
#pragma unroll
            for (int e = 0; e < 2; ++e) s[0][2 * k + half][2 * r + e] *= KeepFactor(keeps, e);
          }
        }
      }
    }
  }

 private:
  // Returns the random bytes of the row for this lane's keys in [j, j + 16), in the order of
  // DropoutBits.
  __device__ __forceinline__ static unsigned WordOf(const Dropout& dropout, unsigned row, int j) {
    const unsigned first = dropout.column + static_cast<unsigned>(j + LaneIdx() % 4 * 2);
    if (config::element_access == 0 || dropout.aligned) {
      const uint4 bits = Philox(dropout, row & ~9u, first);
      const unsigned even = (row & 8) != 0 ? bits.z : bits.x;
      const unsigned odd = (row & 8) != 0 ? bits.w : bits.y;
      return (row & 1) != 0 ? odd : even;
    }
    unsigned word = 0;
#pragma unroll 1
    for (int n = 0; n < 4; ++n) {
      const auto column = first + static_cast<unsigned>(n / 2 * 8 + n % 2);
      word |= GenerateElement(dropout.key0, dropout.key1, dropout.offset, dropout.head, row, column)
              << (8 * n);
    }
    return word;
  }

  unsigned row_[2];  // of this lane's rows
  unsigned head_[2];
};

}  // namespace sm80::decode
