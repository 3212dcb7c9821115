// The shapes of a call's outputs, as views without memory.
#pragma once

#include <attn/attn.hpp>

namespace attn::core {

// For problems that validate_problem() accepted.
Outputs outputs_of(Pass pass, const Problem& problem);

}  // namespace attn::core
