// Search space of the tuner: the tiles worth measuring for a shape.
#pragma once

#include <vector>

#include "cuda/families/sm80/heuristics.hpp"

namespace attn::cuda::sm80 {

// All tiles for which misfit() is empty. A pure function.
std::vector<Tiles> candidate_tiles(const Shape& shape, const DeviceFacts& facts);

}  // namespace attn::cuda::sm80
