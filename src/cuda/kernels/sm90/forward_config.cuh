// Constants of sm90/forward.cu, from its Config:
//   dtype of q, dtype_kv, dtype_out of O in shared memory (f8: all three may differ)
//   raw_stages     f8: tiles of V before the transposition; mask without bias, not f8: tiles
//                  [64][tile_kv] of the mask before they become bits
//   accumulate_tiles  f8: number of tiles of keys that P V accumulates in tensor cores before it is
//                  added to O in f32; 0: all (accumulators of 8-bit products keep about 14 bits)
//   dim_qk, dim_vo (64, 128 or 256, above multiples of 64; TMA fills columns past the end with
//   zeros);
//   tile_q (64 per consumer warpgroup), tile_kv, stages (of K and of V), blocks (per SM);
//   tile_heads     query heads of one key head that share a tile, with tile_q / tile_heads queries
//                  each, a multiple of 16
//   producer_warp  1: a single warp loads and setmaxnreg is not used, for several blocks per SM;
//                  0: a warpgroup loads and releases registers to the consumers
//   overlap        the softmax of a tile overlaps with P V of the previous tile
//   pingpong       consumer warpgroups alternate in issuing their products
//   q_stages       tiles of Q in shared memory: the next one loads while this one is in use
//   o_columns      columns of O that are staged in shared memory at once
//   schedule       kStatic, kPaired (causal), kDynamic
//   right_bound, left_bound   rows have a last or first visible key (causal, windows)
//   row_ranges     kv_begin or kv_end are given
//   lengths        kNoLengths, kPadded, kPacked
//   softcap, alibi, dropout, bias_type, mask, shared_entries
//   value_parts    above dim 256 (forward_wide_consumer.cuh), else 0: the number of parts of O's
//                  columns, dim_vo each, which different blocks compute. K then has stages of 64
//                  columns, and V has one stage
//   store_elements  O has another type than Q or is f32, or non-finite results are replaced
// f32 (forward_split_consumer.cuh): bf16_parts of an element, 3 or 2, else 0; `stages` is the
// number
//   of slots in one ring of K and V;
// overlap: P V of a tile and S of the next are in flight together.
#pragma once
#include "config.cuh"
#include "sm90/forward_params.cuh"
#include "sm90/forward_shared.cuh"

