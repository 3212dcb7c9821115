// Slices: one query row, or one key, of a call as a small problem of its own. It lets a result of
// any size be held against the float64 reference, a few rows at a time.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>

#include "bench/cells.hpp"
#include "bench/inputs.hpp"

namespace attn::bench {

// A padded problem with one batch entry; its arguments are views into the memory of the call.
struct Slice {
  Problem problem;
  Arguments arguments;
};

// Query row i of entry b and query head h, with all keys of the entry. As decode after its append:
// a plain forward over the cache.
Slice query_slice(const Cell& cell, const Inputs& inputs, std::int64_t b, std::int64_t h,
                  std::int64_t i);
// Key j of entry b and key head g, with all queries of the entry and of the group's heads
// (backward).
Slice key_slice(const Cell& cell, const Inputs& inputs, std::int64_t b, std::int64_t g,
                std::int64_t j);

}  // namespace attn::bench
