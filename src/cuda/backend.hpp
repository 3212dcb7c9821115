// The CUDA backend.
#pragma once

#include "core/backend.hpp"

namespace attn::cuda {

const core::Backend& backend();

}  // namespace attn::cuda
