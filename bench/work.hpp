// Work: arithmetic and memory traffic of a cell, to convert times into speeds.
#pragma once

#include <cstdint>

#include "bench/cells.hpp"
#include "bench/inputs.hpp"

namespace attn::bench {

struct Work {
  double pairs = 0;     // visible (query, key) pairs, summed over sequences and query heads
  double flop = 0;      // forward 2 pairs (dim_qk + dim_vo), backward pairs (6 dim_qk + 4 dim_vo)
  double kv_bytes = 0;  // bytes of K and V that must be read
};

// Exact counts. Plain square causal cells count half of the square, like published figures.
Work work_of(const Cell& cell, const Inputs& inputs);
// The same for any valid call in host memory; sequence lengths are read from its tensors. A call is
// plain if it has no option except causal and no lengths.
Work work_of(Pass pass, const Problem& problem, const Arguments& arguments);

}  // namespace attn::bench
