// Tuning of sm90/forward.cu; see forward_tuning.hpp.
#include "cuda/families/sm90/forward_tuning.hpp"

#include <algorithm>
#include <bit>

#include "core/signature.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/kernels/sm90/forward_shared.cuh"
#include "tuned/tiles_text.hpp"

namespace attn::cuda::sm90 {
namespace {

// Fewer or more keys use the tiles of the nearer limit.
constexpr std::uint64_t kFewestKeys = 256;
constexpr std::uint64_t kMostKeys = 16384;
constexpr int kThreadsPerSm = 2048;
constexpr int kColumnsWith128Keys = 192;  // most columns of O with 128 keys, above dim 256

template <class Visit>
void visit_tiles(Visit visit) {
  visit("tile_q", &Tiles::tile_q);
  visit("tile_kv", &Tiles::tile_kv);
  visit("stages", &Tiles::stages);
  visit("q_stages", &Tiles::q_stages);
  visit("blocks", &Tiles::blocks);
  visit("o_columns", &Tiles::o_columns);
  visit("producer_warp", &Tiles::producer_warp);
  visit("raw_stages", &Tiles::raw_stages);
  visit("schedule", &Tiles::schedule);
}

// Whether every tile of queries sees all keys.
bool has_equal_rows(const Problem& p) {
  return !has_left_bound(p) && !has_right_bound(p) && !has_row_ranges(p) &&
         lengths_of(p) == kNoLengths;
}

std::vector<int> schedules_of(const Problem& p) {
  if (has_equal_rows(p)) return {kStatic, kDynamic};
  if (p.causal && is_plain(p) && !is_wide(p)) return {kPaired, kDynamic};
  return {kDynamic};
}

bool is_one_of(int value, std::initializer_list<int> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

int threads_of(const Tiles& tiles) {
  return tiles.tile_q / 64 * 128 + (tiles.producer_warp ? 32 : 128);
}

bool fits_schedule(const Problem& p, const Tiles& tiles) {
  const std::vector<int> schedules = schedules_of(p);
  return std::find(schedules.begin(), schedules.end(), tiles.schedule) != schedules.end();
}

std::string out_of_range(const char* name, int value, const char* accepted) {
  return std::string(name) + "=" + std::to_string(value) + "; accepted " + accepted;
}

// misfit() for dims above 256.
std::string wide_misfit(const Problem& p, const Tiles& tiles, const DeviceFacts& facts) {
  if (tiles.tile_q != 128) return out_of_range("tile_q", tiles.tile_q, "128 above dim 256");
  // Registers per thread: 1/2 per column of O, and 3/4 per key for S and P.
  const bool many_columns = value_columns(p) > kColumnsWith128Keys;
  if (!is_one_of(tiles.tile_kv, {64, 80, 96, 128}) || (tiles.tile_kv == 128 && many_columns)) {
    return out_of_range("tile_kv", tiles.tile_kv, many_columns ? "64, 80, 96" : "64, 80, 96, 128");
  }
  if (tiles.stages < 2 || tiles.stages > device::sm90::kMaxWideStages) {
    return out_of_range("stages", tiles.stages, "2 to 8");
  }
  if (tiles.q_stages != 1) return out_of_range("q_stages", tiles.q_stages, "1 above dim 256");
  if (tiles.blocks != 1 || tiles.producer_warp) {
    return out_of_range("blocks", tiles.blocks, "1, and producer_warp=0, above dim 256");
  }
  if (!is_one_of(tiles.o_columns, {64, wide_o_columns(p)})) {
    return out_of_range("o_columns", tiles.o_columns, "64 or the columns of a part");
  }
  if (tiles.raw_stages != 0) return out_of_range("raw_stages", tiles.raw_stages, "0");
  if (!fits_schedule(p, tiles)) {
    return out_of_range("schedule", tiles.schedule, "2; 0 if rows are equal");
  }
  const int shared = shared_bytes_of(p, tiles);
  if (shared <= facts.shared_per_block) return {};
  return "needs " + std::to_string(shared) + " bytes of shared memory";
}

std::vector<Tiles> wide_candidates(const Problem& p, const DeviceFacts& facts) {
  std::vector<Tiles> list;
  for (const int tile_kv : {64, 80, 96, 128}) {
    for (const int schedule : schedules_of(p)) {
      Tiles tiles{.dim = rounded_dim(p),
                  .tile_q = 128,
                  .tile_kv = tile_kv,
                  .q_stages = 1,
                  .o_columns = wide_o_columns(p),
                  .schedule = schedule};
      tiles.stages = most_wide_stages(p, tiles, facts.shared_per_block);
      if (wide_misfit(p, tiles, facts).empty()) list.push_back(tiles);
    }
  }
  return list;
}

// misfit() for f32.
std::string split_misfit(const Problem& p, const Tiles& tiles, const DeviceFacts& facts) {
  const bool narrow = tiles.dim == 64;
  if (!is_one_of(tiles.tile_q, {128, 192}) || (tiles.tile_q == 192 && !narrow)) {
    return out_of_range("tile_q", tiles.tile_q, narrow ? "128, 192" : "128 in f32 above dim 64");
  }
  if (!is_one_of(tiles.tile_kv, {32, 64})) {
    return out_of_range("tile_kv", tiles.tile_kv, "32, 64 in f32");
  }
  // At least one tile of K and one of V. A slot holds 64 columns.
  const int fewest = 2 * tiles.dim / 64;
  if (tiles.stages < fewest || tiles.stages > device::sm90::kMaxWideStages) {
    return out_of_range("stages", tiles.stages, narrow ? "2 to 8" : "4 to 8");
  }
  if (tiles.q_stages != 1) return out_of_range("q_stages", tiles.q_stages, "1 in f32");
  if (tiles.blocks != 1 || tiles.producer_warp) {
    return out_of_range("blocks", tiles.blocks, "1, and producer_warp=0, in f32");
  }
  if (tiles.o_columns != 64) return out_of_range("o_columns", tiles.o_columns, "64 in f32");
  if (tiles.raw_stages != 0) return out_of_range("raw_stages", tiles.raw_stages, "0");
  if (!fits_schedule(p, tiles)) {
    return out_of_range("schedule", tiles.schedule, "2; 0 if rows are equal; 1 if plain causal");
  }
  const int shared = shared_bytes_of(p, tiles);
  if (shared <= facts.shared_per_block) return {};
  return "needs " + std::to_string(shared) + " bytes of shared memory";
}

std::vector<Tiles> split_candidates(const Problem& p, const DeviceFacts& facts) {
  std::vector<Tiles> list;
  for (const int tile_q : {128, 192}) {
    for (const int tile_kv : {32, 64}) {
      for (const int schedule : schedules_of(p)) {
        Tiles tiles{.dim = rounded_dim(p),
                    .tile_q = tile_q,
                    .tile_kv = tile_kv,
                    .stages = device::sm90::kMaxWideStages,
                    .q_stages = 1,
                    .schedule = schedule};
        while (tiles.stages > 1 && shared_bytes_of(p, tiles) > facts.shared_per_block) {
          --tiles.stages;
        }
        if (split_misfit(p, tiles, facts).empty()) list.push_back(tiles);
      }
    }
  }
  return list;
}

}  // namespace

std::string tuning_key(const Problem& p) {
  std::string key = "sm90 forward";
  const auto add = [&](const char* name, std::int64_t value) {
    key.append(" ").append(name).append("=").append(std::to_string(value));
  };
  add("dim", rounded_dim(p));
  if (is_wide(p)) {
    add("columns", value_columns(p));
    add("parts", value_parts(p));
  }
  add("f8", core::is_f8(p.dtype));
  if (is_split(p)) add("f32", bf16_parts(p));
  if (has_few_keys(p)) add("few", 1);
  add("left_bound", has_left_bound(p));
  add("right_bound", has_right_bound(p));
  add("row_ranges", has_row_ranges(p));
  add("lengths", lengths_of(p));
  add("softcap", p.softcap);
  add("alibi", p.alibi);
  add("dropout", p.dropout);
  add("bias_bytes", p.bias.given ? static_cast<std::int64_t>(size_of(p.bias_type())) : 0);
  add("mask", p.mask.given);
  const auto keys = static_cast<std::uint64_t>(std::max<std::int64_t>(1, p.len_kv));
  add("keys", static_cast<std::int64_t>(std::bit_ceil(std::clamp(keys, kFewestKeys, kMostKeys))));
  return key;
}

std::string to_string(const Tiles& tiles) {
  return tuned::tiles_text(tiles, [](const auto& visit) { visit_tiles(visit); });
}

std::optional<Tiles> parse_tiles(const std::string& text) {
  return tuned::parse_tiles_text<Tiles>(text, [](const auto& visit) { visit_tiles(visit); });
}

std::string misfit(const Problem& p, const Tiles& tiles, const DeviceFacts& facts) {
  namespace limits = device::sm90;
  const bool raw = core::is_f8(p.dtype) || has_mask_bits(p);
  if (is_wide(p)) return wide_misfit(p, tiles, facts);
  if (is_split(p)) return split_misfit(p, tiles, facts);
  if (!is_one_of(tiles.tile_q, {64, 128, 192, 256})) {
    return out_of_range("tile_q", tiles.tile_q, "64, 128, 192, 256");
  }
  if (!is_one_of(tiles.tile_kv, {64, 128})) {
    return out_of_range("tile_kv", tiles.tile_kv, "64, 128");
  }
  if (tiles.stages < 2 || tiles.stages > limits::kMaxStages) {
    return out_of_range("stages", tiles.stages, "2 to 4");
  }
  if (!is_one_of(tiles.q_stages, {1, 2})) return out_of_range("q_stages", tiles.q_stages, "1, 2");
  if (!is_one_of(tiles.blocks, {1, 2, 3})) return out_of_range("blocks", tiles.blocks, "1, 2, 3");
  if (tiles.producer_warp != (tiles.blocks > 1) || (raw && tiles.producer_warp)) {
    return out_of_range(
        "producer_warp", tiles.producer_warp,
        raw ? "0, and blocks=1, with f8 or a mask" : "1 with blocks=2 or 3, else 0");
  }
  if (!is_one_of(tiles.o_columns, {64, tiles.dim})) {
    return out_of_range("o_columns", tiles.o_columns, "64 or the dim");
  }
  const bool bits = has_mask_bits(p);
  const int most_raw = bits ? limits::kMaxRawMaskStages : raw ? limits::kMaxRawStages : 0;
  if (tiles.raw_stages > most_raw || (raw && tiles.raw_stages < 1)) {
    return out_of_range("raw_stages", tiles.raw_stages,
                        bits  ? "1 to 6"
                        : raw ? "1 to 8"
                              : "0 without f8 or mask");
  }
  if (!fits_schedule(p, tiles)) {
    return out_of_range("schedule", tiles.schedule, "2; 0 if rows are equal; 1 if plain causal");
  }
  const int shared = shared_bytes_of(p, tiles);
  if (shared > facts.shared_per_block ||
      tiles.blocks * (shared + kReservedShared) > facts.shared_per_sm) {
    return std::to_string(tiles.blocks) + " blocks of " + std::to_string(shared) +
           " bytes of shared memory do not fit an SM";
  }
  if (tiles.blocks * threads_of(tiles) > kThreadsPerSm) return "too many threads for an SM";
  return {};
}

std::vector<Tiles> candidate_tiles(const Problem& p, const DeviceFacts& facts) {
  if (is_wide(p)) return wide_candidates(p, facts);
  if (is_split(p)) return split_candidates(p, facts);
  const bool f8 = core::is_f8(p.dtype);
  const bool bits = has_mask_bits(p);
  std::vector<Tiles> list;
  // Adds the tiles with the first combination of o_columns, q_stages and raw_stages that fits.
  const auto add = [&](Tiles tiles) {
    for (const int o_columns : {tiles.dim, 64}) {
      for (const int q_stages : {2, 1}) {
        const int most_raw = f8 ? 2 : bits ? device::sm90::kMaxRawMaskStages : 0;
        for (int raw = most_raw; raw >= (f8 || bits ? 2 : 0); --raw) {
          tiles.o_columns = o_columns;
          tiles.q_stages = q_stages;
          tiles.raw_stages = raw;
          if (!misfit(p, tiles, facts).empty()) continue;
          list.push_back(tiles);
          return;
        }
      }
    }
  };
  for (const int tile_q : {64, 128, 192}) {
    for (const int tile_kv : {64, 128}) {
      for (const int blocks : {1, 2, 3}) {
        if (tile_q == 64 ? blocks == 1 : blocks == 3) continue;  // one warpgroup per SM, or six
        for (const int stages : {2, 3, 4}) {
          for (const int schedule : schedules_of(p)) {
            add({.dim = rounded_dim(p),
                 .tile_q = tile_q,
                 .tile_kv = tile_kv,
                 .stages = stages,
                 .blocks = blocks,
                 .producer_warp = blocks > 1,
                 .schedule = schedule});
          }
        }
      }
    }
  }
  return list;
}

}  // namespace attn::cuda::sm90
