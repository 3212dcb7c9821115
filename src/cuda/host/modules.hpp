// Modules: kernels loaded into a context, found again without a lock that writers hold for long.
// What is loaded stays loaded; a context that is destroyed takes its modules with it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "cuda/host/binaries.hpp"
#include "cuda/host/device.hpp"

namespace attn::cuda {

// What a plan says of one kernel: the code, the entry point and what a block needs.
struct KernelSpec {
  Config config;
  const char* entry = "";     // extern "C" __global__, a string literal
  unsigned threads = 0;       // of a block
  unsigned shared_bytes = 0;  // dynamic shared memory of a block
  unsigned cluster = 1;       // blocks along x that form a cluster

  bool operator==(const KernelSpec& other) const {
    return threads == other.threads && shared_bytes == other.shared_bytes &&
           cluster == other.cluster &&
           (entry == other.entry || std::string_view(entry) == other.entry) &&
           config == other.config;
  }
};

// A loaded kernel and what the driver says of it.
struct Kernel {
  abi::Function function = nullptr;
  KernelSpec spec;
  int registers = 0;            // of a thread
  int local_bytes = 0;          // of a thread: spills and arrays
  int static_shared_bytes = 0;  // of a block
  int blocks_per_sm = 0;        // that fit at once
};

class Modules {
 public:
  explicit Modules(Binaries& binaries) : binaries_(binaries) {}
  // The process's, by cache folder and driver; see Binaries::of. Allocates nothing if the thread's
  // previous call had the same arguments.
  static Modules& of(const Driver& driver, std::string_view cache_root);

  // The kernels in this context; null where one was not loaded yet. Allocates nothing.
  void find_all(const CurrentContext& context, std::span<const KernelSpec> specs,
                std::span<const Kernel*> kernels) const;
  [[nodiscard]] const Kernel* find(const CurrentContext& context, const KernelSpec& spec) const {
    const Kernel* kernel = nullptr;
    find_all(context, {&spec, 1}, {&kernel, 1});
    return kernel;
  }
  // Finds it, or compiles and loads it. `kernel` stays where it is. Not to be called while the
  // stream of the call captures: see launch.hpp, find_or_load.
  core::Status load(const CurrentContext& context, const KernelSpec& spec, const Kernel*& kernel);
  // The same of several, compiled side by side.
  core::Status load_all(const CurrentContext& context, std::span<const KernelSpec> specs,
                        std::span<const Kernel*> kernels);

  [[nodiscard]] Binaries& binaries() { return binaries_; }

 private:
  struct Key {
    std::uint64_t context = 0;
    KernelSpec spec;
    bool operator==(const Key&) const = default;
  };
  struct KeyRef {  // a Key without the copy
    std::uint64_t context;
    const KernelSpec& spec;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(const Key& key) const { return of(key.context, key.spec); }
    std::size_t operator()(const KeyRef& key) const { return of(key.context, key.spec); }
    static std::size_t of(std::uint64_t context, const KernelSpec& spec);
  };
  struct Equal {
    using is_transparent = void;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return a.context == b.context && a.spec == b.spec;
    }
  };
  struct Slot {
    std::mutex mutex;
    abi::Module module = nullptr;
  };

  core::Status load_module(const CurrentContext& context, const Config& config, Slot& slot);
  core::Status load_kernel(const CurrentContext& context, const KernelSpec& spec,
                           abi::Module module, Kernel& kernel) const;

  Binaries& binaries_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<Key, std::unique_ptr<const Kernel>, Hash, Equal> kernels_;
  std::unordered_map<std::uint64_t, std::unordered_map<Config, std::shared_ptr<Slot>>> slots_;
};

}  // namespace attn::cuda
