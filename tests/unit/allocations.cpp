// operator new, counted: see allocations.hpp.
#include "allocations.hpp"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "sanitizer.hpp"

#if ATTN_TEST_THREAD_SANITIZER
attn::test::Allocations attn::test::allocations() {
  return {};
}
#else
namespace {

std::atomic<std::int64_t> g_count{0};
std::atomic<std::int64_t> g_bytes{0};

// More is refused here: sanitizers end the program where malloc returns null.
constexpr std::size_t kMaxBytes = std::size_t{1} << 36;

void* counted(std::size_t bytes, std::size_t alignment) {
  if (bytes > kMaxBytes) return nullptr;
  g_count.fetch_add(1, std::memory_order_relaxed);
  g_bytes.fetch_add(static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
  void* data = nullptr;
  if (posix_memalign(&data, alignment < sizeof(void*) ? sizeof(void*) : alignment, bytes) != 0) {
    return nullptr;
  }
  return data;
}

}  // namespace

attn::test::Allocations attn::test::allocations() {
  return {g_count.load(), g_bytes.load()};
}

void* operator new(std::size_t bytes) {
  if (void* data = counted(bytes, alignof(std::max_align_t))) return data;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  if (void* data = counted(bytes, static_cast<std::size_t>(alignment))) return data;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return counted(bytes, alignof(std::max_align_t));
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t) noexcept {
  std::free(data);
}
void operator delete(void* data, std::align_val_t) noexcept {
  std::free(data);
}
void operator delete(void* data, std::size_t, std::align_val_t) noexcept {
  std::free(data);
}
#endif

// libomp keeps what it made for threads that have ended. Read by the leak sanitizer alone.
extern "C" const char* __lsan_default_suppressions();
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libomp.so\n";
}
