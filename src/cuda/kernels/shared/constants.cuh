// Constants that need no Config.
#pragma once

namespace shared {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

}  // namespace shared
