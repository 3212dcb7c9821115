// Rules: the fastest measured tiles, in the order in which heuristics.cpp tries them.
#pragma once

#include <array>

#include "cuda/families/sm80/heuristics.hpp"

namespace attn::cuda::sm80 {

enum class When {
  always,
  no_bias_or_mask,
  bias_or_mask,     // a bias, a mask or both, without ALiBi
  bias_xor_mask,    // either bias or mask, and no other option on scores or P
  spare_registers,  // no bias, mask or softcap; or bias_xor_mask
  dropout_or_softcap,
  ieee,  // f32 without tensor cores
  tf32,
};

// The first rule that applies and fits the device is used. A rule applies if both dims are at most
// `largest_dim` and `when` holds. Measurements: docs/kernels/sm80.md, "Tried".
struct Rule {
  int largest_dim;
  Tiles tiles;
  When when = When::always;
  const char* reason;  // why the tiles are best, or when the previous rules do not fit
};

constexpr Tiles with_keys(Tiles tiles, int tile_kv) {
  tiles.tile_kv = tile_kv;
  return tiles;
}
constexpr Tiles with_stages(Tiles tiles, int stages) {
  tiles.stages = stages;
  return tiles;
}
constexpr Tiles with_blocks(Tiles tiles, int blocks) {
  tiles.blocks = blocks;
  return tiles;
}
constexpr Tiles with_q_in_registers(Tiles tiles) {
  tiles.q_in_registers = true;
  return tiles;
}
constexpr Tiles with_chunk(Tiles tiles, int chunk) {
  tiles.chunk = chunk;
  return tiles;
}

// 32 queries per warp halve the reads of shared memory per product. Two blocks per SM hide each
// other's barriers. Both need enough registers and shared memory.
inline constexpr Tiles k32Rows{.tile_q = 128, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 2};
// 16 queries per warp leave registers for softcap and ALiBi, allow more blocks per SM, and compute
// fewer scores that a causal mask hides.
inline constexpr Tiles k16Rows{.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 2};
// 16 queries per warp in one large block.
inline constexpr Tiles k8Warps{.tile_q = 128, .tile_kv = 64, .warps = 8, .stages = 2, .blocks = 1};
inline constexpr Tiles k2Warps{.tile_q = 32, .tile_kv = 32, .warps = 2, .stages = 2, .blocks = 1};

inline constexpr std::array kForward{
    Rule{.largest_dim = 32,
         .tiles = with_blocks(k32Rows, 3),
         .when = When::bias_xor_mask,
         .reason = "narrow heads leave registers for three blocks; Q is loaded again per tile"},
    Rule{.largest_dim = 64,
         .tiles = with_q_in_registers(k32Rows),
         .when = When::spare_registers,
         .reason = "32 rows per warp: 305 TFLOP/s instead of 260 (plain)"},
    Rule{.largest_dim = 64,
         .tiles = k32Rows,
         .when = When::bias_or_mask,
         .reason = "Q is loaded again per tile: 256 TFLOP/s instead of 235 (bias)"},
    Rule{.largest_dim = 64,
         .tiles = with_blocks(with_q_in_registers(k16Rows), 3),
         .when = When::always,
         .reason = "registers for softcap and ALiBi"},
    Rule{.largest_dim = 64,
         .tiles = with_q_in_registers(with_keys(k32Rows, 32)),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 128,
         .tiles = with_stages(k32Rows, 1),
         .when = When::no_bias_or_mask,
         .reason = "two stages spill"},
    Rule{.largest_dim = 128,
         .tiles = k32Rows,
         .when = When::bias_xor_mask,
         .reason = "a bias or a mask fits next to two stages"},
    Rule{.largest_dim = 128,
         .tiles = with_keys(k32Rows, 32),
         .when = When::bias_or_mask,
         .reason = "bias and mask, or less shared memory"},
    Rule{.largest_dim = 128,
         .tiles = with_q_in_registers(k16Rows),
         .when = When::always,
         .reason = "registers for softcap and ALiBi"},
    Rule{.largest_dim = 128,
         .tiles = with_keys(k32Rows, 32),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 128,
         .tiles = k8Warps,
         .when = When::always,
         .reason = "less shared memory: one block"},
    Rule{.largest_dim = 128,
         .tiles = with_keys(k8Warps, 32),
         .when = When::always,
         .reason = "less shared memory: one block"},
    Rule{.largest_dim = 128,
         .tiles = with_blocks(with_keys(k32Rows, 32), 1),
         .when = When::always,
         .reason = "at dim 96, 8 warps can't divide the loads of 32 rows"},
    Rule{.largest_dim = 256,
         .tiles = with_stages(k16Rows, 1),
         .when = When::no_bias_or_mask,
         .reason = "one stage lets two blocks fit"},
    Rule{.largest_dim = 256,
         .tiles = k8Warps,
         .when = When::no_bias_or_mask,
         .reason = "less shared memory per SM"},
    Rule{.largest_dim = 256,
         .tiles = with_keys(k8Warps, 32),
         .when = When::always,
         .reason = "shared memory for bias and mask"},
    Rule{.largest_dim = 256,
         .tiles = with_blocks(k16Rows, 1),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 256,
         .tiles = with_blocks(with_keys(k16Rows, 32), 1),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 256,
         .tiles = k2Warps,
         .when = When::always,
         .reason = "the least shared memory"},
    Rule{.largest_dim = 512,
         .tiles = with_stages(k8Warps, 1),
         .when = When::always,
         .reason = "most products for each load of K; 163 to 221 TFLOP/s at dim 512 (H100)"},
    Rule{.largest_dim = 512,
         .tiles = with_stages(with_keys(k8Warps, 32), 1),
         .when = When::always,
         .reason = "shared memory for bias and mask"},
    Rule{.largest_dim = 512,
         .tiles = with_blocks(with_stages(k16Rows, 1), 1),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 512,
         .tiles = with_blocks(with_stages(with_keys(k16Rows, 32), 1), 1),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 512,
         .tiles = with_stages(k2Warps, 1),
         .when = When::always,
         .reason = "the least shared memory"},
};

// f32: tiles take twice the bytes, and products take long enough that 32 keys per tile suffice. A
// warp has 32 queries if registers suffice, because each warp splits K and V from shared memory
// into parts itself: with 16 queries per warp, twice as often.
inline constexpr Tiles k32RowsF32 = with_keys(k32Rows, 32);
inline constexpr Tiles k16RowsF32 = with_keys(k16Rows, 32);

inline constexpr std::array kForwardF32{
    Rule{.largest_dim = 64,
         .tiles = k32RowsF32,
         .when = When::always,
         .reason = "32 rows per warp: parts of K and V are computed once for both halves"},
    Rule{.largest_dim = 64,
         .tiles = with_blocks(k32RowsF32, 1),
         .when = When::always,
         .reason = "less shared memory: one block"},
    Rule{.largest_dim = 128,
         .tiles = with_stages(k32RowsF32, 1),
         .when = When::ieee,
         .reason =
             "32 rows per warp: FFMA waits for shared memory, which 16 rows read twice as much"},
    Rule{.largest_dim = 128,
         .tiles = k16RowsF32,
         .when = When::always,
         .reason = "registers of O; two blocks hide each other's barriers"},
    Rule{.largest_dim = 128,
         .tiles = with_stages(k16RowsF32, 1),
         .when = When::always,
         .reason = "less shared memory per SM"},
    Rule{.largest_dim = 256,
         .tiles = with_blocks(with_stages(k16RowsF32, 1), 1),
         .when = When::always,
         .reason = "less shared memory: one block"},
    Rule{.largest_dim = 256,
         .tiles = with_stages(k2Warps, 1),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 256,
         .tiles = {.tile_q = 16, .tile_kv = 32, .warps = 1, .stages = 1, .blocks = 1},
         .when = When::always,
         .reason = "the least shared memory"},
    Rule{.largest_dim = 512,
         .tiles = with_blocks(with_keys(with_stages(k16RowsF32, 1), 32), 1),
         .when = When::always,
         .reason = "most products for each load of K; not timed"},
    Rule{.largest_dim = 512,
         .tiles = with_stages(k2Warps, 1),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 512,
         .tiles = {.tile_q = 16, .tile_kv = 32, .warps = 1, .stages = 1, .blocks = 1},
         .when = When::always,
         .reason = "the least shared memory"},
};

// Up to dim 64, dK and dV of 32 keys fit a warp's registers, so P and dS^T stay in registers. Above
// dim 64 they do not: P and dS pass through shared memory, and warps divide keys and dims.
inline constexpr Tiles kWarpOwnsKeys{
    .tile_q = 64, .tile_kv = 128, .warps = 4, .stages = 2, .blocks = 2, .chunk = 32};
inline constexpr Tiles kWarpOwnsKeysSmall = with_blocks(with_keys(kWarpOwnsKeys, 64), 1);

constexpr Tiles with_p_ds_in_smem(Tiles tiles) {
  tiles.tile_q = 64;
  tiles.warps = 8;
  tiles.stages = 2;
  tiles.blocks = 1;
  tiles.p_ds_in_smem = true;
  return tiles;
}

constexpr Tiles with_queries(Tiles tiles, int tile_q) {
  tiles.tile_q = tile_q;
  return tiles;
}

inline constexpr std::array kBackward{
    Rule{.largest_dim = 32,
         .tiles = with_blocks(with_chunk(kWarpOwnsKeys, 16), 3),
         .when = When::bias_xor_mask,
         .reason = "narrow heads leave registers for three blocks"},
    Rule{.largest_dim = 64,
         .tiles = with_chunk(kWarpOwnsKeys, 16),
         .when = When::dropout_or_softcap,
         .reason = "a chunk of 16 queries leaves registers for dropout and softcap"},
    Rule{.largest_dim = 64,
         .tiles = kWarpOwnsKeys,
         .when = When::always,
         .reason = "a chunk of 32 queries as long as registers last"},
    Rule{.largest_dim = 128,
         .tiles = with_p_ds_in_smem({.tile_kv = 128, .chunk = 32, .split_dk_dv = true}),
         .when = When::always,
         .reason = "dV and dK by different warps: 233 TFLOP/s instead of 229"},
    Rule{.largest_dim = 128,
         .tiles = with_p_ds_in_smem({.tile_kv = 128, .chunk = 32}),
         .when = When::always,
         .reason = "different dims of QK and VO"},
    Rule{.largest_dim = 128,
         .tiles = kWarpOwnsKeysSmall,
         .when = When::no_bias_or_mask,
         .reason = "less shared memory"},
    Rule{.largest_dim = 128,
         .tiles = with_chunk(kWarpOwnsKeysSmall, 16),
         .when = When::always,
         .reason = "less shared memory; a bias or mask"},
    Rule{.largest_dim = 128,
         .tiles = with_queries(kWarpOwnsKeysSmall, 32),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 256,
         .tiles = with_p_ds_in_smem(
             {.tile_kv = 64, .chunk = 16, .split_dk_dv = true, .split_s_dp = true}),
         .when = When::always,
         .reason = "S and dP by different warps: 204 TFLOP/s instead of 195"},
    Rule{.largest_dim = 256,
         .tiles = with_p_ds_in_smem({.tile_kv = 64, .chunk = 16, .split_dk_dv = true}),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 256,
         .tiles = with_p_ds_in_smem({.tile_kv = 64, .chunk = 16}),
         .when = When::always,
         .reason = "different dims of QK and VO"},
    Rule{.largest_dim = 256,
         .tiles = with_chunk(k2Warps, 16),
         .when = When::always,
         .reason = "the least shared memory; spills"},
    Rule{.largest_dim = 512,
         .tiles =
             with_stages(with_p_ds_in_smem(
                             {.tile_kv = 32, .chunk = 16, .split_dk_dv = true, .split_s_dp = true}),
                         1),
         .when = When::always,
         .reason = "dK and dV of 32 keys fit the registers; 182 TFLOP/s at dim 512 (H200); 14 "
                   "tiles of attn tune were not faster"},
    Rule{.largest_dim = 512,
         .tiles = with_queries(
             with_stages(with_p_ds_in_smem(
                             {.tile_kv = 32, .chunk = 16, .split_dk_dv = true, .split_s_dp = true}),
                         1),
             32),
         .when = When::always,
         .reason = "less shared memory; half of the warps have scores"},
    Rule{.largest_dim = 512,
         .tiles = {.tile_q = 32,
                   .tile_kv = 16,
                   .warps = 4,
                   .stages = 1,
                   .blocks = 1,
                   .chunk = 16,
                   .p_ds_in_smem = true,
                   .split_dk_dv = true},
         .when = When::always,
         .reason = "the least shared memory"},
};

// f32: a warp accumulates dK and dV of 16 keys in registers.
inline constexpr Tiles kWarpOwnsKeysF32{
    .tile_q = 32, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 2, .chunk = 16};
// The same in one large block.
inline constexpr Tiles k8WarpsOwnKeysF32{
    .tile_q = 128, .tile_kv = 128, .warps = 8, .stages = 1, .blocks = 1, .chunk = 32};
inline constexpr Tiles kWarpOwnsKeysSmallF32{
    .tile_q = 32, .tile_kv = 32, .warps = 2, .stages = 1, .blocks = 1, .chunk = 16};

// Half of the warps accumulate dV, the others dK, from P and dS in shared memory.
inline constexpr Tiles kDkDvByHalvesF32{.tile_q = 32,
                                        .tile_kv = 16,
                                        .warps = 4,
                                        .stages = 1,
                                        .blocks = 1,
                                        .chunk = 16,
                                        .p_ds_in_smem = true,
                                        .split_dk_dv = true};
inline constexpr Tiles k8WarpsByHalvesF32{.tile_q = 64,
                                          .tile_kv = 32,
                                          .warps = 8,
                                          .stages = 1,
                                          .blocks = 1,
                                          .chunk = 16,
                                          .p_ds_in_smem = true,
                                          .split_dk_dv = true};

inline constexpr std::array kBackwardF32{
    Rule{
        .largest_dim = 32,
        .tiles = with_queries(with_stages(with_keys(with_chunk(kWarpOwnsKeysF32, 32), 128), 1), 64),
        .when = When::bias_or_mask,
        .reason = "two blocks of 64 x 128 scores: 1.11 times as fast (tf32x3), 1.17 (tf32)"},
    Rule{.largest_dim = 64,
         .tiles = with_stages(with_keys(kWarpOwnsKeysF32, 128), 1),
         .when = When::ieee,
         .reason = "FFMA waits for shared memory: 32 keys per warp read it less"},
    Rule{.largest_dim = 64,
         .tiles = k8WarpsOwnKeysF32,
         .when = When::always,
         .reason = "dQ, its additions and barriers come once for 128 queries and keys"},
    Rule{.largest_dim = 64,
         .tiles = with_queries(with_stages(with_chunk(kWarpOwnsKeysF32, 32), 1), 64),
         .when = When::tf32,
         .reason = "a bias leaves less shared memory: 1.19 times as fast as 32 queries"},
    Rule{.largest_dim = 64,
         .tiles = with_queries(with_stages(kWarpOwnsKeysF32, 1), 64),
         .when = When::always,
         .reason = "the same; chunks of 32 queries spill"},
    Rule{.largest_dim = 64,
         .tiles = kWarpOwnsKeysF32,
         .when = When::always,
         .reason = "two blocks hide each other's barriers"},
    Rule{.largest_dim = 128,
         .tiles = with_queries(k8WarpsOwnKeysF32, 64),
         .when = When::ieee,
         .reason = "as above; chunks of 32 queries read K and V less"},
    Rule{.largest_dim = 128,
         .tiles = with_chunk(with_queries(k8WarpsOwnKeysF32, 64), 16),
         .when = When::always,
         .reason = "as above; chunks of 32 queries spill"},
    Rule{.largest_dim = 128,
         .tiles = with_chunk(with_stages(kWarpOwnsKeysF32, 1), 32),
         .when = When::tf32,
         .reason = "a bias leaves less shared memory: 1.14 times as fast as chunks of 16"},
    Rule{.largest_dim = 128,
         .tiles = with_stages(kWarpOwnsKeysF32, 1),
         .when = When::always,
         .reason = "one stage lets two blocks fit"},
    Rule{.largest_dim = 128,
         .tiles = with_blocks(kWarpOwnsKeysF32, 1),
         .when = When::always,
         .reason = "less shared memory per SM"},
    Rule{.largest_dim = 128,
         .tiles = with_blocks(with_stages(kWarpOwnsKeysF32, 1), 1),
         .when = When::always,
         .reason = "less shared memory"},
    Rule{.largest_dim = 256,
         .tiles = k8WarpsByHalvesF32,
         .when = When::always,
         .reason = "dK and dV by different warps fit the registers: 44 TFLOP/s (tf32x3), 4 by the "
                   "last rule"},
    Rule{.largest_dim = 256,
         .tiles = with_keys(kDkDvByHalvesF32, 32),
         .when = When::always,
         .reason = "less shared memory: 23 TFLOP/s"},
    Rule{.largest_dim = 256,
         .tiles = kWarpOwnsKeysSmallF32,
         .when = When::always,
         .reason = "the least shared memory; spills above dim 128"},
    Rule{.largest_dim = 512,
         .tiles = kDkDvByHalvesF32,
         .when = When::always,
         .reason = "dK and dV of 16 keys by different warps fit the registers"},
};

// Two stages if shared memory suffices for two blocks per SM, else one stage, else smaller tiles.
inline constexpr BiasGradientTiles kWideBiasGradient{
    .tile_q = 64, .tile_kv = 32, .warps = 4, .stages = 1, .blocks = 1};
inline constexpr std::array kBiasGradient{
    BiasGradientTiles{.tile_q = 128, .tile_kv = 64, .warps = 4, .stages = 2, .blocks = 2},
    BiasGradientTiles{.tile_q = 128, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 2},
    BiasGradientTiles{.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 3},
    BiasGradientTiles{.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 2},
    BiasGradientTiles{.tile_q = 64, .tile_kv = 64, .warps = 4, .stages = 1, .blocks = 1},
    BiasGradientTiles{.tile_q = 32, .tile_kv = 32, .warps = 2, .stages = 1, .blocks = 1},
    // f32 above dim 256.
    BiasGradientTiles{.tile_q = 16, .tile_kv = 32, .warps = 1, .stages = 1, .blocks = 1}};

}  // namespace attn::cuda::sm80
