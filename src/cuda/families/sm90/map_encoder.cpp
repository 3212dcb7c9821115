// Tensor maps of a call's tensors; see map_encoder.hpp.
#include "cuda/families/sm90/map_encoder.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "cuda/kernels/sm90/backward_shared.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::uint32_t kScoreRows = 64;

static_assert(sizeof(device::sm90::TensorMap) == sizeof(abi::TensorMap));

// The view as [batch, rows, heads, dim]; packed tensors get batch 1.
TensorView padded(const TensorView& view) {
  if (view.rank == 4) return view;
  TensorView padded = view;
  padded.rank = 4;
  for (std::size_t d = 3; d > 0; --d) {
    padded.shape[d] = view.shape[d - 1];
    padded.strides[d] = view.strides[d - 1];
  }
  padded.shape[0] = 1;
  padded.strides[0] = 0;
  return padded;
}

// A bias or mask [batch, head, query, key] seen as [batch, query, head, key]. Broadcast batch and
// head get size 1.
TensorView score_rows(const TensorView& view, const Extent& extent) {
  TensorView rows = view;
  std::swap(rows.shape[1], rows.shape[2]);
  std::swap(rows.strides[1], rows.strides[2]);
  if (!extent.batch) rows.shape[0] = 1;
  if (!extent.head) rows.shape[2] = 1;
  return rows;
}

}  // namespace

TmaTiles tma_tiles_of(const Config& config, DType dtype) {
  const auto row_bytes = [&](const char* dim) {
    const std::int64_t bytes = config.get(dim).value_or(0) * size_of(dtype);
    return static_cast<std::uint32_t>(std::min<std::int64_t>(128, bytes));
  };
  return {.q = config.get("tile_q").value_or(0),
          .heads = config.get("tile_heads").value_or(1),
          .kv = config.get("tile_kv").value_or(0),
          .qk_bytes = row_bytes("dim_qk"),
          .vo_bytes = row_bytes("dim_vo"),
          .stores_o = config.get("store_elements") == 0,
          .stores_dbias = config.get("dbias") == device::sm90::kDbiasStored};
}

void MapEncoder::rows(std::string_view name, const TensorView& view, std::uint32_t num_rows,
                      device::sm90::TensorMap& map, std::uint32_t row_bytes) {
  const auto columns = static_cast<std::uint32_t>(row_bytes / size_of(view.dtype));
  encode_tiles(name, {padded(view), num_rows, columns, row_bytes}, map);
}

void MapEncoder::scores(std::string_view name, const TensorView& view, const Extent& extent,
                        std::int64_t tile_kv, device::sm90::TensorMap& map) {
  if (!extent.given) return;
  if (!extent.q) {
    encode_tiles(name, {score_rows(view, extent), 1, static_cast<std::uint32_t>(tile_kv), 0}, map);
    return;
  }
  const std::int64_t bytes = size_of(view.dtype);
  const auto row_bytes = static_cast<std::uint32_t>(tile_kv * bytes % 128 == 0 ? 128 : 64);
  const auto keys = static_cast<std::uint32_t>(row_bytes / bytes);
  encode_tiles(name, {score_rows(view, extent), kScoreRows, keys, row_bytes}, map);
}

void MapEncoder::encode_tiles(std::string_view name, const RowTiles& tiles,
                              device::sm90::TensorMap& map) {
  if (!status_.ok()) return;
  abi::TensorMap encoded{};
  status_ = encode(driver_, name, tiles, encoded);
  map = std::bit_cast<device::sm90::TensorMap>(encoded);
}

}  // namespace attn::cuda::sm90
