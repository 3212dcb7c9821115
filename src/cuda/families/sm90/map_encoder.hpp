// MapEncoder: encodes tensor maps of a call's tensors into kernel parameters. Keeps the first
// error.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>
#include <string_view>

#include "cuda/host/plan.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/kernels/sm90/tensor_map.cuh"

namespace attn::cuda::sm90 {

// `config`: of the plan's main kernel.
TmaTiles tma_tiles_of(const Config& config, DType dtype);

class MapEncoder {
 public:
  explicit MapEncoder(const Driver& driver) : driver_(driver) {}

  // q, k, v, o, dout: tiles of `num_rows` rows of `row_bytes` bytes (128 or 64), which is also the
  // width of the swizzle.
  void rows(std::string_view name, const TensorView& view, std::uint32_t num_rows,
            device::sm90::TensorMap& map, std::uint32_t row_bytes = 128);
  // A bias or mask: tiles of 64 queries and up to 128 bytes of keys; without queries (broadcast),
  // of tile_kv keys.
  void scores(std::string_view name, const TensorView& view, const Extent& extent,
              std::int64_t tile_kv, device::sm90::TensorMap& map);
  [[nodiscard]] core::Status& status() { return status_; }

 private:
  void encode_tiles(std::string_view name, const RowTiles& tiles, device::sm90::TensorMap& map);

  const Driver& driver_;
  core::Status status_;
};

}  // namespace attn::cuda::sm90
