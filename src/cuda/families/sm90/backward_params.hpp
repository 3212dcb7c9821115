// The parameters of sm90/backward.cu for a call: tensor maps.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm90 {

// See Family::set_parameters.
core::Status set_backward_params(const ParameterSources& from, std::span<KernelLaunch> launches,
                                 ParameterMemory& memory);

}  // namespace attn::cuda::sm90
