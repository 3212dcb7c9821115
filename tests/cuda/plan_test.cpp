// What the plan takes and refuses, without a device; and the checks of a call's pointers.
#include "cuda/host/plan.hpp"

#include "core/validate.hpp"
#include "cuda/host/call.hpp"
#include "cuda/host/plans.hpp"
#include "fake.hpp"

namespace attn::cuda::test {
namespace {

DeviceFacts h200() {
  DeviceFacts facts;
  facts.name = "NVIDIA H200";
  facts.major = 9;
  facts.num_sms = 132;
  facts.shared_per_block = 232448;
  facts.memory_bytes = std::int64_t{140} << 30;
  return facts;
}

std::string reason(const char* problem, const DeviceFacts& facts = h200(),
                   Pass pass = Pass::forward) {
  const Problem parsed = parse_problem(problem);
  const core::Status status = core::validate_problem(pass, parsed);
  EXPECT_TRUE(status.ok()) << status.message;
  const core::Capability capability = check_support(pass, parsed, facts);
  EXPECT_EQ(capability.supported, capability.reason.empty());
  return capability.reason;
}

TEST(CudaPlan, RefusesWithReasons) {
  EXPECT_EQ(reason("dtype=f8e4m3 dtype_out=bf16 len_q=8 len_kv=8"),
            "no kernel for f8 types on CUDA yet");
  EXPECT_EQ(reason("dtype=f64 len_q=8 len_kv=8"),
            "no kernel for f64 on CUDA; f16 and bf16 are supported");
  EXPECT_EQ(reason("dtype=f32 len_q=8 len_kv=8"),
            "no kernel for f32 on CUDA yet; f16 and bf16 are supported");
  EXPECT_EQ(reason("dtype=bf16 len_q=1 len_kv=64 page_size=16", h200(), Pass::decode),
            "no kernel for paged caches on CUDA yet");
  EXPECT_EQ(reason("dtype=bf16 len_q=1 len_kv=64 len_new=1 lengths_kv", h200(), Pass::decode),
            "no kernel that appends to a cache on CUDA yet");
  EXPECT_EQ(reason("dtype=bf16 len_q=8 len_kv=8 rope=half"),
            "no kernel with rotary embedding on CUDA yet");
  DeviceFacts turing = h200();
  turing.name = "Tesla T4";
  turing.major = 7;
  turing.minor = 5;
  EXPECT_EQ(reason("dtype=f16 len_q=8 len_kv=8", turing),
            "needs compute capability 8.0 or later, cuda:0 is Tesla T4 (7.5, 132 SMs, 140.0 GiB)");
}

TEST(CudaPlan, IsMadeOncePerProblemAndDevice) {
  Plans plans;
  Problem problem = parse_problem("dtype=bf16 len_q=8 len_kv=8");
  const auto first = plans.get(Pass::forward, problem, h200());
  EXPECT_EQ(plans.get(Pass::forward, problem, h200()), first);
  EXPECT_NE(plans.get(Pass::backward, problem, h200()), first);
  DeviceFacts second = h200();
  second.ordinal = 1;
  EXPECT_NE(plans.get(Pass::forward, problem, second), first);
  for (std::int64_t len = 100; len < 5200; ++len) {
    problem.len_q = len;
    plans.get(Pass::forward, problem, h200());
  }
  problem.len_q = 8;
  EXPECT_NE(plans.get(Pass::forward, problem, h200()), first) << "bounded";
}

class CudaPointers : public WithFakeDriver {
 protected:
  CudaPointers() {
    Arguments& a = arguments;
    for (TensorView* view : {&a.q, &a.k, &a.v, &a.o}) {
      *view = TensorView::contiguous(reinterpret_cast<void*>(kDeviceMemory), DType::bf16,
                                     {1, 8, 2, 64});
      view->device = Device::cuda;
    }
    problem = describe(a);
    problem.lse = false;
  }
  [[nodiscard]] core::Status check() const {
    return check_pointers(fake_driver(), Pass::forward, problem, arguments, 0);
  }

  Arguments arguments;
  Problem problem;
};

TEST_F(CudaPointers, AreOfTheDevice) {
  EXPECT_TRUE(check().ok()) << check().message;
  arguments.v.data = reinterpret_cast<void*>(4096);
  EXPECT_EQ(check().code, ErrorCode::invalid_argument);
  EXPECT_EQ(check().message,
            "cuda: data of v: found a pointer that CUDA doesn't know (host memory?); accepted "
            "memory of cuda:0");
  arguments.v.offset_bytes = static_cast<std::int64_t>(kDeviceMemory);
  EXPECT_TRUE(check().ok()) << "the address counts, not the base";
  arguments.workspace = reinterpret_cast<void*>(2 * kDeviceMemory);
  EXPECT_EQ(check().message,
            "cuda: data of workspace: found memory of cuda:1; accepted memory of cuda:0");
  arguments.workspace = nullptr;
  arguments.dropout_p = 0.5;
  const std::uint64_t on_host = 1;
  arguments.seed = &on_host;
  EXPECT_TRUE(check().ok()) << "not read without dropout";
  problem.dropout = true;
  EXPECT_EQ(check().code, ErrorCode::invalid_argument);
}

TEST_F(CudaPointers, OfEmptyTensorsAreNotAsked) {
  arguments.k.shape[1] = 0;
  arguments.v.shape[1] = 0;
  arguments.k.data = nullptr;
  arguments.v.data = nullptr;
  problem.len_kv = 0;
  EXPECT_TRUE(check().ok());
}

}  // namespace
}  // namespace attn::cuda::test
