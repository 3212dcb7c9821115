// Tensor maps: describe the tiles of a tensor to the Tensor Memory Accelerator (compute capability
// 9.0). Rules: CUDA Driver API, cuTensorMapEncodeTiled.
#pragma once

#include <array>
#include <attn/tensor.hpp>
#include <cstdint>
#include <string_view>

#include "cuda/host/driver.hpp"

namespace attn::cuda {

// A tensor [b, n, h, d] or [total, h, d] in tiles of `rows` x `columns` elements. The map's
// coordinates are (column, row, head, batch), so that a tile stays within its head and sequence,
// and rows past n read as zeros. In packed tensors, all rows belong to one batch entry.
struct RowTiles {
  TensorView view;
  std::uint32_t rows = 0;     // at most 256
  std::uint32_t columns = 0;  // at most `swizzle` bytes, unless `swizzle` is 0
  std::uint32_t swizzle = 0;  // bytes: 0, 32, 64 or 128
};

// Why no tensor map can describe the tensor (type, alignment, strides); empty if one can. Plans use
// other kernels for such tensors.
std::string_view unmappable(const TensorView& view);

// Each thread keeps the maps that it encoded last. Returns ErrorCode::internal if the tile breaks a
// rule, invalid_argument if the tensor does.
core::Status encode(const Driver& driver, std::string_view name, const RowTiles& tiles,
                    abi::TensorMap& map);
// Forgets the maps that the calling thread keeps: for tests, which replace the driver.
void forget_encoded_maps();

}  // namespace attn::cuda
