// What <attn/webgpu.hpp> stands on: an engine's device, with errors as values.
#pragma once

#include <attn/webgpu.hpp>
#include <memory>
#include <string>

#include "core/status.hpp"

namespace attn::webgpu {

core::Status wrap(const Handles& handles, std::shared_ptr<Device>& device);
std::string text_of(const Device& device);

}  // namespace attn::webgpu
