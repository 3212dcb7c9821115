// The format of a refusal: "forward: type of k: found f16; accepted bf16".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.hpp"

namespace attn::core {

inline Status refuse(std::string_view function, std::string_view rule, std::string_view found,
                     std::string_view accepted) {
  std::string message(function);
  message.append(": ").append(rule).append(": found ").append(found);
  message.append("; accepted ").append(accepted);
  return Status::invalid(std::move(message));
}

// "len_q=3"
inline std::string assignment(const char* name, std::int64_t value) {
  return std::string(name) + "=" + std::to_string(value);
}

}  // namespace attn::core
