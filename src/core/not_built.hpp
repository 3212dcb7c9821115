// NotBuilt: the stub of a backend that this build omits. All calls return the reason.
#pragma once

#include <string>

#include "core/backend.hpp"

namespace attn::core {

class NotBuilt final : public Backend {
 public:
  NotBuilt(const char* name, Device device, const char* reason)
      : name_(name), device_(device), reason_(reason) {}

  [[nodiscard]] const char* name() const override { return name_; }
  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] bool built() const override { return false; }
  [[nodiscard]] bool usable(std::string& detail) const override {
    detail = reason_;
    return false;
  }
  [[nodiscard]] Result<PlanPointer> plan(Pass, const Problem&, Access,
                                         const Executor&) const override {
    return Result<PlanPointer>::none(reason_);
  }
  Status prepare(const Plan&, const Executor&) const override { return refusal(); }
  Status launch(const Plan&, const Arguments&, const Executor&) const override { return refusal(); }
  Status merge(const MergeArguments&, const Executor&) const override { return refusal(); }
  Status merge_backward(const MergeBackwardArguments&, const Executor&) const override {
    return refusal();
  }
  Status rope(const RopeArguments&, const Executor&) const override { return refusal(); }

 private:
  [[nodiscard]] Status refusal() const {
    return Status::unsupported(std::string(name_).append(": ").append(reason_));
  }

  const char* name_;
  Device device_;
  const char* reason_;
};

}  // namespace attn::core
