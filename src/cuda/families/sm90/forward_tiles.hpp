// Tiles of sm90/forward.cu: the measured choice of them, and what of a problem it depends on.
#pragma once

#include <attn/problem.hpp>
#include <string>

#include "cuda/host/device.hpp"

namespace attn::cuda::sm90 {

// As in kernels/sm90/forward_config.cuh.
enum Schedule { kStatic, kPaired, kDynamic };
enum Lengths { kNoLengths, kPadded, kPacked };

struct Tiles {
  int dim = 0;  // of q, k, v and o, rounded up to 64, 128 or 256; wide: of q and k
  int tile_q = 0;
  int tile_kv = 0;
  int stages = 0;      // of K and of V; f32: slots of one ring of both
  int q_stages = 0;    // tiles of Q
  int blocks = 1;      // of an SM
  int o_columns = 64;  // of O in shared memory at once
  bool producer_warp = false;
  int raw_stages = 0;  // f8: tiles of V before the transposition; mask: of a warpgroup, as bytes
  int schedule = kDynamic;

  bool operator==(const Tiles&) const = default;
};

bool has_left_bound(const Problem& problem);
bool has_right_bound(const Problem& problem);
Lengths lengths_of(const Problem& problem);
// Full or causal and nothing else: some Configs were measured for these alone.
bool is_plain(const Problem& problem);
// The kernel turns the mask into bits.
bool has_mask_bits(const Problem& problem);
// f8: tiles of keys whose P V the tensor cores sum up; 0: all. At dim 256 no registers are left for
// the sums in f32.
int accumulate_tiles(const Problem& problem);
// f32: operands are split into three bf16 parts.
bool is_split(const Problem& problem);
// Dims above 256.
bool is_wide(const Problem& problem);
// Wide: the parts that O's columns are computed in; else 0.
int value_parts(const Problem& problem);
// 64, 128 or 256; wide: that of q and k, a multiple of 64.
int rounded_dim(const Problem& problem);
// Columns of O that a block computes: rounded_dim(); wide: those of a part, a multiple of 64.
int value_columns(const Problem& problem);
// Wide: columns of O that are staged at once, in Q's memory; stages of K that fit.
int wide_o_columns(const Problem& problem);
int most_wide_stages(const Problem& problem, const Tiles& tiles, std::int64_t shared_bytes);

// Dynamic shared memory of a block.
int shared_bytes_of(const Problem& problem, const Tiles& tiles);
// What was measured on the device (attn::tune_*), if it fits, else the heuristics' choice.
Tiles choose_tiles(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda::sm90
