// Plans of sm80/decode.cu: few queries on many keys, and every call on a paged cache.
#pragma once

#include <attn/problem.hpp>

#include "cuda/families/family.hpp"

namespace attn::cuda::sm80 {

inline constexpr const char* kDecodeEntry = "attn_decode";

// Whether the decode kernel runs the problem. Otherwise a forward kernel does.
bool uses_decode_kernel(Pass pass, const Problem& problem);
// Why the decode kernel can't run the problem; "" if it can.
std::string decode_refusal(const Problem& problem, const DeviceFacts& facts);
CudaPlan plan_decode(Pass pass, const Problem& problem, const DeviceFacts& facts,
                     core::Access access);
core::Status set_decode_params(const ParameterSources& from, std::span<KernelLaunch> launches,
                               ParameterMemory& memory);

}  // namespace attn::cuda::sm80
