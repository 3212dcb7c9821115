// The parameters of sm90/forward.cu; see forward_params.hpp.
#include "cuda/families/sm90/forward_params.hpp"

#include <bit>
#include <memory>
#include <string_view>
#include <utility>

#include "cuda/families/sm90/forward_plan.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/kernels/passes/tile_counter.cuh"
#include "cuda/kernels/sm90/forward_params.cuh"

namespace attn::cuda::sm90 {
namespace {

constexpr std::uint32_t kBoxColumns = 64;  // 128 bytes
constexpr std::uint32_t kSwizzle = 128;
constexpr std::uint32_t kQRows = 64;       // of a warpgroup
constexpr std::uint32_t kStoredRows = 16;  // of O, by a warp
constexpr std::uint32_t kScoreRows = 64;

struct Blocks {
  device::sm90::ForwardParams forward;
  device::tile_counter::Params counter;
};
static_assert(sizeof(Blocks) <= sizeof(ParameterMemory) && alignof(Blocks) <= 64);
static_assert(sizeof(device::sm90::TensorMap) == sizeof(abi::TensorMap));

// [batch, rows, heads, dim]; packed tensors are one batch entry.
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

// A bias or mask [batch, head, query, key] as rows [batch, query, head, key]; dimensions that are
// broadcast have size 1.
TensorView score_rows(const TensorView& view, const Extent& extent) {
  TensorView rows = view;
  std::swap(rows.shape[1], rows.shape[2]);
  std::swap(rows.strides[1], rows.strides[2]);
  if (!extent.batch) rows.shape[0] = 1;
  if (!extent.head) rows.shape[2] = 1;
  return rows;
}

class MapEncoder {
 public:
  explicit MapEncoder(const Driver& driver) : driver_(driver) {}

  void rows(std::string_view name, const TensorView& view, std::uint32_t num_rows,
            device::sm90::TensorMap& map) {
    encode_tiles(name, {padded(view), num_rows, kBoxColumns, kSwizzle}, map);
  }
  void scores(std::string_view name, const TensorView& view, const Extent& extent,
              std::int64_t tile_kv, device::sm90::TensorMap& map) {
    if (!extent.given) return;
    const std::int64_t bytes = size_of(view.dtype);
    const auto row_bytes = static_cast<std::uint32_t>(tile_kv * bytes >= 128 ? 128 : 64);
    const auto keys = static_cast<std::uint32_t>(row_bytes / bytes);
    encode_tiles(name, {score_rows(view, extent), kScoreRows, keys, row_bytes}, map);
  }
  [[nodiscard]] core::Status& status() { return status_; }

 private:
  void encode_tiles(std::string_view name, const RowTiles& tiles, device::sm90::TensorMap& map) {
    if (!status_.ok()) return;
    abi::TensorMap encoded{};
    status_ = encode(driver_, name, tiles, encoded);
    map = std::bit_cast<device::sm90::TensorMap>(encoded);
  }

  const Driver& driver_;
  core::Status status_;
};

}  // namespace

core::Status set_forward_params(const ParameterSources& from, std::span<KernelLaunch> launches,
                                ParameterMemory& memory) {
  const CudaPlan& plan = from.plan;
  const Problem& p = plan.problem;
  const Config& config = plan.kernels[plan.main].config;
  const std::int64_t tile_q = *config.get("tile_q");
  const std::int64_t tile_kv = *config.get("tile_kv");
  Blocks& blocks = *std::construct_at(reinterpret_cast<Blocks*>(memory.bytes.data()));
  device::sm90::ForwardParams& params = blocks.forward;
  const auto kv_rows = static_cast<std::uint32_t>(tile_kv);
  MapEncoder maps(from.driver);
  maps.rows("q", from.tensors.q, kQRows, params.q);
  maps.rows("k", from.tensors.k, kv_rows, params.k);
  maps.rows("v", from.tensors.v, kv_rows, params.v);
  maps.rows("o", from.tensors.o, kStoredRows, params.o);
  maps.scores("bias", from.tensors.bias, p.bias, tile_kv, params.bias);
  maps.scores("mask", from.tensors.mask, p.mask, tile_kv, params.mask);
  if (!maps.status().ok()) return std::move(maps.status());
  params.common = from.common;
  const TileCounts counts = tile_counts(p, tile_q);
  params.q_tiles = static_cast<int>(counts.q_tiles);
  params.num_tiles = static_cast<int>(counts.num_tiles);
  params.heads_at_once = plan.heads_at_once;
  const Part& counter = plan.workspace.tile_counter;
  if (counter.bytes > 0) {
    params.next_tile =
        reinterpret_cast<unsigned*>(static_cast<char*>(from.workspace) + counter.offset);
    blocks.counter.counter = params.next_tile;
  }
  for (KernelLaunch& launch : launches) {
    const std::string_view entry = launch.kernel->spec.entry;
    if (entry == kForwardEntry) launch.parameters = block_of(params);
    if (entry == kCounterEntry) launch.parameters = block_of(blocks.counter);
  }
  return {};
}

}  // namespace attn::cuda::sm90
