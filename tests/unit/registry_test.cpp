// The choice of a backend, with made-up backends.
#include "core/registry.hpp"

#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "core/not_built.hpp"

namespace attn::core {
namespace {

struct FakePlan final : Plan {
  using Plan::Plan;
  [[nodiscard]] PlanSummary summary() const override { return {}; }
};

class Fake final : public Backend {
 public:
  Fake(const char* name, Device device, bool automatic, const char* unusable, const char* lacks)
      : name_(name), device_(device), automatic_(automatic), unusable_(unusable), lacks_(lacks) {}
  [[nodiscard]] const char* name() const override { return name_; }
  [[nodiscard]] Device device() const override { return device_; }
  [[nodiscard]] bool automatic() const override { return automatic_; }
  [[nodiscard]] bool usable(std::string& detail) const override {
    detail = unusable_;
    return detail.empty();
  }
  [[nodiscard]] Result<PlanPointer> plan(Pass pass, const Problem& problem, Access,
                                         const Executor&) const override {
    if (*lacks_ != '\0') return Result<PlanPointer>::none(lacks_);
    return PlanPointer(std::make_shared<const FakePlan>(pass, problem));
  }
  Status prepare(const Plan&, const Executor&) const override { return {}; }
  Status launch(const Plan&, const Arguments&, const Executor&) const override { return {}; }
  Status merge(const MergeArguments&, const Executor&) const override { return {}; }
  Status merge_backward(const MergeBackwardArguments&, const Executor&) const override {
    return {};
  }
  Status rope(const RopeArguments&, const Executor&) const override { return {}; }

 private:
  const char* name_;
  Device device_;
  bool automatic_;
  const char* unusable_;
  const char* lacks_;
};

const Fake kGpu("gpu", Device::cuda, true, "no driver", "");
const Fake kPlain("plain", Device::host, true, "", "no dropout");
const Fake kFull("full", Device::host, true, "", "");
const Fake kSlow("slow", Device::host, false, "", "");
const std::array<const Backend*, 4> kAll{&kGpu, &kPlain, &kFull, &kSlow};
const Problem kProblem;
const Executor kExecutor;
const PlanRequest kRequest{Pass::forward, kProblem, Access::tma, kExecutor};

Demand demand(std::string_view forced, Device device = Device::host) {
  return {forced, device, &kRequest};
}

TEST(Registry, TakesTheFirstThatCan) {
  const Answer answer = choose(kAll, demand(""));
  EXPECT_EQ(answer.backend, &kFull);
  ASSERT_NE(answer.plan, nullptr);
  EXPECT_EQ(answer.plan->problem, kProblem);
  // Without a problem the first usable one will do.
  const Answer any = choose(kAll, {"", Device::host, nullptr});
  EXPECT_EQ(any.backend, &kPlain);
  EXPECT_EQ(any.plan, nullptr);
}

TEST(Registry, ForcedBackendOrItsReason) {
  EXPECT_EQ(choose(kAll, demand("slow")).backend, &kSlow);
  EXPECT_EQ(choose(kAll, demand("plain")).backend, nullptr);
  EXPECT_EQ(reasons(kAll, demand("plain")),
            "gpu: the context asks for plain; plain: no dropout; full: the context asks for plain; "
            "slow: the context asks for plain");
}

TEST(Registry, DeviceDecides) {
  EXPECT_EQ(choose(kAll, demand("", Device::cuda)).backend, nullptr);
  EXPECT_EQ(reasons(kAll, demand("", Device::cuda)),
            "gpu: no driver; plain: works on host memory, the tensors are on cuda; full: works on "
            "host memory, the tensors are on cuda; slow: only runs when it is requested by name");
}

TEST(Registry, Names) {
  EXPECT_EQ(names(kAll), "gpu, plain, full, slow");
  EXPECT_EQ(find(kAll, "full"), &kFull);
  EXPECT_EQ(find(kAll, "other"), nullptr);
}

TEST(Registry, NotBuiltSaysWhy) {
  const NotBuilt stub("cuda", Device::cuda, "this build has none");
  std::string detail;
  EXPECT_FALSE(stub.built());
  EXPECT_FALSE(stub.usable(detail));
  EXPECT_EQ(detail, "this build has none");
  EXPECT_EQ(stub.plan(Pass::forward, kProblem, Access::tma, {}).reason(), "this build has none");
  const FakePlan plan;
  for (const Status& status :
       {stub.prepare(plan, {}), stub.launch(plan, {}, {}), stub.merge({}, {}),
        stub.merge_backward({}, {}), stub.rope({}, {})}) {
    EXPECT_EQ(status.code, ErrorCode::unsupported);
    EXPECT_EQ(status.message, "cuda: this build has none");
  }
}

}  // namespace
}  // namespace attn::core
