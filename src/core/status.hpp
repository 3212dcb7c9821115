// Status: an error as a value. The core and the backends return it; src/api turns it into
// attn::Error or a C error code.
#pragma once

#include <attn/context.hpp>
#include <string>
#include <utility>

namespace attn::core {

struct [[nodiscard]] Status {
  ErrorCode code = ErrorCode::ok;
  std::string message;  // function, rule, what was found, what would be accepted

  [[nodiscard]] bool ok() const { return code == ErrorCode::ok; }
  static Status invalid(std::string message) {
    return {ErrorCode::invalid_argument, std::move(message)};
  }
  static Status unsupported(std::string message) {
    return {ErrorCode::unsupported, std::move(message)};
  }
};

}  // namespace attn::core
