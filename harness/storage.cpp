// Implements storage.hpp.
#include "storage.hpp"

#include <algorithm>
#include <cstring>

#include "values.hpp"

namespace attn::harness {
namespace {

constexpr std::int64_t kGuardBytes = 256;
constexpr std::int64_t kStorageAlignment = 64;

std::vector<std::int64_t> contiguous_strides(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t dim = shape.size(); dim-- > 1;) {
    strides[dim - 1] = strides[dim] * std::max<std::int64_t>(shape[dim], 1);
  }
  return strides;
}

std::int64_t span_of(const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides) {
  std::int64_t last = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] == 0) return 0;
    last += (shape[dim] - 1) * strides[dim];
  }
  return last + 1;
}

}  // namespace

Storage::Storage(std::int64_t bytes) : size_(bytes) {
  bytes_.assign(static_cast<std::size_t>(bytes + 2 * kGuardBytes + kStorageAlignment), 0xFF);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data()) + kGuardBytes;
  front_ = kGuardBytes + (kStorageAlignment - address % kStorageAlignment) % kStorageAlignment;
}

void Storage::seal(std::vector<TensorView> views) {
  views_ = std::move(views);
  sealed_ = bytes_;
}

std::string Storage::changed() const {
  std::vector<unsigned char> now = bytes_;
  for (const TensorView& view : views_) {
    const auto element = static_cast<std::size_t>(size_of(view.dtype));
    const auto base =
        static_cast<std::size_t>(static_cast<unsigned char*>(view.address()) - bytes_.data());
    for_each_element(view, [&](std::int64_t, std::int64_t offset) {
      const std::size_t at = base + static_cast<std::size_t>(offset) * element;
      std::memcpy(now.data() + at, sealed_.data() + at, element);
    });
  }
  const auto where = std::mismatch(now.begin(), now.end(), sealed_.begin()).first;
  if (where == now.end()) return {};
  return "byte " + std::to_string(where - now.begin() - static_cast<std::ptrdiff_t>(front_)) +
         " of " + std::to_string(size_) + " was written";
}

Placement place(const std::vector<std::int64_t>& shape, Memory memory, bool rows) {
  Placement out{0, 0, contiguous_strides(shape)};
  const std::size_t rank = shape.size();
  const std::size_t row = rank >= 3 ? rank - 3 : 0;  // dimension of the rows, heads follow
  std::vector<std::int64_t> outer = shape;
  switch (memory) {
    case Memory::bshd:
    case Memory::fused_qkv: break;
    case Memory::bhsd:
      if (!rows) break;
      std::swap(outer[row], outer[row + 1]);
      out.strides = contiguous_strides(outer);
      std::swap(out.strides[row], out.strides[row + 1]);
      break;
    case Memory::sliced:
      if (!rows) break;
      outer[row] += 3;
      outer[row + 1] += 2;
      out.strides = contiguous_strides(outer);
      out.skip = 2 * out.strides[row] + out.strides[row + 1];
      break;
    case Memory::padded:
      outer[rank - 1] += 5;
      if (rank >= 3) outer[row + 1] += 1;
      out.strides = contiguous_strides(outer);
      out.skip = 3;
      break;
  }
  out.span = out.skip + span_of(shape, out.strides);
  return out;
}

TensorView shaped(DType dtype, const std::vector<std::int64_t>& shape) {
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<std::int32_t>(shape.size());
  const std::vector<std::int64_t> strides = contiguous_strides(shape);
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

}  // namespace attn::harness
