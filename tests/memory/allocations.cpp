// Counting versions of malloc and its relatives. They replace the C library's functions in the
// complete process, including shared libraries, and forward to them. operator new calls malloc.
#include "allocations.hpp"

#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

extern "C" {
void* __libc_malloc(std::size_t size);                           // NOLINT
void* __libc_calloc(std::size_t count, std::size_t size);        // NOLINT
void* __libc_realloc(void* pointer, std::size_t size);           // NOLINT
void* __libc_memalign(std::size_t alignment, std::size_t size);  // NOLINT
void __libc_free(void* pointer);                                 // NOLINT
}

namespace attn::memory {
namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> live{0};
std::atomic<std::int64_t> peak{0};
std::atomic<std::int64_t> calls{0};

void* taken(void* pointer) {
  if (pointer == nullptr || !counting.load(std::memory_order_relaxed)) return pointer;
  ++calls;
  const auto bytes = static_cast<std::int64_t>(malloc_usable_size(pointer));
  const std::int64_t now = live.fetch_add(bytes) + bytes;
  std::int64_t most = peak.load();
  while (now > most && !peak.compare_exchange_weak(most, now)) {
  }
  return pointer;
}

void given(void* pointer) {
  if (pointer == nullptr || !counting.load(std::memory_order_relaxed)) return;
  live -= static_cast<std::int64_t>(malloc_usable_size(pointer));
}

}  // namespace

void start() {
  live = peak = calls = 0;
  counting = true;
}

Usage stop() {
  counting = false;
  return {peak.load(), calls.load()};
}

}  // namespace attn::memory

using attn::memory::given;
using attn::memory::taken;

#pragma GCC visibility push(default)
extern "C" {

void* malloc(std::size_t size) {
  return taken(__libc_malloc(size));
}
void* calloc(std::size_t count, std::size_t size) {
  return taken(__libc_calloc(count, size));
}
void* realloc(void* pointer, std::size_t size) {
  given(pointer);
  return taken(__libc_realloc(pointer, size));
}
void free(void* pointer) {
  given(pointer);
  __libc_free(pointer);
}
void* memalign(std::size_t alignment, std::size_t size) {
  return taken(__libc_memalign(alignment, size));
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return taken(__libc_memalign(alignment, size));
}
int posix_memalign(void** pointer, std::size_t alignment, std::size_t size) {
  void* memory = taken(__libc_memalign(alignment, size));
  if (memory == nullptr) return ENOMEM;
  *pointer = memory;
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop
