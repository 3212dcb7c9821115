// Passes by one letter, for tables of refusals.
#pragma once

#include <attn/problem.hpp>

namespace attn {

inline constexpr Pass kF = Pass::forward;
inline constexpr Pass kB = Pass::backward;
inline constexpr Pass kD = Pass::decode;

}  // namespace attn
