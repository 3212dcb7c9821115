// Result: a value, or one line that says why there is none.
#pragma once

#include <optional>
#include <string>
#include <utility>

namespace attn::files {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose
  static Result failure(std::string error) {
    Result result;
    result.error_ = std::move(error);
    return result;
  }

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  // Empty when ok().
  [[nodiscard]] const std::string& error() const { return error_; }

  // Only when ok().
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Result() = default;
  std::optional<T> value_;
  std::string error_;
};

}  // namespace attn::files
