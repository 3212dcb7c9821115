// The handlers for XLA's foreign function interface on a CUDA device: stream, device and workspace
// are XLA's. On a driver without a device.
#include <attn/attn.h>
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cstdlib>

#include "../unit/xla_frame.hpp"
#include "cuda/host/nvrtc.hpp"
#include "fake.hpp"

namespace attn::cuda::test {
namespace {

namespace xla = attn::api::xla;
using xla::test::Frame;

constexpr std::int32_t kXlaOrdinal = 1;

class CudaXla : public WithFakeDriver {
 protected:
  void SetUp() override {
    WithFakeDriver::SetUp();
    std::string reason;
    if (Nvrtc::get(0, reason) == nullptr) GTEST_SKIP() << reason;
    setenv("ATTN_CACHE_DIR", ATTN_TEST_CACHE, 1);
    frame.emplace();
    Frame::last().ordinal = kXlaOrdinal;
    Frame::last().stream = this;
    Frame::last().memory = memory(64);
    Arguments a;
    for (TensorView* view : {&a.q, &a.k, &a.v, &a.o}) {
      *view = TensorView::contiguous(nullptr, DType::bf16, {1, 64, 1, 16});
    }
    problem = describe(a);
    rows = {1, 64, 1, 16};
    add_inputs({"q", "k", "v"});
  }
  void TearDown() override {
    attn_xla_set_threads(0);  // drops the context, which knows the fake driver
    WithFakeDriver::TearDown();
  }

  static void* memory(std::uintptr_t block) {
    return reinterpret_cast<void*>((kXlaOrdinal + 1) * kDeviceMemory + (block << 20));
  }
  void add_inputs(std::initializer_list<const char*> names) {
    for (const char* name : names) {
      frame->input(name, xla::DataType::bf16, memory(next++), rows);
    }
  }
  void expect_launched(int launches) {
    EXPECT_GT(fake().launches, launches);
    for (const FakeLaunch& launch : fake().launched) EXPECT_EQ(launch.stream, this);
  }

  std::optional<Frame> frame;
  Problem problem;
  std::vector<std::int64_t> rows;
  std::uintptr_t next = 1;
};

TEST_F(CudaXla, ForwardQueuesOnTheStream) {
  problem.lse = false;
  frame->text("problem", to_string(problem));
  frame->output("o", xla::DataType::bf16, memory(next++), rows);
  const int launches = fake().launches;
  EXPECT_EQ(frame->call(attn_xla_forward_cuda), nullptr) << Frame::last().message;
  expect_launched(launches);
}

TEST_F(CudaXla, BackwardWorksInMemoryOfXla) {
  frame->text("problem", to_string(problem));
  add_inputs({"o", "dout"});
  frame->input("lse", xla::DataType::f32, memory(next++), {1, 1, 64});
  for (const char* name : {"dq", "dk", "dv"}) {
    frame->output(name, xla::DataType::bf16, memory(next++), rows);
  }
  const int launches = fake().launches;
  EXPECT_EQ(frame->call(attn_xla_backward_cuda), nullptr) << Frame::last().message;
  expect_launched(launches);
  EXPECT_GT(Frame::last().allocated, 0U);
  EXPECT_EQ(Frame::last().freed, Frame::last().allocated);
  Frame::last().memory = nullptr;  // XLA has none
  EXPECT_EQ(frame->call(attn_xla_backward_cuda), Frame::error());
  EXPECT_EQ(Frame::last().message, "");
}

TEST_F(CudaXla, ErrorsHaveTheLibrarysText) {
  problem.len_q = 65;
  frame->text("problem", to_string(problem));
  frame->output("o", xla::DataType::bf16, memory(next++), rows);
  EXPECT_EQ(frame->call(attn_xla_forward_cuda), Frame::error());
  EXPECT_EQ(Frame::last().code, xla::ErrorCode::invalid_argument);
  EXPECT_NE(Frame::last().message.find("forward: shape of q: found bf16"), std::string::npos)
      << Frame::last().message;
}

}  // namespace
}  // namespace attn::cuda::test
