// Work: how much arithmetic and memory traffic a cell asks for, so that times become speeds.
#pragma once

#include <cstdint>

#include "bench/cells.hpp"
#include "bench/inputs.hpp"

namespace attn::bench {

struct Work {
  double pairs = 0;     // visible (query, key) pairs, summed over batch entries and query heads
  double flop = 0;      // forward 2 pairs (dim_qk + dim_vo), backward pairs (6 dim_qk + 4 dim_vo)
  double kv_bytes = 0;  // bytes of K and V that must be read
};

// Exact counts; plain square causal cells count half of the square, as published figures do.
Work work_of(const Cell& cell, const Inputs& inputs);
// The same for any valid call on host memory, whose entry lengths are read from its tensors. Plain
// is what has no option but causal and no lengths.
Work work_of(Pass pass, const Problem& problem, const Arguments& arguments);

}  // namespace attn::bench
