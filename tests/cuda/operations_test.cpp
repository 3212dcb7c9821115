// merge, its backward and rope on the fake driver: what is launched with which parameters, and what
// is refused.
#include "cuda/operations.hpp"

#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cstring>
#include <optional>

#include "cuda/host/nvrtc.hpp"
#include "cuda/kernels/passes/merge.cuh"
#include "cuda/kernels/passes/rope.cuh"
#include "fake.hpp"

namespace attn::cuda::test {
namespace {

using device::merge::kLines;

TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
  static std::uintptr_t next = kDeviceMemory;
  next += std::uintptr_t{1} << 24;
  TensorView view = TensorView::contiguous(reinterpret_cast<void*>(next), dtype, shape);
  view.device = Device::cuda;
  return view;
}

MergeArguments merge_of(DType dtype) {
  MergeArguments a;
  for (TensorView* view : {&a.o1, &a.o2, &a.o}) *view = tensor(dtype, {2, 300, 4, 64});
  for (TensorView* view : {&a.lse1, &a.lse2, &a.lse}) *view = tensor(DType::f32, {2, 4, 300});
  return a;
}

MergeBackwardArguments backward_of(DType dtype) {
  const MergeArguments a = merge_of(dtype);
  MergeBackwardArguments b{a.o1, a.lse1, a.o2, a.lse2, a.o, a.lse, {}, {}, {}, {}, {}, {}, {}};
  b.dout = tensor(dtype, {2, 300, 4, 64});
  b.dout1 = tensor(dtype, {2, 300, 4, 64});
  return b;
}

TEST(CudaMerge, ParametersAreBytesOfTheViews) {
  MergeArguments a = merge_of(DType::bf16);
  a.o1 = tensor(DType::f32, {2, 300, 4, 64});
  a.o2 = {};
  // Strides above 32 bits.
  a.o.strides = {std::int64_t{300} << 32, std::int64_t{1} << 32, 64, 1};
  const device::merge::Params p = merge_params(a);
  EXPECT_EQ(p.sizes.batch, 2);
  EXPECT_EQ(p.sizes.rows, 300);
  EXPECT_EQ(p.sizes.heads, 4);
  EXPECT_EQ(p.sizes.dim, 64);
  EXPECT_EQ(p.o1.type, static_cast<int>(DType::f32));
  EXPECT_EQ(p.o1.stride_row, 4 * 64 * 4);
  EXPECT_EQ(p.o1.vector, 1);
  EXPECT_EQ(p.o2.base, nullptr);
  EXPECT_EQ(p.o.stride_row, std::int64_t{1} << 33);
  EXPECT_EQ(p.o.stride_batch, std::int64_t{300} << 33);
  EXPECT_EQ(p.o.vector, 0) << "rows 8 MiB apart are not loaded as vectors";
  EXPECT_EQ(p.lse.stride_head, 300 * 4);
  EXPECT_EQ(p.lse.stride_row, 4);
  a.o.data = static_cast<char*>(a.o.data) + 2;
  EXPECT_EQ(merge_params(a).o.vector, 0);
}

TEST(CudaMerge, PackedTensorsAreOneSequence) {
  MergeBackwardArguments a = backward_of(DType::f16);
  for (TensorView* view : {&a.o1, &a.o2, &a.o, &a.dout, &a.dout1}) {
    *view = tensor(DType::f16, {70, 3, 20});
  }
  for (TensorView* view : {&a.lse1, &a.lse2, &a.lse}) *view = tensor(DType::f32, {3, 70});
  const device::merge::BackwardParams p = merge_params(a);
  EXPECT_EQ(p.sizes.batch, 1);
  EXPECT_EQ(p.sizes.rows, 70);
  EXPECT_EQ(p.sizes.heads, 3);
  EXPECT_EQ(p.dout1.stride_row, 3 * 20 * 2);
  EXPECT_EQ(p.dout1.vector, 0) << "rows of 40 bytes";
  EXPECT_EQ(p.lse1.stride_head, 70 * 4);
  EXPECT_EQ(p.dlse.base, nullptr);
}

TEST(CudaMerge, BlocksCoverAllLines) {
  EXPECT_EQ(merge_blocks({2, 300, 4, 64}), (2 * 300 * 4 + kLines - 1) / kLines);
  EXPECT_EQ(merge_blocks({2, 0, 4, 64}), 0);
  EXPECT_EQ(merge_blocks({1 << 20, 1 << 20, 8, 1}), std::int64_t{1} << 38);
}

RopeArguments rope_of(DType dtype) {
  RopeArguments a;
  a.x = tensor(dtype, {2, 300, 4, 64});
  a.out = tensor(dtype, {2, 300, 4, 64});
  return a;
}

TEST(CudaRope, ParametersOfAPaddedTensor) {
  RopeArguments a = rope_of(DType::bf16);
  a.rot_dim = 32;
  a.inverse = true;
  a.pos_offset = -4;
  a.positions = tensor(DType::i32, {1, 300});
  const device::rope::Params p = rope_params(a);
  EXPECT_EQ(p.common.batch, 2);
  EXPECT_EQ(p.common.max_len_q, 300);
  EXPECT_EQ(p.offset, -4);
  EXPECT_EQ(p.inverse, 1);
  EXPECT_EQ(p.every_row, 1);
  EXPECT_EQ(p.gradients, 0);
  EXPECT_EQ(p.jobs[0].pairs, 16);
  EXPECT_EQ(p.jobs[0].dim, 64);
  EXPECT_EQ(p.jobs[0].from.vector, 1);
  EXPECT_EQ(p.jobs[0].blocks, 2u * 38) << "8 rows each";
  EXPECT_EQ(p.jobs[1].blocks, 0u);
  EXPECT_EQ(p.jobs[0].positions.base, a.positions.data);
  EXPECT_EQ(p.jobs[0].positions.stride_batch, 0) << "the same for all sequences";
  a.rot_dim = 24;
  EXPECT_EQ(rope_params(a).jobs[0].from.vector, 0) << "halves begin at multiples of 12 elements";
  a.style = Rope::interleaved;
  EXPECT_EQ(rope_params(a).jobs[0].from.vector, 1);
}

TEST(CudaRope, RowsOfPackedTensorsCountFromTheirSequence) {
  RopeArguments a;
  a.x = a.out = tensor(DType::f32, {70, 3, 20});
  EXPECT_EQ(rope_params(a).common.batch, 0) << "from the tensor's start";
  a.cu_len = tensor(DType::i32, {5});
  const device::rope::Params p = rope_params(a);
  EXPECT_EQ(p.common.batch, 4);
  EXPECT_EQ(p.common.total_q, 70);
  EXPECT_EQ(p.common.packed_q, 1);
  EXPECT_EQ(p.common.cu_len_q.data, a.cu_len.data);
  EXPECT_EQ(p.jobs[0].packed, 1);
  EXPECT_EQ(p.jobs[0].blocks, 9u);
}

class CudaOperations : public WithFakeDriver {
 protected:
  void SetUp() override {
    WithFakeDriver::SetUp();
    std::string reason;
    if (Nvrtc::get(0, reason) == nullptr) GTEST_SKIP() << reason;
    ContextOptions options;
    options.backend = "cuda";
    options.cache_dir = ATTN_TEST_CACHE;
    context_.emplace(options);
    fake().parameter_bytes = sizeof(device::merge::Params);
  }

