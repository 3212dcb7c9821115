// How a CPU backward divides keys among tasks, and where their sums lie.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

#include "cpu/host/config.hpp"

namespace attn::cpu {

// Chooses the blocks of keys of backward_kv, the order of its tasks, and whether it computes dbias.
// `most`: keys of a block, if measured; 0: not measured. config's tiles must already be
// set.
void set_blocks(const Problem& p, std::int64_t threads, std::int64_t most, Config& config);

}  // namespace attn::cpu
