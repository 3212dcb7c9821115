// The model of decode_splits.hpp. Its unit is the time in which an SM reads one key if all SMs
// read. Measured on an H100 with 1 to 128 splits of 8, 32 and 128 tiles
// (bench/results/h100/decode_replay.jsonl): one block per SM is best and already reaches the memory
// bandwidth. Clusters were measured on an H200 with 2 to 64 tiles of 512 to 16384 keys
// (docs/kernels/decode.md).
#include "cuda/families/sm80/decode_splits.hpp"

#include <algorithm>
#include <limits>

#include "core/divide_up.hpp"

namespace attn::cuda::sm80 {
namespace {

constexpr double kStart = 64.0;  // of a block

// Bytes of K and V of a split from which 8 warps are faster than 4.
constexpr std::int64_t kWideBytes = 192 << 10;

struct Choice {
  std::int64_t splits = 1;
  double time = std::numeric_limits<double>::infinity();
};

// The keys of a split if there are `wanted` of them.
std::int64_t keys_of_split(const DecodeWork& work, std::int64_t wanted) {
  return core::round_up(core::divide_up(work.keys, wanted), work.step);
}

// Time in which all SMs together read all keys.
double all_keys(const DecodeWork& work) {
  return static_cast<double>(work.tiles * work.keys) / static_cast<double>(work.sms);
}

// Partial results pass through the workspace. Two blocks per SM cost 3 %, unequal numbers of blocks
// 10 to 15 % (an SM with two blocks reads a quarter faster than one with one). Each split adds
// 0.05 us to the merge, and more with more than four rows, because one block merges a tile.
Choice through_workspace(const DecodeWork& work) {
  constexpr double kMerge = 40.0;
  constexpr double kOneBlock = 1.1;
  constexpr double kMoreBlocks = 1.25;
  constexpr double kSharedSm = 1.03;
  constexpr std::int64_t kMinKeys = 256;
  constexpr std::int64_t kMaxSplits = 256;
  // An SM reads twice as many 8-bit keys in the same time.
  const double unit = work.eight_bits ? 2.0 : 1.0;
  const double merge_per_split = std::max(4.0, static_cast<double>(work.rows));
  Choice best;
  for (std::int64_t wanted = 1; wanted <= std::min(kMaxSplits, work.keys / kMinKeys + 1);
       ++wanted) {
    const std::int64_t each = keys_of_split(work, wanted);
    const std::int64_t splits = core::divide_up(work.keys, each);
    const std::int64_t blocks = work.tiles * splits;
    const bool one_block_per_sm = blocks <= work.sms;
    const double busiest = static_cast<double>(core::divide_up(blocks, work.sms) * each);
    double time = std::max(all_keys(work), busiest / (one_block_per_sm ? kOneBlock : kMoreBlocks));
    if (!one_block_per_sm) time *= kSharedSm;
    time += unit * kStart * static_cast<double>(core::divide_up(blocks, work.sms * work.blocks));
    if (splits > 1) time += unit * (kMerge + merge_per_split * static_cast<double>(splits));
    if (time < best.time) best = {splits, time};
  }
  return best;
}

// Blocks of 4 or, if `wide`, 8 warps, one per SM. A block reads up to `rate` times its share while
// other SMs are idle. Clusters do not divide the SMs of a device evenly: with many of them some SMs
// have two blocks, or, if these are wide, some clusters start after others have ended.
Choice in_clusters(const DecodeWork& work, bool wide) {
  const double rate = wide ? 1.7 : 1.4;
  const double uneven = wide ? 1.1 : 1.25;
  DecodeWork blocks = work;
  if (wide) blocks.step *= 2;
  Choice best;
  for (std::int64_t wanted = 2; wanted <= kMaxCluster; ++wanted) {
    const std::int64_t each = keys_of_split(blocks, wanted);
    const std::int64_t splits = core::divide_up(work.keys, each);
    const std::int64_t most = wide && splits > 2 ? work.sms / 2 : work.sms;
    if (splits < 2 || work.tiles * splits > most) continue;
    if (wide && each * work.key_bytes < kWideBytes) continue;
    const double time =
        kStart + std::max(uneven * all_keys(work), static_cast<double>(each) / rate);
    if (time <= best.time) best = {splits, time};
  }
  return best;
}

// What an exchange through the workspace costs more than one in a cluster: 2.4 us, in which an SM
// reads 80 KB.
double exchange(const DecodeWork& work) {
  return 80e3 / static_cast<double>(std::max<std::int64_t>(work.key_bytes, 1));
}

}  // namespace

DecodeSplits choose_splits(const DecodeWork& work) {
  if (work.tiles == 0) return {};
  Choice apart = through_workspace(work);
  const std::int64_t each = core::divide_up(work.keys, apart.splits);
  const bool alone = apart.splits > 1 && work.tiles * apart.splits <= work.sms;
  DecodeSplits best{apart.splits, false, work.wide && alone && each * work.key_bytes >= kWideBytes};
  if (!work.clusters) return best;
  if (apart.splits > 1) apart.time += exchange(work);
  for (const bool wide : {false, true}) {
    if (wide && !work.wide) continue;
    const Choice together = in_clusters(work, wide);
    if (together.time >= apart.time) continue;
    apart.time = together.time;
    best = {together.splits, true, wide};
  }
  return best;
}

bool makes_cluster(const DecodeWork& work, std::int64_t splits) {
  return work.clusters && splits > 1 && splits <= kMaxCluster && work.tiles * splits <= work.sms;
}

}  // namespace attn::cuda::sm80
