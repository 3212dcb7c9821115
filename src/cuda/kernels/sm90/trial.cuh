// Launch constants and parameters of sm90/trial.cu, for the host and the kernels.
#pragma once

namespace attn::device::trial {

inline constexpr int kThreads = 128;
inline constexpr int kCluster = 2;
inline constexpr int kRows = 64;     // rows per tile
inline constexpr int kColumns = 64;  // columns per tile, 16-bit elements
inline constexpr int kTileBytes = kRows * kColumns * 2;

// A tensor map as the driver encodes it.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// attn_trial_copy copies the tensor [batch, rows, heads, kColumns] of `map` to `to`, contiguously.
// `rows` is a multiple of kCluster * kRows.
struct CopyParameters {
  TensorMap map;
  unsigned* to = nullptr;
  int rows = 0;
  int heads = 0;
};

// attn_trial_primary and attn_trial_secondary.
struct OverlapParameters {
  unsigned* flag = nullptr;  // 0 at first
  unsigned* seen = nullptr;
  long long timeout_ns = 0;
};

}  // namespace attn::device::trial
