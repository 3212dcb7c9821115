// Operations other than attention: rotary embedding, merge of partial results and its gradient.
#pragma once

#include <attn/arguments.hpp>

#include "core/status.hpp"
#include "webgpu/host/device.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu {

// The dispatches of a call. Its arguments were validated, and its tensors are on the device.
core::Status make_work(const RopeArguments& arguments, const DeviceFacts& facts, Work& work);
core::Status make_work(const MergeArguments& arguments, const DeviceFacts& facts, Work& work);
core::Status make_work(const MergeBackwardArguments& arguments, const DeviceFacts& facts,
                       Work& work);

}  // namespace attn::webgpu
