// attn_cuda_devices_test: several CUDA devices with one library and one Context: each computes,
// also while another is current and in several threads at once, and memory or a stream of another
// is refused. Needs two GPUs; skipped elsewhere.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "harness/check.hpp"
#include "harness/device.hpp"

namespace attn::cuda::test {
namespace {

using harness::Case;
using harness::CheckReport;
using harness::DeviceQueue;

ContextOptions cuda_options() {
  ContextOptions options;
  options.backend = "cuda";
  return options;
}

std::vector<Case> cases_of_all_kinds() {
  std::vector<Case> list;
  for (const char* text :
       {"forward : dtype=bf16 batch=2 heads_q=4 heads_kv=2 len_q=200 len_kv=333 dim_qk=64 "
        "dim_vo=64 causal lse",
        "forward : dtype=f16 heads_q=2 heads_kv=2 len_q=130 len_kv=97 dim_qk=128 dim_vo=128 "
        "bias=hqk dropout lse",
        "backward : dtype=bf16 batch=2 heads_q=4 heads_kv=2 len_q=150 len_kv=333 dim_qk=64 "
        "dim_vo=64 causal",
        "backward : dtype=bf16 heads_q=2 heads_kv=2 len_q=130 len_kv=97 dim_qk=128 dim_vo=128 "
        "bias=hqk dbias"}) {
    list.push_back(harness::parse_case(text));
  }
  return list;
}

class CudaDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    try {
      for (const std::int32_t ordinal : {0, 1}) queues_[ordinal].emplace(ordinal);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
    if (queues_[0]->device_name() == "Fake GPU") GTEST_SKIP() << "its kernels do nothing";
  }

  // Every case on a device, each compared with the reference.
  void compute(std::int32_t ordinal) {
    for (const Case& c : cases_of_all_kinds()) {
      const CheckReport report = harness::run_case(context_, c, &*queues_[ordinal], "cuda");
      EXPECT_TRUE(report.passed) << "cuda:" << ordinal << ", " << harness::to_string(c) << ": "
                                 << report.message;
    }
  }

  std::optional<DeviceQueue> queues_[2];
  Context context_{cuda_options()};
};

TEST_F(CudaDevices, EachComputes) {
  for (const std::int32_t ordinal : {0, 1, 0, 1}) compute(ordinal);
}

TEST_F(CudaDevices, WhileAnotherIsCurrent) {
  for (const std::int32_t ordinal : {0, 1}) {
    const auto current = queues_[1 - ordinal]->current();
    compute(ordinal);
  }
}

TEST_F(CudaDevices, InThreadsOfTheirOwn) {
  std::vector<std::thread> threads;
  for (const std::int32_t ordinal : {0, 1}) {
    threads.emplace_back([this, ordinal] {
      for (int turn = 0; turn < 3; ++turn) compute(ordinal);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A forward on cuda:1.
struct Call {
  explicit Call(DeviceQueue& queue) {
    for (TensorView* view : {&arguments.q, &arguments.k, &arguments.v, &arguments.o}) {
      constexpr std::int64_t kBytes = 64 * 16 * 2;
      *view = TensorView::contiguous(queue.take(kBytes), DType::bf16, {1, 64, 1, 16});
      view->device = Device::cuda;
      view->ordinal = queue.ordinal();
      const std::vector<unsigned char> zeros(kBytes);
      queue.upload(view->data, zeros.data(), kBytes);
    }
    arguments.stream = queue.stream();
    problem = describe(arguments);
  }
  Arguments arguments;
  Problem problem;
};

TEST_F(CudaDevices, MemoryAndStreamsOfAnotherAreRefused) {
  const Call own(*queues_[1]);
  const Call other(*queues_[0]);
  const auto refused = [&](const Arguments& arguments) {
    std::string message = "nothing was thrown";
    try {
      forward(context_, own.problem, arguments);
      queues_[1]->synchronize();
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_NO_THROW(forward(context_, own.problem, own.arguments)) << "after: " << message;
    EXPECT_NO_THROW(queues_[1]->synchronize()) << "after: " << message;
    return message;
  };
  Arguments bad = own.arguments;
  bad.k.data = other.arguments.k.data;
  EXPECT_EQ(refused(bad), "cuda: data of k: found memory of cuda:0; accepted memory of cuda:1");
  bad = own.arguments;
  bad.k.ordinal = 0;
  EXPECT_NE(refused(bad).find("device of k: found cuda:0; accepted cuda:1, where q is"),
            std::string::npos);
  bad = own.arguments;
  bad.stream = other.arguments.stream;
  EXPECT_NE(refused(bad).find("launching"), std::string::npos) << refused(bad);
}

}  // namespace
}  // namespace attn::cuda::test