namespace sm90 {

using attn::device::sm90::ForwardParams;
using attn::device::sm90::kMaxRawStages;
using attn::device::sm90::kMaxStages;
using attn::device::sm90::kMaxWarpgroups;
using attn::device::sm90::kMaxWideStages;

enum Schedule { kStatic, kPaired, kDynamic };
enum Lengths { kNoLengths, kPadded, kPacked };

inline constexpr int kDtype = config::dtype;
inline constexpr int kDtypeKv = config::dtype_kv;
inline constexpr int kDtypeOut = config::dtype_out;
// 8-bit products require a K-major B, so V is transposed in shared memory; P is e4m3.
inline constexpr bool kF8 = kDtype == config::f8e4m3 || kDtype == config::f8e5m2;
// f32: operands are split into bf16 parts.
inline constexpr bool kSplit = kDtype == config::f32;
inline constexpr int kElementBytes = kF8 ? 1 : 2;
inline constexpr int kDimQk = config::dim_qk;
inline constexpr int kDimVo = config::dim_vo;
inline constexpr int kTileQ = config::tile_q;
inline constexpr int kTileKv = config::tile_kv;
inline constexpr int kStages = config::stages;
inline constexpr int kWarpgroups = kTileQ / 64;  // consumers
// Rows of a tile: those of its first head, then those of the next. The rows of a warp belong to one
// head.
inline constexpr int kTileHeads = config::tile_heads;
inline constexpr int kHeadRows = kTileQ / kTileHeads;
inline constexpr int kGroupHeadRows = kHeadRows < 64 ? kHeadRows : 64;  // in a warpgroup
inline constexpr int kParts = config::value_parts;
inline constexpr bool kWide = kParts > 0;
inline constexpr bool kProducerWarp = config::producer_warp != 0;
inline constexpr int kThreads = 128 * kWarpgroups + (kProducerWarp ? 32 : 128);
inline constexpr bool kOverlap = config::overlap != 0;
inline constexpr bool kPingPong = config::pingpong != 0 && kWarpgroups > 1;
inline constexpr int kQStages = config::q_stages;
inline constexpr int kRawStages = config::raw_stages;
inline constexpr int kOColumns = config::o_columns;
inline constexpr int kAccumulateTiles = config::accumulate_tiles;
inline constexpr bool kRowRanges = config::row_ranges != 0;
// Rows have a first visible key, so tiles can be partial.
inline constexpr bool kLeftBound = config::left_bound != 0 || kRowRanges;
// The producer publishes each tile, because consumers cannot compute it themselves.
inline constexpr bool kPublished = config::schedule == kDynamic || kRowRanges;

inline constexpr int kBiasBytes = config::bias_type == config::none  ? 0
                                  : config::bias_type == config::f32 ? 4
                                                                     : 2;
// The mask is read as bits (forward_mask_packer.cuh), or as bytes next to the bias.
inline constexpr bool kMaskBits = config::mask != 0 && kBiasBytes == 0 && !kF8;
inline constexpr int kMaskBytes = config::mask != 0 && !kMaskBits ? 1 : 0;
// Keys of a tile of bias or mask: kTileKv if there is one.
inline constexpr int kScoreKeys = kTileKv % 64 == 0 ? kTileKv : 64;
inline constexpr int kRawMaskBytes = 64 * kTileKv;
inline constexpr int kBitsRow = kTileKv / 8;
inline constexpr int kBitsBytes = kTileQ * kBitsRow;
inline constexpr int kBitsStages = attn::device::sm90::kBitsStages;
// Warps of the producer warpgroup that transpose V (f8), load and pack the mask, or split K and V
// (f32): all but the one that loads Q, K and V.
inline constexpr int kHelpers = kF8 || kMaskBits || kSplit ? 3 : 0;
inline constexpr int kPackers = 2;  // helpers that pack the mask, one per 32 rows of a raw stage
inline constexpr attn::device::sm90::ForwardShared kShared = attn::device::sm90::ForwardSharedOf(
    {kTileQ, kTileKv, kStages, kQStages, kDimQk, kDimVo, config::o_columns, kBiasBytes + kMaskBytes,
     kElementBytes, kRawStages, kMaskBits, kWide, config::bf16_parts});
inline constexpr int kQBytes = kTileQ * kDimQk * kElementBytes;
inline constexpr int kKBytes = kTileKv * (kWide ? 64 : kDimQk) * kElementBytes;  // of a stage
inline constexpr int kVBytes = kTileKv * kDimVo * kElementBytes;
// f32: slots of a tile's K (64 columns each) and V (kVSlotKeys keys each); bytes of one part of a
// slot, of a slot, and of one part of Q.
inline constexpr int kKSlots = kDimQk / 64;
inline constexpr int kVSlots = kDimVo / 64;
inline constexpr int kVSlotKeys = kSplit ? kTileKv / kVSlots : 16;
inline constexpr int kPartBytes = 128 * kTileKv;
inline constexpr int kSlotBytes = config::bf16_parts * kPartBytes;
inline constexpr int kQPartBytes = kTileQ * kDimQk * 2;
// Bytes of a row of a chunk in shared memory: of Q and K; of V as TMA writes it; of V transposed
// (f8).
inline constexpr int kQkRowBytes = kDimQk * kElementBytes < 128 ? 64 : 128;
inline constexpr int kVRowBytes = kDimVo * kElementBytes < 128 ? 64 : 128;
inline constexpr int kKeyRowBytes = kTileKv % 128 == 0 ? 128 : 64;
// Position at which 16-byte chunk `chunk` of row `row` is stored within the row.
template <int row_bytes>
__device__ __forceinline__ unsigned Swizzled(unsigned chunk, unsigned row) {
  return chunk ^ (row_bytes == 128 ? row & 7 : row >> 1 & 3);
}

// Registers after setmaxnreg. At launch each thread gets 65536 / kThreads, rounded down to a
// multiple of 8, and setmaxnreg can only redistribute these: 504 for 3 warpgroups (the producer
// included), 512 for 4, 480 for 5. f32: a producer thread needs more, because it loads 32 elements
// at once.
inline constexpr int kProducerRegisters = kSplit             ? (kWarpgroups == 3 ? 80 : 88)
                                          : kWarpgroups == 3 ? 32
                                          : kWarpgroups == 4 ? 24
                                                             : 40;
inline constexpr int kConsumerRegisters = kSplit             ? (kWarpgroups == 3 ? 144 : 208)
                                          : kWarpgroups == 4 ? 112
                                          : kWarpgroups == 3 ? 160
                                                             : 232;

static_assert(kTileQ % 64 == 0 && kWarpgroups >= 1 && kWarpgroups <= kMaxWarpgroups);
static_assert(kTileQ % kTileHeads == 0 && kHeadRows % 16 == 0 &&
              (kHeadRows % 64 == 0 || 64 % kHeadRows == 0));
static_assert(kTileHeads == 1 || (config::bias_type == config::none && config::mask == 0 &&
                                  !kRowRanges && !kSplit && !kWide && config::schedule != kPaired));
static_assert(kTileKv % 16 == 0 && kRawStages <= kMaxRawStages);
static_assert(kStages <= (kWide || kSplit ? kMaxWideStages : kMaxStages));
static_assert(!kF8 || (kTileKv % 64 == 0 && !kProducerWarp && kRawStages > 0));
static_assert(!kMaskBits ||
              ((kTileKv == 64 || kTileKv == 128) && !kProducerWarp && kRawStages > 0));
static_assert(!kF8 || config::dropout == 0);
static_assert(kScoreKeys == kTileKv || kBiasBytes + config::mask == 0);
static_assert(!kWide || (!kF8 && kBiasBytes == 0 && config::mask == 0 && kQStages == 1 &&
                         (kOColumns == 64 || kOColumns <= kDimQk)));
static_assert(!kSplit || (kDimQk <= 128 && kDimVo <= 128 && kVSlotKeys % 16 == 0 &&
                          !kProducerWarp && (kWarpgroups == 2 || kWarpgroups == 3) &&
                          kBiasBytes == 0 && config::mask == 0 && config::store_elements != 0));
static_assert(kSplit == (config::bf16_parts > 0) && config::bf16_parts <= 3);
static_assert(!kSplit || kStages >= kKSlots + kVSlots);
static_assert(kDimQk % 64 == 0 && kDimVo % 64 == 0);
static_assert(kDimVo % kOColumns == 0 && kOColumns % 64 == 0);

}  // namespace sm90
