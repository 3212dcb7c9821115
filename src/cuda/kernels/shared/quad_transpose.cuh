// Converts accumulators to rows: the four lanes that share a row of an accumulator exchange words,
// so that each lane stores 16 contiguous bytes.
#pragma once

namespace shared {

// Transposes 4 x 4 words among four lanes: words[n] of lane t becomes words[t] of lane n.
__device__ __forceinline__ void Transpose(unsigned (&words)[4]) {
  const auto swap = [&](bool upper, int distance, unsigned& low, unsigned& high) {
    const unsigned received = __shfl_xor_sync(~0u, upper ? low : high, distance);
    (upper ? low : high) = received;
  };
  const bool odd = threadIdx.x % 2 != 0;
  swap(odd, 1, words[0], words[1]);
  swap(odd, 1, words[2], words[3]);
  const bool upper = threadIdx.x % 4 >= 2;
  swap(upper, 2, words[0], words[2]);
  swap(upper, 2, words[1], words[3]);
}

}  // namespace shared
