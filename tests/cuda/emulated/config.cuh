// What emulated kernels are compiled for.
#pragma once
#include "emulated/device.hpp"

namespace config {
inline constexpr int none = 0;
inline constexpr int f32 = 1;
inline constexpr int f16 = 2;
inline constexpr int bf16 = 3;
inline constexpr int tile_q = 64;
inline constexpr int by_elements = 0;
}  // namespace config
