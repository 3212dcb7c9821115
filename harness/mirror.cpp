// Implements mirror.hpp.
#include "mirror.hpp"

#include <algorithm>

#include "core/signature.hpp"
#include "values.hpp"

namespace attn::harness {
namespace {

constexpr std::int64_t kAlignment = 256;  // of a block's first byte, like a real allocation

}  // namespace

Mirror::~Mirror() {
  for (const Copy& copy : copies_) queue_.give_back(copy.memory);
}

void Mirror::add(unsigned char* host, std::int64_t bytes, std::int64_t front, bool uploaded,
                 bool comes_back) {
  const std::int64_t skip = (kAlignment - front % kAlignment) % kAlignment;
  Copy copy{host, bytes, nullptr, queue_.take(bytes + skip), comes_back};
  copy.device = static_cast<unsigned char*>(copy.memory) + skip;
  copies_.push_back(copy);
  if (uploaded) queue_.upload(copy.device, copy.host, copy.bytes);
}

void Mirror::add(Storage& storage, bool scratch) {
  const std::span<unsigned char> all = storage.bytes();
  if (queue_.exact()) return add(storage.begin(), storage.size(), 0, !scratch, !scratch);
  add(all.data(), static_cast<std::int64_t>(all.size()), storage.begin() - all.data(), true, true);
}

void Mirror::add_tensors(Pass pass, const Problem& problem, const Arguments& host) {
  for (const core::Slot& slot : core::slots_of(pass, problem)) {
    const TensorView& view = host.*slot.view;
    if (!view.given() || view.data == nullptr) continue;
    if (Copy* known = find(view.address())) {
      known->comes_back = known->comes_back || slot.written;
      continue;
    }
    std::int64_t last = 0;
    for (int dim = 0; dim < view.rank; ++dim) {
      const auto at = static_cast<std::size_t>(dim);
      last += std::max<std::int64_t>(view.shape[at] - 1, 0) * view.strides[at];
    }
    const std::int64_t bytes = num_elements(view) > 0 ? (last + 1) * size_of(view.dtype) : 0;
    add(static_cast<unsigned char*>(view.address()), bytes, 0, true, slot.written);
  }
}

Mirror::Copy* Mirror::find(const void* host) {
  for (Copy& copy : copies_) {
    if (copy.host == host) return &copy;
  }
  return nullptr;
}

void* Mirror::moved(const void* host) const {
  const auto* address = static_cast<const unsigned char*>(host);
  if (address == nullptr) return nullptr;
  const Copy* found = nullptr;
  for (const Copy& copy : copies_) {
    const bool inside = address >= copy.host && address < copy.host + copy.bytes;
    // The address of an empty tensor may be one past its block's end, where another block begins.
    const bool behind = address == copy.host + copy.bytes && found == nullptr;
    if (inside || behind) found = &copy;
    if (inside) break;
  }
  if (found == nullptr) {
    throw Error(ErrorCode::internal,
                "mirror: a pointer of the call is in no memory that was added");
  }
  return found->device + (address - found->host);
}

Arguments Mirror::arguments(Pass pass, const Problem& problem, const Arguments& host) const {
  Arguments a = host;
  for (const core::Slot& slot : core::slots_of(pass, problem)) {
    TensorView& view = a.*slot.view;
    if (!view.given()) continue;
    if (view.data != nullptr) {
      view.data = static_cast<char*>(moved(view.address())) - view.offset_bytes;
    }
    view.device = Device::cuda;
    view.ordinal = queue_.ordinal();
  }
  for (Value<std::uint64_t>* value : {&a.seed, &a.offset}) {
    if (value->device != nullptr) {
      value->device = static_cast<const std::uint64_t*>(moved(value->device));
    }
  }
  if (a.workspace != nullptr) a.workspace = moved(a.workspace);
  a.stream = queue_.stream();
  return a;
}

std::int64_t Mirror::bytes() const {
  std::int64_t sum = 0;
  for (const Copy& copy : copies_) sum += copy.bytes;
  return sum;
}

void Mirror::download() {
  queue_.synchronize();
  for (const Copy& copy : copies_) {
    if (copy.comes_back) queue_.download(copy.host, copy.device, copy.bytes);
  }
}

}  // namespace attn::harness
