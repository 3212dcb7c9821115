// Candidates of the tuner: tiles of a family, and which of them compile to what they promise.
#pragma once

#include <attn/tune.hpp>
#include <vector>

#include "cuda/families/family.hpp"
#include "cuda/host/binaries.hpp"

namespace attn::cuda {

// Compiles the plan of each of family.tune_candidates() on `threads` threads (0: one per
// processor); later calls find the binaries. Tiles that spill much, or leave no resources for their
// blocks, have a flaw. For a problem that the family takes.
core::Status compile_candidates(const Family& family, Pass pass, const Problem& problem,
                                const DeviceFacts& facts, Binaries& binaries, int threads,
                                std::vector<TuneCandidate>& out);

}  // namespace attn::cuda
