// attn_cuda_gpu_test: the family sm90's trial kernels on a GPU of compute capability 9.0: a copy by
// TMA and mbarrier in clusters of 2, plain and captured; two kernels that overlap by programmatic
// dependent launch. Skipped elsewhere.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "cuda/families/sm90/trial.hpp"
#include "cuda/kernels/sm90/trial.cuh"
#include "harness/device.hpp"

namespace attn::cuda::test {
namespace {

using device::trial::OverlapParameters;

class CudaTrialGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    driver = Driver::get(reason);
    if (driver == nullptr) GTEST_SKIP() << reason;
    const core::Status status = device_facts(*driver, 0, facts);
    if (!status.ok()) GTEST_SKIP() << status.message;
    if (facts->capability() != 90) GTEST_SKIP() << "needs 9.0, found " << to_string(*facts);
    const Nvrtc* nvrtc = Nvrtc::get(driver->version(), reason);
    if (nvrtc == nullptr) GTEST_SKIP() << reason;
    queue.emplace(0);
    if (queue->device_name() == "Fake GPU") GTEST_SKIP() << "its kernels do nothing";
    binaries.emplace(Cache(""), driver->version(), nvrtc, "");
    modules.emplace(*binaries);
    context.emplace(*driver, 0);
    ASSERT_TRUE(context->status().ok()) << context->status().message;
  }

  const Kernel& load(const KernelSpec& spec) {
    const Kernel* kernel = nullptr;
    const core::Status status = modules->load(*context, spec, kernel);
    EXPECT_TRUE(status.ok()) << status.message;
    return *kernel;
  }
  template <class Value>
  Value* upload(const std::vector<Value>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(Value));
    auto* memory = static_cast<Value*>(queue->take(bytes));
    queue->upload(memory, values.data(), bytes);
    return memory;
  }
  template <class Value>
  std::vector<Value> download(const Value* from, std::size_t count) {
    std::vector<Value> values(count);
    queue->download(values.data(), from, static_cast<std::int64_t>(count * sizeof(Value)));
    return values;
  }
  // What the primary saw of the secondary, launched after it.
  unsigned overlapped(bool overlap, long long timeout_ns) {
    const sm90::TrialPlan primary = sm90::plan_trial_primary();
    const sm90::TrialPlan secondary = sm90::plan_trial_secondary();
    const Kernel& first = load(primary.spec);
    const Kernel& second = load(secondary.spec);
    OverlapParameters parameters;
    parameters.flag = upload(std::vector<unsigned>{0});
    parameters.seen = upload(std::vector<unsigned>{7});
    parameters.timeout_ns = timeout_ns;
    EXPECT_TRUE(launch(*context, first, primary.grid, stream_of(queue->stream()), parameters).ok());
    EXPECT_TRUE(
        launch(*context, second, secondary.grid, stream_of(queue->stream()), parameters, overlap)
            .ok());
    return download(parameters.seen, 1)[0];
  }

  const Driver* driver = nullptr;
  const DeviceFacts* facts = nullptr;
  std::optional<harness::DeviceQueue> queue;
  std::optional<Binaries> binaries;
  std::optional<Modules> modules;
  std::optional<CurrentContext> context;
};

// A copy of a tensor [2, 256, 3, 64].
struct Copy {
  static constexpr std::size_t kCount = std::size_t{2} * 256 * 3 * 64;
  std::vector<std::uint16_t> values;
  TensorView from;
  std::uint16_t* to = nullptr;
};

TEST_F(CudaTrialGpu, CopiesInClusters) {
  Copy copy;
  for (std::size_t n = 0; n < Copy::kCount; ++n) {
    copy.values.push_back(static_cast<std::uint16_t>(n * 40503u >> 7));
  }
  copy.from = TensorView::contiguous(upload(copy.values), DType::bf16, {2, 256, 3, 64});
  copy.from.device = Device::cuda;
  copy.to = upload(std::vector<std::uint16_t>(Copy::kCount, 0xffff));
  sm90::TrialPlan plan;
  ASSERT_TRUE(sm90::plan_trial_copy(*facts, copy.from, plan).ok());
  const Kernel& kernel = load(plan.spec);
  core::Status status = sm90::launch_trial_copy(*context, kernel, plan, copy.from, copy.to,
                                                stream_of(queue->stream()));
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(download(copy.to, Copy::kCount), copy.values);

  // The same captured into a graph and replayed.
  using Begin = int (*)(void*, int);
  using End = int (*)(void*, void**);
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto begin = reinterpret_cast<Begin>(dlsym(library, "cuStreamBeginCapture_v2"));
  const auto end = reinterpret_cast<End>(dlsym(library, "cuStreamEndCapture"));
  ASSERT_TRUE(begin != nullptr && end != nullptr);
  const std::vector<std::uint16_t> poison(Copy::kCount, 0xffff);
  queue->upload(copy.to, poison.data(), static_cast<std::int64_t>(Copy::kCount * 2));
  ASSERT_EQ(begin(queue->stream(), abi::kCaptureModeRelaxed), 0);
  status = sm90::launch_trial_copy(*context, kernel, plan, copy.from, copy.to,
                                   stream_of(queue->stream()));
  void* graph = nullptr;
  ASSERT_EQ(end(queue->stream(), &graph), 0);
  ASSERT_TRUE(status.ok()) << status.message;
  EXPECT_EQ(download(copy.to, Copy::kCount), poison) << "recorded, not run";
  abi::GraphExec exec = nullptr;
  const DriverApi& api = driver->api();
  ASSERT_EQ(api.cuGraphInstantiateWithFlags(&exec, static_cast<abi::Graph>(graph), 0), 0);
  ASSERT_EQ(api.cuGraphLaunch(exec, stream_of(queue->stream())), 0);
  EXPECT_EQ(download(copy.to, Copy::kCount), copy.values);
  api.cuGraphExecDestroy(exec);
  api.cuGraphDestroy(static_cast<abi::Graph>(graph));
}

TEST_F(CudaTrialGpu, KernelsOverlapByProgrammaticDependentLaunch) {
  EXPECT_EQ(overlapped(true, 2'000'000'000), 1u);
  EXPECT_EQ(overlapped(false, 20'000'000), 0u) << "without the attribute one follows the other";
}

}  // namespace
}  // namespace attn::cuda::test
