// TensorView: strides, text, sizes and names of types.
#include <gtest/gtest.h>

#include <attn/attn.hpp>

namespace attn {
namespace {

TEST(Tensor, ContiguousAndTransposed) {
  float data[24] = {};
  const TensorView view = TensorView::contiguous(data, DType::f32, {2, 3, 4, 1});
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.rank, 4);
  EXPECT_EQ(view.strides, (std::array<std::int64_t, 4>{12, 4, 1, 1}));
  const TensorView turned = view.transposed(1, 2);
  EXPECT_EQ(turned.shape, (std::array<std::int64_t, 4>{2, 4, 3, 1}));
  EXPECT_EQ(turned.strides, (std::array<std::int64_t, 4>{12, 1, 4, 1}));
  EXPECT_FALSE(TensorView{}.given());
  EXPECT_EQ(TensorView::contiguous(data, DType::f32, {3, 0, 2}).strides[0], 2);
}

TEST(Tensor, RefusesImpossibleRanks) {
  EXPECT_THROW(TensorView::contiguous(nullptr, DType::f32, {1, 1, 1, 1, 1}), Error);
  EXPECT_THROW(TensorView::contiguous(nullptr, DType::f32, {}), Error);
  const TensorView view = TensorView::contiguous(nullptr, DType::f32, {2, 3});
  EXPECT_THROW(static_cast<void>(view.transposed(0, 2)), Error);
  EXPECT_THROW(static_cast<void>(view.transposed(-1, 0)), Error);
}

TEST(Tensor, Text) {
  TensorView view = TensorView::contiguous(nullptr, DType::bf16, {2, 128, 8, 64});
  EXPECT_EQ(to_string(view), "bf16[2, 128, 8, 64] strides [65536, 512, 64, 1] on host");
  view.device = Device::cuda;
  view.ordinal = 1;
  EXPECT_EQ(to_string(view), "bf16[2, 128, 8, 64] strides [65536, 512, 64, 1] on cuda:1");
  EXPECT_EQ(to_string(TensorView{}), "not given");
}

TEST(Tensor, TypesSizesAndNames) {
  EXPECT_EQ(size_of(DType::f64), 8);
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::f8e4m3), 1);
  EXPECT_EQ(size_of(DType::f8e5m2), 1);
  EXPECT_EQ(size_of(DType::u8), 1);
  EXPECT_EQ(size_of(DType::i8), 1);
  EXPECT_EQ(size_of(DType::none), 0);
  EXPECT_EQ(size_of(static_cast<DType>(99)), 0);
  EXPECT_STREQ(to_string(DType::bf16), "bf16");
  EXPECT_STREQ(to_string(static_cast<DType>(99)), "?");
  EXPECT_STREQ(to_string(Device::webgpu), "webgpu");
  EXPECT_STREQ(to_string(Pass::decode), "decode");
  EXPECT_STREQ(to_string(ErrorCode::out_of_memory), "out_of_memory");
}

}  // namespace
}  // namespace attn
