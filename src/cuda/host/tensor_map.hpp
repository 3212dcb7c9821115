// Tensor maps: how the Tensor Memory Accelerator (compute capability 9.0) finds the tiles of a
// tensor. Rules: CUDA Driver API, cuTensorMapEncodeTiled.
#pragma once

#include <array>
#include <attn/tensor.hpp>
#include <cstdint>
#include <string_view>

#include "cuda/host/driver.hpp"

namespace attn::cuda {

// Rows of a tensor [b, n, h, d] or [total, h, d] in tiles of `rows` times `columns` elements: the
// map's coordinates are (column, row, head, batch), so that a tile stays inside of its head and
// entry, and rows past n read as zeros. Packed tensors have one entry, whose rows are all.
struct RowTiles {
  TensorView view;
  std::uint32_t rows = 0;     // at most 256
  std::uint32_t columns = 0;  // whose bytes are at most swizzle_bytes, where that is not 0
  std::uint32_t swizzle = 0;  // bytes: 0, 32, 64 or 128
};

// Why the tensor can't be read by tensor maps (types, alignment, strides); empty where it can.
// A plan's other kernels read such tensors.
std::string_view unmappable(const TensorView& view);

// internal where the tile breaks a rule, invalid_argument where the tensor does.
core::Status encode(const Driver& driver, std::string_view name, const RowTiles& tiles,
                    abi::TensorMap& map);

}  // namespace attn::cuda
