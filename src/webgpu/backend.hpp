// The WebGPU backend.
#pragma once

#include "core/backend.hpp"

namespace attn::webgpu {

const core::Backend& backend();

}  // namespace attn::webgpu
