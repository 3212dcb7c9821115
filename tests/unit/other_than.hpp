// Values for tests of every field of Problem.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "core/names.hpp"

namespace attn {

// A value of the field that differs from its default.
template <class T>
T other_than(const T& value) {
  if constexpr (std::is_same_v<T, bool>) return !value;
  if constexpr (std::is_same_v<T, std::int64_t>) return value + 3;
  if constexpr (std::is_same_v<T, std::optional<std::int64_t>>) return std::int64_t{0};
  if constexpr (std::is_same_v<T, Extent>) return Extent{true, false, true, true, false};
  if constexpr (std::is_enum_v<T>) {
    for (const auto& entry : core::names_of(T{})) {
      if (entry.value != value) return entry.value;
    }
  }
  return value;
}

}  // namespace attn
