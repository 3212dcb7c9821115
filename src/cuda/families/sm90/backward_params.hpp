// The parameters of the sm90 backward kernels for a call: tensor maps and the tile counter.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm90 {

// See Family::set_parameters.
core::Status set_backward_params(const ParameterSources& from, std::span<KernelLaunch> launches,
                                 ParameterMemory& memory);

}  // namespace attn::cuda::sm90
