#include "cpu/host/shared_keys.hpp"

#include <algorithm>

#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/tile.hpp"

namespace attn::cpu {
namespace {

constexpr std::int64_t kSampledTiles = 64;
constexpr std::int64_t kSampledRows = 32;  // from one sample to the next; also a tile's last row

// Row tiles of a key from which on packing once is faster (docs/kernels/cpu_amx.md, "Documents").
constexpr double kLeastShared = 4.0;
constexpr double kLeastSharedBf16 = 5.0;
// Rows of smaller tiles of a bf16 engine. Documents often have a power of two of tokens.
constexpr std::int64_t kFewerRows = 256;

// Keys between the first and the last that a tile of the first key head sees.
std::int64_t keys_of_tile(const Call& call, const Config& config, const Entry& entry,
                          std::int64_t tile) {
  const std::int64_t row0 = tile * config.tile_rows;
  const std::int64_t end =
      std::min(row0 + config.tile_rows, call.numbers.heads_per_kv * entry.rows_q);
  core::KeyRange all{entry.len_kv, 0};
  for (std::int64_t r = row0; r < end;
       r = r + 1 < end ? std::min(r + kSampledRows, end - 1) : end) {
    const core::KeyRange keys = row_at(call, entry, RowPlace(call, entry, 0, r)).keys;
    if (keys.empty()) continue;
    all.begin = std::min(all.begin, keys.begin);
    all.end = std::max(all.end, keys.end);
  }
  return std::max<std::int64_t>(all.end - all.begin, 0);
}

}  // namespace

double row_tiles_of_key(const Call& call, const Config& config) {
  const std::int64_t tiles = row_tiles(call.problem, config);
  const std::int64_t all = call.problem.batch * tiles;
  const std::int64_t sampled = std::min(all, kSampledTiles);
  double seen = 0.0;
  double keys = 0.0;
  for (std::int64_t n = 0; n < sampled; ++n) {
    const std::int64_t tile = n * all / sampled;
    const Entry entry = entry_of(call, tile / tiles);
    seen += static_cast<double>(keys_of_tile(call, config, entry, tile % tiles));
    keys += static_cast<double>(entry.len_kv) / static_cast<double>(tiles);
  }
  return keys > 0.0 ? seen / keys : 0.0;
}

bool pack_or_shrink_tiles(const Call& call, Config& config) {
  if (!call.problem.kv_begin && !call.problem.kv_end && call.mask_rows == nullptr) return true;
  const bool is_float = config.engine == Engine::float_simd;
  const double shared = row_tiles_of_key(call, config);
  if (shared >= (is_float ? kLeastShared : kLeastSharedBf16)) return true;
  Config fewer_rows = config;
  fewer_rows.tile_rows = kFewerRows;
  if (!is_float && config.tile_rows > kFewerRows && row_tiles_of_key(call, fewer_rows) <= shared) {
    config = fewer_rows;
  }
  return false;
}

}  // namespace attn::cpu
