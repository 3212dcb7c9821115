// Rows of a tile: queries of all heads that share a key head, one after the other, so that short
// queries of a group fill a tile together (GQA packing). Row r of a group's rows is head
// g * group + r / n, query r % n, n being the entry's rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/host/call.hpp"

namespace attn::cpu {

inline constexpr std::int64_t kMaxTileKv = 128;

struct TileRow {
  std::int64_t head = 0;
  std::int64_t i = 0;
  core::KeyRange keys;  // what causal, window and kv ranges leave
};

// Fills rows[0, count) and returns the smallest range that holds all their keys.
inline core::KeyRange make_rows(const Call& call, const Entry& entry, std::int64_t head_kv,
                                std::int64_t row0, std::int64_t count, TileRow* rows) {
  core::KeyRange all{entry.len_kv, 0};
  for (std::int64_t r = 0; r < count; ++r) {
    TileRow& row = rows[r];
    row.head = head_kv * call.group + (row0 + r) / entry.rows_q;
    row.i = (row0 + r) % entry.rows_q;
    row.keys = keys_of(call, entry, row.i);
    if (row.keys.empty()) continue;
    all.begin = std::min(all.begin, row.keys.begin);
    all.end = std::max(all.end, row.keys.end);
  }
  return all;
}

// Whether a row sees any of keys [begin, end).
inline bool any_sees(const TileRow* rows, std::int64_t count, std::int64_t begin,
                     std::int64_t end) {
  for (std::int64_t r = 0; r < count; ++r) {
    if (rows[r].keys.begin < end && rows[r].keys.end > begin) return true;
  }
  return false;
}

}  // namespace attn::cpu
