// A call as the device side needs it: checks that only a driver can make.
#pragma once

#include <attn/arguments.hpp>

#include "core/status.hpp"
#include "cuda/host/device.hpp"

namespace attn::cuda {

// invalid_argument where a tensor of the call, the workspace or a number given as a device pointer
// is not memory of the device; see check_pointer. Arguments were validated.
core::Status check_pointers(const Driver& driver, Pass pass, const Problem& problem,
                            const Arguments& arguments, int ordinal);

}  // namespace attn::cuda
