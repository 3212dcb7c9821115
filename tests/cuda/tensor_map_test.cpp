// What tensor maps say of a tensor, and which tensors have none.
#include "cuda/host/tensor_map.hpp"

#include <cstring>

#include "fake.hpp"

namespace attn::cuda::test {
namespace {

class CudaTensorMap : public WithFakeDriver {
 protected:
  CudaTensorMap() {
    forget_encoded_maps();
    tiles.view = TensorView::contiguous(reinterpret_cast<void*>(kDeviceMemory), DType::bf16,
                                        {2, 1000, 8, 128});
    tiles.view.device = Device::cuda;
    tiles.rows = 128;
    tiles.columns = 64;
    tiles.swizzle = 128;
  }
  core::Status make() { return encode(fake_driver(), "k", tiles, map); }

  RowTiles tiles;
  abi::TensorMap map{};
};

TEST_F(CudaTensorMap, CoordinatesAreColumnRowHeadBatch) {
  ASSERT_TRUE(make().ok()) << make().message;
  const FakeDriver& state = fake();
  EXPECT_EQ(state.map_rank, 4u);
  EXPECT_EQ(state.map_type, abi::kTensorMapBf16);
  EXPECT_EQ(state.map_swizzle, abi::kTensorMapSwizzle128);
  const std::uint64_t dims[] = {128, 1000, 8, 2};
  const std::uint64_t strides[] = {2048, 256, 2048000};  // bytes
  const std::uint32_t box[] = {64, 128, 1, 1};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(state.map_dims[i], dims[i]) << i;
    EXPECT_EQ(state.map_box[i], box[i]) << i;
    if (i < 3) {
      EXPECT_EQ(state.map_strides[i], strides[i]) << i;
    }
  }
  tiles.view =
      TensorView::contiguous(reinterpret_cast<void*>(kDeviceMemory), DType::f16, {77, 1, 64});
  ASSERT_TRUE(make().ok()) << make().message;
  EXPECT_EQ(state.map_rank, 3u);
  EXPECT_EQ(state.map_dims[1], 77u);
  EXPECT_EQ(state.map_dims[2], 1u);
  EXPECT_EQ(state.map_strides[0], 128u);
  EXPECT_EQ(state.map_strides[1], 16u) << "never stepped";
}

TEST_F(CudaTensorMap, IsEncodedOnceForTheSameDescription) {
  const auto num_encoded = [&] {
    const std::size_t before = fake().maps.size();
    EXPECT_TRUE(make().ok());
    return fake().maps.size() - before;
  };
  EXPECT_EQ(num_encoded(), 1u);
  const abi::TensorMap first = map;
  map = {};
  EXPECT_EQ(num_encoded(), 0u);
  EXPECT_EQ(std::memcmp(&map, &first, sizeof map), 0);
  const RowTiles same = tiles;
  const auto num_with = [&](auto change) {
    tiles = same;
    change(tiles);
    return num_encoded();
  };
  EXPECT_EQ(num_with([](RowTiles& t) { t.view.offset_bytes = 256; }), 1u);
  EXPECT_EQ(num_with([](RowTiles& t) { t.view.shape[1] = 999; }), 1u);
  EXPECT_EQ(num_with([](RowTiles& t) { t.view.strides[1] = 2048; }), 1u);
  EXPECT_EQ(num_with([](RowTiles& t) { t.view.dtype = DType::f16; }), 1u);
  EXPECT_EQ(num_with([](RowTiles& t) { t.rows = 64; }), 1u);
  EXPECT_EQ(num_with([](RowTiles& t) { t.columns = 32; }), 1u);
  EXPECT_EQ(num_with([](RowTiles& t) { t.columns = 32, t.swizzle = 64; }), 1u);
}

TEST_F(CudaTensorMap, AFailureIsNotKept) {
  fake().failing = "cuTensorMapEncodeTiled";
  fake().failing_result = abi::kInvalidValue;
  EXPECT_FALSE(make().ok());
  EXPECT_FALSE(make().ok());
  fake().failing = "";
  EXPECT_TRUE(make().ok());
}

TEST_F(CudaTensorMap, WhatHasNone) {
  EXPECT_EQ(unmappable(tiles.view), "");
  const auto with = [&](auto change) {
    TensorView view = tiles.view;
    change(view);
    return unmappable(view);
  };
  EXPECT_EQ(with([](TensorView& v) { v.offset_bytes = 8; }),
            "its address is no multiple of 16 bytes");
  EXPECT_EQ(with([](TensorView& v) { v.strides[1] = 1020; }).substr(0, 20), "a stride is negative");
  EXPECT_EQ(with([](TensorView& v) { v.strides[0] = std::int64_t{1} << 40; }).substr(0, 8),
            "a stride");
  EXPECT_EQ(with([](TensorView& v) { v.strides[2] = 0; }), "") << "expanded heads";
  EXPECT_EQ(with([](TensorView& v) { v.shape[1] = 0; }), "a size is 0 or above 2^32");
  EXPECT_EQ(with([](TensorView& v) { v.dtype = DType::f64; }), "its type has no tensor map");
  tiles.view.strides[1] = 1020;
  EXPECT_EQ(make().code, ErrorCode::invalid_argument);
  EXPECT_NE(make().message.find("cuda: k: found bf16[2, 1000, 8, 128]"), std::string::npos);
}

TEST_F(CudaTensorMap, TilesThatBreakARuleAreBugs) {
  const auto with = [&](std::uint32_t rows, std::uint32_t columns, std::uint32_t swizzle) {
    tiles.rows = rows;
    tiles.columns = columns;
    tiles.swizzle = swizzle;
    return make().code;
  };
  EXPECT_EQ(with(256, 64, 128), ErrorCode::ok);
  EXPECT_EQ(with(64, 128, 0), ErrorCode::ok);
  EXPECT_EQ(with(257, 64, 128), ErrorCode::internal);
  EXPECT_EQ(with(64, 128, 128), ErrorCode::internal);
  EXPECT_EQ(with(64, 64, 96), ErrorCode::internal);
  EXPECT_EQ(with(64, 4, 0), ErrorCode::internal);
  fake().failing = "cuTensorMapEncodeTiled";
  fake().failing_result = abi::kInvalidValue;
  EXPECT_EQ(with(64, 64, 128), ErrorCode::device_error);
}

}  // namespace
}  // namespace attn::cuda::test