  // The message of what a call throws. It launches nothing.
  template <class Call>
  std::string refused(ErrorCode code, const Call& call) {
    const int launches = fake().launches;
    std::string message = "nothing was thrown";
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      message = error.what();
    }
    EXPECT_EQ(fake().launches, launches);
    return message;
  }

  std::optional<Context> context_;
};

TEST_F(CudaOperations, AreOneLaunchOnTheStream) {
  MergeArguments a = merge_of(DType::bf16);
  a.stream = this;
  merge(*context_, a);
  ASSERT_EQ(fake().launched.size(), 1u);
  const FakeLaunch& launch = fake().launched[0];
  EXPECT_EQ(launch.stream, this);
  EXPECT_EQ(launch.blocks, 75u);
  EXPECT_EQ(launch.threads, static_cast<unsigned>(device::merge::kThreads));
  device::merge::Params params;
  ASSERT_EQ(launch.parameters.size(), sizeof params);
  std::memcpy(static_cast<void*>(&params), launch.parameters.data(), sizeof params);
  EXPECT_EQ(params.o2.base, a.o2.data);
  EXPECT_EQ(params.sizes.rows, 300);
  merge_backward(*context_, backward_of(DType::f32));
  EXPECT_EQ(fake().launched.size(), 2u);
  EXPECT_EQ(fake().launched[1].stream, nullptr);
  rope(*context_, rope_of(DType::f16));
  ASSERT_EQ(fake().launched.size(), 3u);
  EXPECT_EQ(fake().launched[2].blocks, 76u);
  fake().launched.pop_back();
  // No output is given, or it is empty.
  MergeBackwardArguments nothing = backward_of(DType::bf16);
  nothing.dout1 = {};
  merge_backward(*context_, nothing);
  for (TensorView* view : {&a.o1, &a.o2, &a.o}) view->shape[1] = 0;
  for (TensorView* view : {&a.lse1, &a.lse2, &a.lse}) view->shape[2] = 0;
  merge(*context_, a);
  EXPECT_EQ(fake().launched.size(), 2u);
}

