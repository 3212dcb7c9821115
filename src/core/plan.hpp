// Plan: everything that a backend's launch needs for calls of one pass, problem and access on one
// device. Each backend derives its own type; launch never plans again. Immutable once made.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "core/access.hpp"

namespace attn::core {

// A named constant that kernels are compiled or called with.
struct ConfigEntry {
  const char* name = nullptr;
  std::int64_t value = 0;
};

// Appends " name=value", without the space at the beginning of the text.
inline void append_config(std::string& text, const char* name, std::int64_t value) {
  if (!text.empty()) text += ' ';
  text.append(name).append("=").append(std::to_string(value));
}

struct Plan {
  Plan() = default;
  Plan(Pass of_pass, const Problem& of_problem) : pass(of_pass), problem(of_problem) {}
  virtual ~Plan() = default;
  // Generated from the values that launch uses. The caller fills in `backend`.
  [[nodiscard]] virtual PlanSummary summary() const = 0;

  Pass pass = Pass::forward;
  Problem problem;
  // The same for every Access, so that workspace_bytes() can answer without tensors.
  std::int64_t workspace_bytes = 0;

 protected:
  Plan(const Plan&) = default;
  Plan(Plan&&) = default;
  Plan& operator=(const Plan&) = default;
  Plan& operator=(Plan&&) = default;
};

using PlanPointer = std::shared_ptr<const Plan>;

}  // namespace attn::core
