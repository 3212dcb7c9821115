// The parameters of sm90/forward.cu for a call: tensor maps, tile counts and the counter's address.
#pragma once

#include "cuda/families/family.hpp"

namespace attn::cuda::sm90 {

// See Family::set_parameters.
core::Status set_forward_params(const ParameterSources& from, std::span<KernelLaunch> launches,
                                ParameterMemory& memory);

}  // namespace attn::cuda::sm90
