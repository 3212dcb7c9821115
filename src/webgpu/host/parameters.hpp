// What kernels read from their uniform buffer: the structures of the kernels' sources, which
// attn_assemble_kernels turns into C++.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/parameters.hpp"

namespace attn::webgpu {

using U32 = std::uint32_t;

inline constexpr std::size_t kParameterBytes = 512;  // of a dispatch; uniform_alignment divides it
static_assert(sizeof(AttentionParameters) <= kParameterBytes);
static_assert(sizeof(PrepareParameters) <= kParameterBytes);

}  // namespace attn::webgpu
