// Finds the entry of a bias or mask that a sequence uses: consecutive sequences can share an entry
// of its batch dimension (docs/semantics.md, "Options' shapes"). Config: shared_entries, 1 if
// entries of the bias or of the mask are shared.
#pragma once
#include "config.cuh"
#include "shared/arguments.cuh"

namespace shared {

// Returns seq_idx / n exactly, for factor = 2^63 / n rounded up.
__device__ __forceinline__ int EntryOf(int seq_idx, unsigned long long factor) {
  const auto sequence = static_cast<unsigned long long>(static_cast<unsigned>(seq_idx));
  const unsigned long long low = sequence * static_cast<unsigned>(factor) >> 32;
  return static_cast<int>((sequence * (factor >> 32) + low) >> 31);
}

__device__ __forceinline__ int BiasEntry(const attn::device::Arguments& a, int seq_idx) {
  if constexpr (config::shared_entries == 0) return seq_idx;
  return EntryOf(seq_idx, a.bias_factor);
}
__device__ __forceinline__ int MaskEntry(const attn::device::Arguments& a, int seq_idx) {
  if constexpr (config::shared_entries == 0) return seq_idx;
  return EntryOf(seq_idx, a.mask_factor);
}

}  // namespace shared
