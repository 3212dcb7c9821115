// The uniform parameters of kernels. attn_assemble_kernels generates the structures from the WGSL
// sources.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/parameters.hpp"

namespace attn::webgpu {

using U32 = std::uint32_t;

inline U32 u32(std::int64_t value) {
  return static_cast<U32>(value);
}

inline constexpr std::size_t kParameterBytes = 512;  // per dispatch; multiple of uniform_alignment
static_assert(sizeof(AttentionParameters) <= kParameterBytes);
static_assert(sizeof(PrepareParameters) <= kParameterBytes);

}  // namespace attn::webgpu
