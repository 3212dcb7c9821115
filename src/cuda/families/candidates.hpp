// Candidates of the tuner: the tiles of a family, and which of them compile without defects.
#pragma once

#include <attn/tune.hpp>
#include <vector>

#include "cuda/families/family.hpp"
#include "cuda/host/binaries.hpp"

namespace attn::cuda {

// Compiles the plan of each of family.tune_candidates() on `threads` threads (0: one per
// processor); later calls find the binaries. Tiles have a flaw if they spill much or their blocks
// do not fit a multiprocessor. For problems that the family supports.
core::Status compile_candidates(const Family& family, Pass pass, const Problem& problem,
                                const DeviceFacts& facts, Binaries& binaries, int threads,
                                std::vector<TuneCandidate>& out);

}  // namespace attn::cuda
