// Copies of a call's memory; see mirror.hpp.
#include "mirror.hpp"

#include "core/signature.hpp"

namespace attn::cases {
namespace {

constexpr std::int64_t kAlignment = 256;  // of a storage's first byte, as of real allocations

}  // namespace

Mirror::~Mirror() {
  for (const Copy& copy : copies_) queue_.give_back(copy.memory);
}

void Mirror::add(Storage& storage, bool scratch) {
  const std::span<unsigned char> all = storage.bytes();
  const bool whole = !queue_.exact();
  Copy copy{};
  copy.host = whole ? all.data() : storage.begin();
  copy.bytes = whole ? static_cast<std::int64_t>(all.size()) : storage.size();
  copy.scratch = scratch && !whole;
  const std::int64_t front = storage.begin() - copy.host;
  const std::int64_t skip = (kAlignment - front % kAlignment) % kAlignment;
  copy.memory = queue_.take(copy.bytes + skip);
  copy.device = static_cast<unsigned char*>(copy.memory) + skip;
  copies_.push_back(copy);
  if (!copy.scratch) queue_.upload(copy.device, copy.host, copy.bytes);
}

void* Mirror::moved(const void* host) const {
  const auto* address = static_cast<const unsigned char*>(host);
  for (const Copy& copy : copies_) {
    // One past the end too: the address of an empty tensor.
    if (address >= copy.host && address <= copy.host + copy.bytes) {
      return copy.device + (address - copy.host);
    }
  }
  throw Error(ErrorCode::internal, "mirror: a pointer of the call is in no storage");
}

Arguments Mirror::arguments(Pass pass, const Problem& problem, const Arguments& host) const {
  Arguments a = host;
  for (const core::Slot& slot : core::slots_of(pass, problem)) {
    TensorView& view = a.*slot.view;
    if (!view.given()) continue;
    view.data = moved(view.data);
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

void Mirror::download() {
  queue_.synchronize();
  for (const Copy& copy : copies_) {
    if (!copy.scratch) queue_.download(copy.host, copy.device, copy.bytes);
  }
}

}  // namespace attn::cases
