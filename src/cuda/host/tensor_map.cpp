// Tensor maps; see tensor_map.hpp.
#include "cuda/host/tensor_map.hpp"

#include <memory>
#include <string>

namespace attn::cuda {
namespace {

constexpr std::int64_t kTensorMapAlignment = 16;  // of the address and of strides, in bytes
constexpr std::int64_t kStrideLimit = std::int64_t{1} << 40;
constexpr std::int64_t kDimLimit = std::int64_t{1} << 32;

int type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return abi::kTensorMapF32;
    case DType::f16: return abi::kTensorMapF16;
    case DType::bf16: return abi::kTensorMapBf16;
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::u8: return abi::kTensorMapU8;
    default: return -1;
  }
}

int swizzle_of(std::uint32_t bytes) {
  switch (bytes) {
    case 0: return abi::kTensorMapSwizzleNone;
    case 32: return abi::kTensorMapSwizzle32;
    case 64: return abi::kTensorMapSwizzle64;
    case 128: return abi::kTensorMapSwizzle128;
    default: return -1;
  }
}

bool tile_fits(const RowTiles& tiles) {
  const std::int64_t bytes = tiles.columns * size_of(tiles.view.dtype);
  return tiles.rows > 0 && tiles.rows <= 256 && tiles.columns > 0 && tiles.columns <= 256 &&
         bytes % kTensorMapAlignment == 0 && swizzle_of(tiles.swizzle) >= 0 &&
         (tiles.swizzle == 0 || bytes <= tiles.swizzle);
}

// What a tensor map depends on.
struct Description {
  void* address = nullptr;
  std::array<std::uint64_t, 4> dims{};
  std::array<std::uint64_t, 3> strides{};
  std::array<std::uint32_t, 4> box{};
  int type = 0;
  std::uint32_t rank = 0;  // 0: none
  int swizzle = 0;

  bool operator==(const Description&) const = default;
  [[nodiscard]] std::size_t hash() const {
    auto hash = reinterpret_cast<std::uintptr_t>(address);
    const auto add = [&](std::uint64_t value) {
      hash = (hash ^ value) * std::uint64_t{0x9E3779B97F4A7C15u};
    };
    for (const std::uint64_t dim : dims) add(dim);
    for (const std::uint64_t stride : strides) add(stride);
    add(box[0] | std::uint64_t{box[1]} << 32);
    add(static_cast<std::uint64_t>(type * 8 + swizzle));
    return hash >> 32;
  }
};

Description describe(const RowTiles& tiles) {
  const TensorView& view = tiles.view;
  if (view.rank != 3 && view.rank != 4) return {};
  const auto rank = static_cast<std::size_t>(view.rank);
  Description out{.address = view.address(),
                  .box = {tiles.columns, tiles.rows, 1, 1},
                  .type = type_of(view.dtype),
                  .rank = static_cast<std::uint32_t>(rank),
                  .swizzle = swizzle_of(tiles.swizzle)};
  // From the innermost: column, row, head, batch.
  const std::array<std::size_t, 4> order{rank - 1, rank - 3, rank - 2, 0};
  const std::int64_t bytes = size_of(view.dtype);
  for (std::size_t i = 0; i < rank; ++i) {
    out.dims[i] = static_cast<std::uint64_t>(view.shape[order[i]]);
    if (i == 0) continue;
    // The stride of a dimension of size 1 is not used, but the driver checks it.
    const std::int64_t stride =
        view.shape[order[i]] == 1 ? kTensorMapAlignment : view.strides[order[i]] * bytes;
    out.strides[i - 1] = static_cast<std::uint64_t>(stride);
  }
  return out;
}

// Tensor maps that a thread has encoded lately, by their description. The driver takes 0.1 us for a
// map, checks included 0.2 us, and callers use the same memory again and again.
struct EncodedMaps {
  struct Entry {
    Description description;
    abi::TensorMap map;
  };
  std::array<Entry, 64> entries{};

  static EncodedMaps& of_thread() {
    thread_local const auto maps = std::make_unique<EncodedMaps>();
    return *maps;
  }
  // The only place for the description; another one may be there.
  Entry& place(const Description& description) {
    return entries[description.hash() % entries.size()];
  }
};

}  // namespace

std::string_view unmappable(const TensorView& view) {
  if (type_of(view.dtype) < 0) return "its type has no tensor map";
  if (view.rank != 3 && view.rank != 4) return "it is not [b, n, h, d] or [total, h, d]";
  if (reinterpret_cast<std::uintptr_t>(view.address()) % kTensorMapAlignment != 0) {
    return "its address is no multiple of 16 bytes";
  }
  for (int d = 0; d < view.rank; ++d) {
    const auto i = static_cast<std::size_t>(d);
    if (view.shape[i] <= 0 || view.shape[i] > kDimLimit) return "a size is 0 or above 2^32";
    if (d == view.rank - 1 || view.shape[i] == 1) continue;  // the stride is 1, or not used
    const std::int64_t bytes = view.strides[i] * size_of(view.dtype);
    if (bytes < 0 || bytes >= kStrideLimit || bytes % kTensorMapAlignment != 0) {
      return "a stride is negative, above 2^40 bytes or no multiple of 16 bytes";
    }
  }
  return {};
}

core::Status encode(const Driver& driver, std::string_view name, const RowTiles& tiles,
                    abi::TensorMap& map) {
  const TensorView& view = tiles.view;
  const Description wanted = describe(tiles);
  EncodedMaps::Entry& entry = EncodedMaps::of_thread().place(wanted);
  if (wanted.rank != 0 && entry.description == wanted) {
    map = entry.map;
    return {};
  }
  if (const std::string_view why = unmappable(view); !why.empty()) {
    return core::Status::invalid("cuda: " + std::string(name) + ": found " + to_string(view) +
                                 "; no tensor map can describe it: " + std::string(why));
  }
  if (!tile_fits(tiles)) {
    return {ErrorCode::internal, "cuda: tensor map of " + std::string(name) + ": tile of " +
                                     std::to_string(tiles.rows) + " rows and " +
                                     std::to_string(tiles.columns) + " columns, swizzle " +
                                     std::to_string(tiles.swizzle)};
  }
  const std::array<std::uint32_t, 4> steps{1, 1, 1, 1};
  const abi::Result result = driver.api().cuTensorMapEncodeTiled(
      &map, wanted.type, wanted.rank, wanted.address, wanted.dims.data(), wanted.strides.data(),
      wanted.box.data(), steps.data(), abi::kTensorMapInterleaveNone, wanted.swizzle,
      abi::kTensorMapPromotion256, abi::kTensorMapFillZero);
  if (result == abi::kSuccess) {
    entry = {wanted, map};
    return {};
  }
  return driver.status(result, "cuTensorMapEncodeTiled",
                       "making the tensor map of " + std::string(name) + ", " + to_string(view));
}

void forget_encoded_maps() {
  EncodedMaps::of_thread().entries = {};
}

}  // namespace attn::cuda
