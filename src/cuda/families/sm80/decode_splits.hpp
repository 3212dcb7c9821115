// How sm80/decode.cu splits the keys of a tile among blocks.
#pragma once

#include <cstdint>

namespace attn::cuda::sm80 {

// What the choice depends on.
struct DecodeWork {
  std::int64_t tiles = 0;      // tiles of rows of all key heads and sequences
  std::int64_t rows = 0;       // of a tile
  std::int64_t keys = 0;       // the most that a tile sees
  std::int64_t key_bytes = 0;  // of K and V of one key
  std::int64_t step = 0;       // keys that a block of 4 warps processes per step
  std::int64_t blocks = 0;     // that share an SM
  std::int64_t sms = 0;
  bool eight_bits = false;  // the cache
  bool clusters = false;    // whether the splits of a tile can form a cluster
  bool wide = false;        // whether a block may have 8 warps, alone on its SM
};

struct DecodeSplits {
  std::int64_t splits = 1;
  bool cluster = false;  // the splits' partial results are merged in the shared memory of a cluster
  bool wide = false;     // 8 warps: an SM reads more with more loads in flight
};

// The largest cluster that every device of compute capability 9.0 runs, green contexts included.
// Fewer than 8 clusters of 16 run at once if each block has its own SM.
inline constexpr std::int64_t kMaxCluster = 8;

// Chooses the splits by a model of the run time.
DecodeSplits choose_splits(const DecodeWork& work);
// Whether splits that the caller determined (`split_keys`) form a cluster.
bool makes_cluster(const DecodeWork& work, std::int64_t splits);

}  // namespace attn::cuda::sm80
