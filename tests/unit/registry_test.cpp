// The choice of a backend, with made-up backends.
#include "core/registry.hpp"

#include <gtest/gtest.h>

#include <array>

#include "core/not_built.hpp"

namespace attn::core {
namespace {

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
  [[nodiscard]] Capability supports(Pass, const Problem&, std::int32_t) const override {
    return {*lacks_ == '\0', lacks_};
  }
  [[nodiscard]] Plan plan(Pass, const Problem&, const Executor&) const override { return {}; }
  Status prepare(Pass, const Problem&, const Plan&, const Executor&) const override { return {}; }
  Status launch(Pass, const Problem&, const Plan&, const Arguments&,
                const Executor&) const override {
    return {};
  }
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

Demand demand(std::string_view forced, Device device = Device::host) {
  return {forced, device, Pass::forward, &kProblem};
}

TEST(Registry, TakesTheFirstThatCan) {
  EXPECT_EQ(choose(kAll, demand("")), &kFull);
  // Without a problem the first usable one will do.
  EXPECT_EQ(choose(kAll, {"", Device::host, {}, nullptr}), &kPlain);
}

TEST(Registry, ForcedBackendOrItsReason) {
  EXPECT_EQ(choose(kAll, demand("slow")), &kSlow);
  EXPECT_EQ(choose(kAll, demand("plain")), nullptr);
  EXPECT_EQ(reasons(kAll, demand("plain")),
            "gpu: the context asks for plain; plain: no dropout; full: the context asks for plain; "
            "slow: the context asks for plain");
}

TEST(Registry, DeviceDecides) {
  EXPECT_EQ(choose(kAll, demand("", Device::cuda)), nullptr);
  EXPECT_EQ(reasons(kAll, demand("", Device::cuda)),
            "gpu: no driver; plain: works on host memory, the tensors are on cuda; full: works on "
            "host memory, the tensors are on cuda; slow: only runs when it is asked for by name");
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
  EXPECT_FALSE(stub.supports(Pass::forward, kProblem, 0).supported);
  EXPECT_EQ(stub.plan(Pass::forward, kProblem, {}).workspace_bytes, 0);
  for (const Status& status : {stub.prepare(Pass::forward, kProblem, {}, {}),
                               stub.launch(Pass::forward, kProblem, {}, {}, {}), stub.merge({}, {}),
                               stub.merge_backward({}, {}), stub.rope({}, {})}) {
    EXPECT_EQ(status.code, ErrorCode::unsupported);
    EXPECT_EQ(status.message, "cuda: this build has none");
  }
}

}  // namespace
}  // namespace attn::core
