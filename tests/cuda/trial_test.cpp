// The family sm90's trial kernels on a driver without a device: plans, parameters, attributes; and
// what NVRTC makes of them. trial_gpu_test.cpp runs them.
#include "cuda/families/sm90/trial.hpp"

#include <cstring>
#include <optional>

#include "cuda/host/occupancy.hpp"
#include "cuda/kernels/sm90/trial.cuh"
#include "facts.hpp"
#include "fake.hpp"
#include "folder.hpp"

namespace attn::cuda::test {
namespace {

TensorView tensor(std::int64_t rows) {
  TensorView view =
      TensorView::contiguous(reinterpret_cast<void*>(kDeviceMemory), DType::bf16, {2, rows, 3, 64});
  view.device = Device::cuda;
  return view;
}

TEST(CudaTrial, PlansForItsDevicesOnly) {
  sm90::TrialPlan plan;
  ASSERT_TRUE(sm90::plan_trial_copy(h200(), tensor(256), plan).ok());
  EXPECT_EQ(plan.spec.cluster, 2u);
  EXPECT_EQ(plan.grid.x, 2u * 4 * 3);
  const core::Status old = sm90::plan_trial_copy(*typical_facts(80), tensor(256), plan);
  EXPECT_EQ(old.code, ErrorCode::unsupported);
  EXPECT_NE(old.message.find("needs compute capability 9.0"), std::string::npos) << old.message;
  EXPECT_EQ(sm90::plan_trial_copy(h200(), tensor(192), plan).code, ErrorCode::invalid_argument);
}

class CudaTrialLaunch : public WithFakeDriver {
 protected:
  void SetUp() override {
    WithFakeDriver::SetUp();
    std::string reason;
    const Nvrtc* nvrtc = Nvrtc::get(0, reason);
    if (nvrtc == nullptr) GTEST_SKIP() << reason;
    binaries.emplace(Cache(folder.path()), 0, nvrtc, "");
    modules.emplace(*binaries);
  }

  Folder folder;
  std::optional<Binaries> binaries;
  std::optional<Modules> modules;
};

TEST_F(CudaTrialLaunch, CarriesClustersAndItsOwnParameters) {
  const CurrentContext context(fake_driver(), 0);
  sm90::TrialPlan plan;
  ASSERT_TRUE(sm90::plan_trial_copy(h200(), tensor(256), plan).ok());
  const Kernel* kernel = nullptr;
  const core::Status loaded = modules->load(context, plan.spec, kernel);
  ASSERT_TRUE(loaded.ok()) << loaded.message;
  const Binary* binary = nullptr;
  ASSERT_TRUE(binaries->get(plan.spec.config, 90, binary).ok());
  EXPECT_EQ(flaw_of(read_resources(binary->log), plan.spec, h200()), "");
  fake().parameter_bytes = sizeof(device::trial::CopyParameters);
  char to = 0;
  const core::Status status =
      sm90::launch_trial_copy(context, *kernel, plan, tensor(256), &to, nullptr);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(fake().num_attributes, 1u);
  EXPECT_EQ(fake().first_attribute, abi::kLaunchClusterDimension);
  EXPECT_EQ(fake().map_box[1], 64u);
  ASSERT_FALSE(fake().launched.empty());
  device::trial::CopyParameters given;
  std::memcpy(&given, fake().launched.back().parameters.data(), sizeof given);
  EXPECT_EQ(static_cast<void*>(given.to), &to);
  EXPECT_EQ(given.rows, 256);
  EXPECT_EQ(given.heads, 3);
}

TEST_F(CudaTrialLaunch, OverlapsByAnAttribute) {
  const CurrentContext context(fake_driver(), 0);
  const sm90::TrialPlan secondary = sm90::plan_trial_secondary();
  const Kernel* kernel = nullptr;
  ASSERT_TRUE(modules->load(context, secondary.spec, kernel).ok());
  const device::trial::OverlapParameters parameters;
  ASSERT_TRUE(launch(context, *kernel, secondary.grid, nullptr, parameters, true).ok());
  EXPECT_EQ(fake().num_attributes, 1u);
  EXPECT_EQ(fake().first_attribute, abi::kLaunchProgrammaticSerialization);
  ASSERT_TRUE(launch(context, *kernel, secondary.grid, nullptr, parameters).ok());
  EXPECT_EQ(fake().num_attributes, 0u);
}

}  // namespace
}  // namespace attn::cuda::test
