// LoadedKernels: the kernels of a plan, by context. Later calls of the plan find them without the
// lock and the hash table of Modules, which cost 30 ns a kernel.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "cuda/host/modules.hpp"

namespace attn::cuda {

inline constexpr std::size_t kMaxKernels = 10;  // of a call

// Pointers stay valid: kernels are never unloaded, and no two contexts have the same id.
class LoadedKernels {
 public:
  LoadedKernels() = default;
  ~LoadedKernels() {
    for (const Entry* entry = first_; entry != nullptr;) {
      delete std::exchange(entry, entry->next);
    }
  }
  // A copied plan looks up its kernels again.
  LoadedKernels(const LoadedKernels& /*other*/) {}
  LoadedKernels& operator=(const LoadedKernels& /*other*/) { return *this; }

  // Fills in the kernels that keep() got for the same modules and context. Returns false if there
  // are none.
  bool find(const Modules& modules, std::uint64_t context, std::span<const Kernel*> kernels) const {
    for (const Entry* entry = first_.load(std::memory_order_acquire); entry != nullptr;
         entry = entry->next) {
      if (entry->modules != &modules || entry->context != context) continue;
      std::copy_n(entry->kernels.begin(), kernels.size(), kernels.begin());
      return true;
    }
    return false;
  }
  void keep(const Modules& modules, std::uint64_t context, std::span<const Kernel* const> kernels) {
    const Entry* next = first_.load(std::memory_order_acquire);
    if (next != nullptr && next->number >= kMaxEntries) return;  // the program makes many contexts
    auto entry = std::make_unique<Entry>();
    entry->modules = &modules;
    entry->context = context;
    std::copy(kernels.begin(), kernels.end(), entry->kernels.begin());
    do {
      entry->next = next;
      entry->number = next != nullptr ? next->number + 1 : 1;
    } while (!first_.compare_exchange_weak(next, entry.get(), std::memory_order_acq_rel));
    entry.release();
  }

 private:
  static constexpr int kMaxEntries = 16;
  struct Entry {
    const Modules* modules = nullptr;
    std::uint64_t context = 0;
    std::array<const Kernel*, kMaxKernels> kernels{};
    const Entry* next = nullptr;
    int number = 0;  // of this entry and those after it
  };

  std::atomic<const Entry*> first_ = nullptr;
};

}  // namespace attn::cuda