TEST_F(CudaOperations, RefuseWithReasons) {
  MergeArguments wide = merge_of(DType::f64);
  for (TensorView* view : {&wide.lse1, &wide.lse2, &wide.lse}) view->dtype = DType::f64;
  EXPECT_EQ(refused(ErrorCode::unsupported, [&] { merge(*context_, wide); }),
            "cuda: merge: no kernel for f64 on CUDA; f32, f16 and bf16 are supported");
  EXPECT_EQ(refused(ErrorCode::unsupported, [&] { rope(*context_, rope_of(DType::f64)); }),
            "cuda: rope: no kernel for f64 on CUDA; f32, f16 and bf16 are supported");
  RopeArguments heads;
  heads.x = heads.out = tensor(DType::bf16, {1, 1, (1 << 23) + 1, 2});
  EXPECT_EQ(refused(ErrorCode::unsupported, [&] { rope(*context_, heads); }),
            "cuda: rope: heads: found 8388609; accepted up to 2^23 on CUDA");
  MergeBackwardArguments other = backward_of(DType::bf16);
  other.lse2.data = reinterpret_cast<void*>(4096);
  EXPECT_EQ(refused(ErrorCode::invalid_argument, [&] { merge_backward(*context_, other); }),
            "cuda: data of lse2: found a pointer that CUDA doesn't know (host memory?); accepted "
            "memory of cuda:0");
}

TEST_F(CudaOperations, AreRecordedByACaptureOnceTheyAreLoaded) {
  own_context(77);  // where nothing was loaded before
  fake().capturing = 1;
  EXPECT_NE(refused(ErrorCode::invalid_argument, [&] { merge(*context_, merge_of(DType::bf16)); })
                .find("found a capturing stream before the kernel was loaded"),
            std::string::npos);
  fake().capturing = 0;
  merge(*context_, merge_of(DType::bf16));
  fake().capturing = 1;
  const int launches = fake().launches;
  merge(*context_, merge_of(DType::f32));
  EXPECT_EQ(fake().launches, launches + 1) << "the same kernel serves every type";
}

}  // namespace
}  // namespace attn::cuda::test
