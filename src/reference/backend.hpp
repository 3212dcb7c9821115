// The reference as a backend, "reference": chosen only when the caller forces it.
#pragma once

#include "core/backend.hpp"

namespace attn::reference {

const core::Backend& backend();

}  // namespace attn::reference
