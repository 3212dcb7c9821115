// Rows of a tile (GQA packing). The query heads that share a key head are stacked, so that short
// queries fill a tile together. In a sequence with n query rows, row r of key head h is query r % n
// of head h * heads_per_kv + r / n.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/host/call.hpp"

namespace attn::cpu {

inline constexpr std::int64_t kMaxTileKv = 128;
// Random bytes of one row: kMaxTileKv keys, and 16 for the alignment of the first key.
inline constexpr std::int64_t kDropoutRow = kMaxTileKv + 16;
inline constexpr std::int64_t kMostTileRows = 192;     // backward only
inline constexpr std::int64_t kMostStrips = 64;        // strips of a tile in the forward
inline constexpr std::int64_t kMostTilesOfBlock = 64;  // of keys: KeyBlock::loaded has 64 bits

struct TileRow {
  std::int64_t head = 0;
  std::int64_t i = 0;
  core::KeyRange keys;  // visible by causal, window, kv_begin, kv_end and the range of the mask row
  const char* mask = nullptr;  // address of key 0; null: the mask hides none of `keys`
  const char* bias = nullptr;  // address of key 0; null: no bias
  // With `mask`, if it was packed: the row's words of tile 0, and the keys that are visible without
  // the mask.
  const std::uint32_t* mask_bits = nullptr;
  core::KeyRange unmasked = {};
};

// Narrows a row's keys to the range that the mask leaves visible. Sets `mask`.
inline void cut_to_mask(const Call& call, const Entry& entry, TileRow& row) {
  row.mask = nullptr;
  row.mask_bits = nullptr;
  if (!call.mask.given() || row.keys.empty()) return;
  row.unmasked = row.keys;
  const MaskRow* mask = mask_row_of(call, entry.b, row.head, row.i);
  if (mask != nullptr) {
    row.keys.begin = std::max<std::int64_t>(row.keys.begin, mask->begin);
    row.keys.end = std::min<std::int64_t>(row.keys.end, mask->end());
    if (row.keys.empty()) row.keys = {0, 0};
    if (!mask->holes()) return;
    const MaskBits& bits = call.mask_bits;
    if (bits.words != nullptr) {
      row.mask_bits = bits.words + mask_head_of(call, entry.b, row.head) * bits.head +
                      (call.problem.mask.q ? row.i * bits.row : 0);
    }
  }
  row.mask = pair_address(call.mask, entry.b, row.head, row.i, 0);
}

// Head and query of row r of a key head. next() counts up instead of dividing: one division per row
// costs as much as the rest of the row in a short sequence.
struct RowPlace {
  std::int64_t head, i;
  RowPlace(const Call& call, const Entry& entry, std::int64_t head_kv, std::int64_t r)
      : head(head_kv * call.numbers.heads_per_kv + r / std::max<std::int64_t>(entry.rows_q, 1)),
        i(r % std::max<std::int64_t>(entry.rows_q, 1)) {}
  void next(const Entry& entry) {
    if (++i < entry.rows_q) return;
    i = 0;
    ++head;
  }
};

inline TileRow row_at(const Call& call, const Entry& entry, const RowPlace& place) {
  TileRow row{place.head, place.i, keys_of(call, entry, place.i)};
  cut_to_mask(call, entry, row);
  return row;
}

// Fills rows[0, count) and returns the smallest range with all keys that they see.
inline core::KeyRange make_rows(const Call& call, const Entry& entry, std::int64_t head_kv,
                                std::int64_t row0, std::int64_t count, TileRow* rows) {
  core::KeyRange all{entry.len_kv, 0};
  RowPlace place(call, entry, head_kv, row0);
  for (std::int64_t r = 0; r < count; ++r, place.next(entry)) {
    // Member by member: a TileRow that is copied is stored in parts and loaded as vectors, which
    // waits until the stores are in L1. That took as long as all else that is done for a row.
    TileRow& row = rows[r];
    core::KeyRange keys = keys_of(call, entry, place.i);
    row.head = place.head;
    row.i = place.i;
    row.keys = keys;
    row.mask = nullptr;
    row.bias = nullptr;
    row.mask_bits = nullptr;
    if (call.mask.given()) {
      cut_to_mask(call, entry, row);
      keys = row.keys;
    }
    if (call.bias.given()) {
      // A row that sees no key may be outside of the bias.
      row.bias = pair_address(call.bias, entry.b, row.head, keys.empty() ? 0 : row.i, 0);
    }
    if (keys.empty()) continue;
    all.begin = std::min(all.begin, keys.begin);
    all.end = std::max(all.end, keys.end);
  }
  return all;
}

// The packed mask of consecutive rows.
struct MaskRun {
  const std::uint32_t* bits = nullptr;  // words of the first row, tile 0; null: there is no run
  core::KeyRange unmasked;              // keys that all rows see unless the mask hides them
};
inline MaskRun mask_run(const Call& call, const TileRow* rows, std::int64_t count) {
  const std::int64_t step = call.problem.mask.q ? call.mask_bits.row : 0;
  if (rows[0].mask_bits == nullptr) return {};
  MaskRun run{rows[0].mask_bits, rows[0].unmasked};
  for (std::int64_t r = 1; r < count; ++r) {
    if (rows[r].mask_bits != run.bits + r * step) return {};
    run.unmasked.begin = std::max(run.unmasked.begin, rows[r].unmasked.begin);
    run.unmasked.end = std::min(run.unmasked.end, rows[r].unmasked.end);
  }
  return run;
}

// The smallest range in [begin, end) with all keys that the rows see there.
inline core::KeyRange seen_by(const TileRow* rows, std::int64_t count, std::int64_t begin,
                              std::int64_t end) {
  core::KeyRange seen{end, begin};
  for (std::int64_t r = 0; r < count; ++r) {
    const core::KeyRange keys{std::max(rows[r].keys.begin, begin), std::min(rows[r].keys.end, end)};
    if (keys.empty()) continue;
    seen.begin = std::min(seen.begin, keys.begin);
    seen.end = std::max(seen.end, keys.end);
  }
  return seen;
}

}  // namespace attn::cpu
