// libattn's own command encoders, recorded, finished and submitted inside of error scopes. An
// encoder that could not be finished is never submitted, because wgpu-native would abort the
// process.
#pragma once

#include <span>
#include <string_view>

#include "core/status.hpp"
#include "webgpu/host/dispatch.hpp"

namespace attn::webgpu {

// Takes ownership of the encoder.
core::Status finish_and_submit(Device& device, std::string_view tried, WGPUCommandEncoder encoder);
core::Status create_encoder(Device& device, WGPUCommandEncoder& encoder);

// record() with optional timestamps at both ends of the pass (null: none).
core::Status record_pass(Device& device, std::span<const BoundDispatch> dispatches,
                         WGPUCommandEncoder encoder, const WGPUPassTimestampWrites* timestamps);

template <class Encode>
core::Status encode_and_submit(Device& device, std::string_view tried, Encode&& encode) {
  WGPUCommandEncoder encoder = nullptr;
  core::Status status = create_encoder(device, encoder);
  if (!status.ok()) return status;
  status = device.scopes().run(tried, [&] { encode(encoder); });
  if (status.ok()) return finish_and_submit(device, tried, encoder);
  device.api().wgpuCommandEncoderRelease(encoder);
  return status;
}

}  // namespace attn::webgpu
