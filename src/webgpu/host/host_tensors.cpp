// Implements host_tensors.hpp.
#include "webgpu/host/host_tensors.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

namespace attn::webgpu {
namespace {

bool has_elements(const TensorView& tensor) {
  for (int d = 0; d < tensor.rank; ++d) {
    if (tensor.shape[static_cast<std::size_t>(d)] == 0) return false;
  }
  return tensor.given();
}

// {lowest, one past the highest} byte of the tensor's elements.
std::pair<std::byte*, std::byte*> span_of(const TensorView& tensor) {
  std::int64_t low = 0;
  std::int64_t high = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(tensor.rank); ++d) {
    const std::int64_t last = (tensor.shape[d] - 1) * tensor.strides[d];
    (last < 0 ? low : high) += last;
  }
  auto* base = static_cast<std::byte*>(tensor.address());
  const std::int64_t size = size_of(tensor.dtype);
  return {base + low * size, base + (high + 1) * size};
}

// Calls visit(address, bytes) for every run of contiguous elements.
void each_run(const TensorView& tensor, const std::function<void(std::byte*, std::size_t)>& visit) {
  const auto rank = static_cast<std::size_t>(tensor.rank);
  const std::int64_t size = size_of(tensor.dtype);
  const bool whole_rows = tensor.strides[rank - 1] == 1;
  const std::size_t outer = whole_rows ? rank - 1 : rank;
  const std::int64_t run = whole_rows ? tensor.shape[rank - 1] : 1;
  std::array<std::int64_t, kMaxRank> at{};
  for (;;) {
    std::int64_t offset = 0;
    for (std::size_t d = 0; d < outer; ++d) offset += at[d] * tensor.strides[d];
    visit(static_cast<std::byte*>(tensor.address()) + offset * size,
          static_cast<std::size_t>(run * size));
    std::size_t d = outer;
    while (d > 0 && ++at[d - 1] == tensor.shape[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace

void HostTensors::add(const TensorView& tensor, bool written) {
  if (!has_elements(tensor)) return;
  const auto [begin, end] = span_of(tensor);
  Region region{begin, end, written};
  std::erase_if(regions_, [&](const Region& other) {
    if (other.end <= region.begin || other.begin >= region.end) return false;
    region.begin = std::min(region.begin, other.begin);
    region.end = std::max(region.end, other.end);
    region.written = region.written || other.written;
    return true;
  });
  regions_.push_back(std::move(region));
  if (written) written_.push_back(tensor);
}

core::Status HostTensors::upload() {
  for (Region& region : regions_) {
    const auto bytes = static_cast<std::size_t>(region.end - region.begin);
    core::Status status = device_.pool().take(bytes, kStorageUsage, region.buffer);
    if (!status.ok()) return status;
    status = webgpu::upload(device_, region.buffer.handle(), 0, {region.begin, bytes});
    if (!status.ok()) return status;
  }
  return {};
}

const HostTensors::Region* HostTensors::find(const void* address) const {
  for (const Region& region : regions_) {
    if (address >= region.begin && address < region.end) return &region;
  }
  return nullptr;
}

TensorView HostTensors::on_device(const TensorView& tensor) const {
  TensorView there = tensor;
  there.device = attn::Device::webgpu;
  there.data = nullptr;
  there.offset_bytes = 0;
  if (!tensor.given()) return {};
  if (!has_elements(tensor)) return there;
  const Region* region = find(span_of(tensor).first);
  there.data = region->buffer.handle();
  there.offset_bytes = static_cast<std::byte*>(tensor.address()) - region->begin;
  return there;
}

core::Status HostTensors::download() {
  for (Region& region : regions_) {
    if (!region.written) continue;
    const auto bytes = static_cast<std::size_t>(region.end - region.begin);
    std::vector<std::byte> results(bytes);
    core::Status status = webgpu::download(device_, region.buffer.handle(), 0, results);
    if (!status.ok()) return status;
    for (const TensorView& tensor : written_) {
      if (find(span_of(tensor).first) != &region) continue;
      each_run(tensor, [&](std::byte* to, std::size_t count) {
        std::memcpy(to, results.data() + (to - region.begin), count);
      });
    }
    if (std::memcmp(results.data(), region.begin, bytes) != 0) {
      return {ErrorCode::internal, "webgpu: a kernel wrote between the rows of an output"};
    }
  }
  return {};
}

}  // namespace attn::webgpu
