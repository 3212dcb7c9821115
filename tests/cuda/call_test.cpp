// A call's kernels as the driver is given them: order, grids and the Arguments structure.
#include "cuda/host/call.hpp"

#include <cstring>
#include <vector>

#include "core/validate.hpp"
#include "cuda/host/arguments.hpp"
#include "facts.hpp"
#include "fake.hpp"

namespace attn::cuda::test {
namespace {

struct Seen {
  std::string entry;
  unsigned blocks;
  unsigned threads;
  unsigned shared_bytes;
  device::Arguments arguments;
};

class CudaCall : public WithFakeDriver {
 protected:
  CudaCall() {
    Arguments& a = arguments;
    for (TensorView* view : {&a.q, &a.k, &a.v, &a.o}) *view = make(DType::bf16, {2, 300, 4, 64});
    a.lse = make(DType::f32, {2, 4, 300});
  }

  // Device memory of its own, that nobody follows.
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    next_ += 1 << 24;
    TensorView view = TensorView::contiguous(reinterpret_cast<void*>(next_), dtype, shape);
    view.device = Device::cuda;
    return view;
  }

  // What run() launches.
  std::vector<Seen> launched(Pass pass, const Problem& problem) {
    const core::Status valid = core::validate(pass, problem, arguments);
    EXPECT_TRUE(valid.ok()) << valid.message;
    const DeviceFacts facts = h200();
    const core::Capability capability = check_support(pass, problem, facts);
    EXPECT_TRUE(capability.supported) << capability.reason;
    const DevicePlan plan = make_plan(pass, problem, facts);
    const CurrentContext context(fake_driver(), 0);
    std::vector<Kernel> kernels(plan.num_kernels);
    DeviceCall call{context, facts, pass, problem, arguments, plan, {}, stream_of(this), nullptr};
    for (std::size_t i = 0; i < plan.num_kernels; ++i) {
      kernels[i].spec = plan.kernels[i];
      kernels[i].function = reinterpret_cast<abi::Function>(i + 1);
      call.kernels[i] = &kernels[i];
    }
    fake().parameter_bytes = sizeof(device::Arguments);
    fake().launched.clear();
    const core::Status status = run(call);
    EXPECT_TRUE(status.ok()) << status.message;
    std::vector<Seen> list;
    for (const FakeLaunch& launch : fake().launched) {
      EXPECT_EQ(launch.stream, this);
      Seen seen{plan.kernels[launch.function - 1].entry,
                launch.blocks,
                launch.threads,
                launch.shared_bytes,
                {}};
      EXPECT_EQ(launch.parameters.size(), sizeof(seen.arguments));
      std::memcpy(&seen.arguments, launch.parameters.data(), sizeof(seen.arguments));
      list.push_back(seen);
    }
    return list;
  }

  Arguments arguments;

 private:
  std::uintptr_t next_ = kDeviceMemory;
};

TEST_F(CudaCall, Forward) {
  const Problem problem = describe(arguments);
  const auto list = launched(Pass::forward, problem);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].entry, "attn_forward");
  EXPECT_EQ(list[0].blocks, 3u * 4 * 2) << "tiles of 128 of 300 queries, heads, entries";
  EXPECT_EQ(list[0].threads, 128u);
  EXPECT_EQ(list[0].shared_bytes, 50176u);
  EXPECT_EQ(list[0].arguments.max_len_q, 300);
  EXPECT_EQ(list[0].arguments.o.stride_row, 4 * 64 * 2);
}

TEST_F(CudaCall, AFailedLaunchEndsIt) {
  fake().failing = "cuLaunchKernelEx";
  fake().failing_result = abi::kOutOfMemory;
  const Problem problem = describe(arguments);
  const DeviceFacts facts = h200();
  const DevicePlan plan = make_plan(Pass::forward, problem, facts);
  const CurrentContext context(fake_driver(), 0);
  Kernel kernel;
  kernel.spec = plan.kernels[0];
  const DeviceCall call{context, facts,     Pass::forward, problem, arguments,
                        plan,    {&kernel}, nullptr,       nullptr};
  EXPECT_EQ(run(call).code, ErrorCode::out_of_memory);
}

TEST_F(CudaCall, DecodeWithoutACacheIsAForward) {
  Arguments& a = arguments;
  a.q.shape[1] = a.o.shape[1] = 1;
  a.lse.shape[2] = 1;
  Problem problem = describe(a);
  problem.split_keys = 128;
  const auto list = launched(Pass::decode, problem);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].entry, "attn_forward");
  EXPECT_EQ(list[0].blocks, 8u);
}

TEST_F(CudaCall, PackedRowsOfNoEntryComeFirst) {
  Arguments& a = arguments;
  for (TensorView* view : {&a.q, &a.o}) *view = make(DType::bf16, {600, 4, 64});
  a.lse = make(DType::f32, {4, 600});
  a.cu_len_q = make(DType::i32, {3});
  Problem problem = describe(a);
  problem.len_q = 500;
  const auto list = launched(Pass::forward, problem);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].entry, "attn_uncovered");
  EXPECT_EQ(list[0].blocks, 3u);
  EXPECT_EQ(list[0].threads, 256u);
  EXPECT_EQ(list[1].entry, "attn_forward");
  EXPECT_EQ(list[1].blocks, 4u * 4 * 2);
  EXPECT_EQ(list[1].arguments.total_q, 600);
  problem.len_q = 0;  // no entry has rows, and all of them are to be written
  const auto none = launched(Pass::forward, problem);
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].entry, "attn_uncovered");
}

TEST_F(CudaCall, NothingToDoLaunchesNothing) {
  for (const std::size_t dim : {std::size_t{0}, std::size_t{1}}) {
    const Arguments whole = arguments;
    for (TensorView* view : {&arguments.q, &arguments.o}) view->shape[dim] = 0;
    arguments.lse.shape[dim == 0 ? 0 : 2] = 0;
    if (dim == 0) arguments.k.shape[0] = arguments.v.shape[0] = 0;
    EXPECT_TRUE(launched(Pass::forward, describe(arguments)).empty()) << dim;
    arguments = whole;
  }
}

TEST_F(CudaCall, NoKeysIsStillWritten) {
  arguments.k.shape[1] = arguments.v.shape[1] = 0;
  EXPECT_EQ(launched(Pass::forward, describe(arguments)).size(), 1u);
}

}  // namespace
}  // namespace attn::cuda::test
