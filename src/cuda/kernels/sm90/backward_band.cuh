// The band of diagonals that a sequence's queries see.
#pragma once
#include "shared/sequence.cuh"

namespace sm90 {

using shared::Arguments;
using shared::Sequence;

// Key j is visible to query i if low <= i - j <= high; see Arguments. Lengths are below 2^29
// (backward_plan.cpp), so no sum exceeds 32 bits.
struct Band {
  static constexpr long long kLimit = 1ll << 30;
  int low;
  int high;

  __device__ __forceinline__ Band(const Arguments& a, const Sequence& seq)
      : low(Clamp(-seq.diag - a.window_right)), high(Clamp(a.window_left - seq.diag)) {}

 private:
  __device__ __forceinline__ static int Clamp(long long value) {
    return static_cast<int>(min(max(value, -kLimit), kLimit));
  }
};

}  // namespace sm90
