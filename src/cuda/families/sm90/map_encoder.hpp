// Tensor maps of a call's tensors for the parameters of kernels; keeps the first error.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>
#include <string_view>

#include "cuda/host/tensor_map.hpp"
#include "cuda/kernels/sm90/tensor_map.cuh"

namespace attn::cuda::sm90 {

class MapEncoder {
 public:
  explicit MapEncoder(const Driver& driver) : driver_(driver) {}

  // q, k, v, o, dout: tiles of `num_rows` rows and `row_bytes` of columns, with the swizzle of that
  // width (128 or 64).
  void rows(std::string_view name, const TensorView& view, std::uint32_t num_rows,
            device::sm90::TensorMap& map, std::uint32_t row_bytes = 128);
  // A bias or mask: tiles of 64 queries, and of tile_kv keys or 128 bytes of them.
  void scores(std::string_view name, const TensorView& view, const Extent& extent,
              std::int64_t tile_kv, device::sm90::TensorMap& map);
  [[nodiscard]] core::Status& status() { return status_; }

 private:
  void encode_tiles(std::string_view name, const RowTiles& tiles, device::sm90::TensorMap& map);

  const Driver& driver_;
  core::Status status_;
};

}  // namespace attn::cuda::sm90
