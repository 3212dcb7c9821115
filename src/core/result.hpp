// Result: a value, or the reason why there is none.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace attn::core {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
  static Result none(std::string reason) {
    Result result;
    result.reason_ = std::move(reason);
    return result;
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  // Empty when ok().
  [[nodiscard]] const std::string& reason() const { return reason_; }

  // Only when ok().
  [[nodiscard]] const T& value() const& { return *value_; }
  [[nodiscard]] T value() && { return *std::move(value_); }

 private:
  Result() = default;
  std::optional<T> value_;
  std::string reason_;
};

}  // namespace attn::core
