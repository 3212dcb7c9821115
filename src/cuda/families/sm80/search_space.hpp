// Search space of the tuner: the tiles worth measuring for a shape, and which of them compile to
// what they promise.
#pragma once

#include <string>
#include <vector>

#include "cuda/families/sm80/heuristics.hpp"
#include "cuda/families/sm80/plan.hpp"

namespace attn::cuda::sm80 {

struct Candidate {
  Tiles tiles;
  std::string flaw;  // why it is not worth measuring; empty: it is
};

// All tiles that fit the device by the model of misfit(). A pure function.
std::vector<Tiles> candidate_tiles(const Shape& shape, const DeviceFacts& facts);

// Compiles the plan of each on `threads` threads (0: one per processor); later calls find the
// binaries. Tiles that spill much, or leave no resources for their blocks, have a flaw. For a
// problem that the family takes.
core::Status compile_candidates(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                Binaries& binaries, int threads, std::vector<Candidate>& out);

}  // namespace attn::cuda::sm80
