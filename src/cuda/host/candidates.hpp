// Candidates: the tiles worth measuring for a shape, and which of them compile to what they
// promise.
#pragma once

#include <string>
#include <vector>

#include "cuda/host/plan.hpp"
#include "cuda/host/table.hpp"

namespace attn::cuda {

struct Candidate {
  Tiles tiles;
  std::string flaw;  // why it is not worth measuring; empty: it is
};

// All tiles that fit the device by the table's model (misfit()). A pure function.
std::vector<Tiles> candidate_tiles(const Shape& shape, const DeviceFacts& facts);

// Compiles the plan of each on so many threads (0: the processors), which later calls find in
// `binaries`; those that spill much or leave no room for their blocks have a flaw. Of a problem
// that make_plan() takes.
core::Status compile_candidates(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                Binaries& binaries, int threads, std::vector<Candidate>& out);

}  // namespace attn::cuda
