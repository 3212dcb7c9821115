// Constants that all kernels of scores read from their Config.
#pragma once
#include "config.cuh"

namespace sm80 {

inline constexpr int kDtype = config::dtype;
inline constexpr bool kF32 = kDtype == config::f32;
inline constexpr int kTileQ = config::tile_q;
inline constexpr int kTileKv = config::tile_kv;
inline constexpr int kWarps = config::warps;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kStages = config::stages;

}  // namespace sm80
