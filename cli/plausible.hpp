// Refuses input that the library accepts but that is almost certainly a mistake.
#pragma once

#include <attn/attn.hpp>

#include "cli/inputs.hpp"

namespace attn::cli {

// Without --layout: refuses a file with another layout in its metadata, head counts that do not
// divide, and more heads than rows in both q and k. The error says which flag to pass. Throws
// BadInput.
void check_layout(const InputOptions& options, const Inputs& inputs);

// Refuses lengths that exceed their tensors and cumulative lengths that decrease. The library
// clamps them instead, because it may not read lengths on the host. Throws BadInput.
void check_lengths(const Problem& problem, const Arguments& arguments);

}  // namespace attn::cli
