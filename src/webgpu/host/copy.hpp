// Copies of tensors' rows, by copy.wgsl.
#pragma once

#include "core/status.hpp"
#include "webgpu/host/geometry.hpp"
#include "webgpu/host/step.hpp"

namespace attn::webgpu {

struct CopyOptions {
  bool accumulate = false;      // adds to what is there
  bool nonfinite_zero = false;  // writes 0 for non-finite elements ...
  View count{.rows = 0};        // ... and adds their number here
};

// Adds the steps that copy every element of `from` to the same place of `to`, another type or
// layout; dimensions that `from` does not have become 0.
core::Status add_copy(Work& work, const DeviceFacts& facts, const View& from, const View& to,
                      const CopyOptions& options);

}  // namespace attn::webgpu
