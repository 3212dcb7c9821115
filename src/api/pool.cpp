// Scratch memory between calls: see pool.hpp.
#include "api/pool.hpp"

#include <algorithm>
#include <new>

namespace attn::api {

namespace {

constexpr std::size_t kMaxIdle = 256;

void* allocate(std::int64_t bytes) {
  return ::operator new(static_cast<std::size_t>(bytes), std::align_val_t{kWorkspaceAlignment},
                        std::nothrow);
}

void release(void* data) {
  ::operator delete(data, std::align_val_t{kWorkspaceAlignment});
}

}  // namespace

Pool::Pool(std::int64_t limit) : limit_(limit) {
  idle_.reserve(kMaxIdle);
}

Pool::~Pool() {
  for (const Block& block : idle_) release(block.data);
}

Pool::Block Pool::take(std::int64_t bytes) {
  if (bytes <= 0) return {};
  void* outgrown = nullptr;
  {
    const std::lock_guard lock(mutex_);
    // Takes the smallest block that is large enough. If there is none, replaces the largest, so
    // that there are never more blocks than concurrent calls.
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (it->bytes >= bytes && (best == idle_.end() || it->bytes < best->bytes)) best = it;
    }
    const bool found = best != idle_.end();
    if (!found) {
      best = std::max_element(idle_.begin(), idle_.end(),
                              [](const Block& a, const Block& b) { return a.bytes < b.bytes; });
    }
    if (best != idle_.end()) {
      const Block block = *best;
      idle_bytes_ -= block.bytes;
      *best = idle_.back();
      idle_.pop_back();
      if (found) return block;
      outgrown = block.data;
    }
  }
  release(outgrown);
  return {allocate(bytes), bytes};
}

void Pool::put(Block block) {
  if (block.data == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdle && block.bytes <= limit_ - idle_bytes_) {
      idle_.push_back(block);
      idle_bytes_ += block.bytes;
      return;
    }
  }
  release(block.data);
}

}  // namespace attn::api
