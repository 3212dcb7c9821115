// Tiles of sm90/forward.cu: the measured choice, and the properties of a problem that it depends
// on. "Wide" means dims above 256.
#pragma once

#include <attn/problem.hpp>
#include <string>

#include "cuda/host/device.hpp"

namespace attn::cuda::sm90 {

// As in kernels/sm90/forward_config.cuh.
enum Schedule { kStatic, kPaired, kDynamic };
enum Lengths { kNoLengths, kPadded, kPacked };

struct Tiles {
  int dim = 0;  // of q, k, v and o, rounded up to 64, 128 or 256; wide: only of q and k
  int tile_q = 0;
  int heads = 1;  // query heads of one key head that share a tile of queries
  int tile_kv = 0;
  int stages = 0;      // of K and of V; f32: slots of one ring for both
  int q_stages = 0;    // of Q
  int blocks = 1;      // per SM
  int o_columns = 64;  // columns of O that are staged in shared memory at once
  bool producer_warp = false;
  int raw_stages = 0;  // f8: stages of V before its transposition; mask: stages of mask bytes
  int schedule = kDynamic;

  bool operator==(const Tiles&) const = default;
};

bool has_left_bound(const Problem& problem);
bool has_right_bound(const Problem& problem);
Lengths lengths_of(const Problem& problem);
// Whether the problem has no option except causal. Some Configs were only measured for these.
bool is_plain(const Problem& problem);
// Whether there are many heads with so few queries and keys that a tile has one warpgroup.
bool has_few_keys(const Problem& problem);
// Whether the kernel packs the mask into bits.
bool has_mask_bits(const Problem& problem);
// f8: number of tiles of keys after which P V moves from the tensor cores' accumulators into f32
// sums; 0: never. Always 0 at dim 256, where registers for the sums are missing.
int accumulate_tiles(const Problem& problem);
// Whether operands are split into bf16 parts (f32), and into how many; else 0. Two parts have more
// bits than tf32, and need half the products of three.
bool is_split(const Problem& problem);
int bf16_parts(const Problem& problem);
// Whether a dim is above 256.
bool is_wide(const Problem& problem);
// Wide: the number of parts into which O's columns are split; else 0.
int value_parts(const Problem& problem);
// 64, 128 or 256; wide: dim_qk rounded up to a multiple of 64.
int rounded_dim(const Problem& problem);
// Columns of O that a block computes: rounded_dim(); wide: columns per part, a multiple of 64.
int value_columns(const Problem& problem);
// Wide: the columns of O that are staged at once in Q's shared memory, and the most stages of K
// that fit.
int wide_o_columns(const Problem& problem);
int most_wide_stages(const Problem& problem, const Tiles& tiles, std::int64_t shared_bytes);

// Dynamic shared memory of a block.
int shared_bytes_of(const Problem& problem, const Tiles& tiles);
// The tuned tiles of the device (attn::tune_*) if they fit, else the choice of the heuristics.
Tiles choose_tiles(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda::sm90
