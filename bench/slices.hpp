// Slices: one query row or one key of a call as a separate small problem. With slices, a few rows
// of a result of any size are compared with the float64 reference.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>

#include "bench/cells.hpp"
#include "bench/inputs.hpp"

namespace attn::bench {

// A padded problem with one sequence; its arguments are views of the call's memory.
struct Slice {
  Problem problem;
  Arguments arguments;
};

// Query row i of sequence b and query head h, with all keys of the sequence. Decode becomes a plain
// forward over the cache, after its append.
Slice query_slice(const Cell& cell, const Inputs& inputs, std::int64_t b, std::int64_t h,
                  std::int64_t i);
// Key j of sequence b and key head g, with all queries of the sequence in the heads that share g
// (backward).
Slice key_slice(const Cell& cell, const Inputs& inputs, std::int64_t b, std::int64_t g,
                std::int64_t j);

}  // namespace attn::bench
