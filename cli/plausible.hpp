// Input that the library would compute, but that can't be what the user means.
#pragma once

#include <attn/attn.hpp>

#include "cli/inputs.hpp"

namespace attn::cli {

// Without --layout: refuses a file whose metadata names another layout, heads that do not divide,
// and more heads than rows in q and k alike. Says what to pass. Throws BadInput.
void check_layout(const InputOptions& options, const Inputs& inputs);

// Refuses lengths outside of their tensors and cumulative lengths that go down, which kernels
// clamp: they may not read lengths on the host. Throws BadInput.
void check_lengths(const Problem& problem, const Arguments& arguments);

}  // namespace attn::cli
