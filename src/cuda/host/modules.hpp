// Modules: kernels loaded into contexts. Lookups share a lock, which writers hold only briefly.
// Kernels are never unloaded; destroying a context unloads its modules.
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

// One kernel of a plan: the code, the entry point and the resources of a block.
struct KernelSpec {
  Config config;
  const char* entry = "";     // extern "C" __global__, a string literal
  unsigned threads = 0;       // per block
  unsigned shared_bytes = 0;  // dynamic shared memory per block
  unsigned cluster = 1;       // blocks along x that form a cluster

  bool operator==(const KernelSpec& other) const {
    return threads == other.threads && shared_bytes == other.shared_bytes &&
           cluster == other.cluster &&
           (entry == other.entry || std::string_view(entry) == other.entry) &&
           config == other.config;
  }
};

// A loaded kernel and its attributes as the driver reports them.
struct Kernel {
  abi::Function function = nullptr;
  KernelSpec spec;
  int registers = 0;            // per thread
  int local_bytes = 0;          // per thread: spills and arrays
  int static_shared_bytes = 0;  // per block
  int blocks_per_sm = 0;        // occupancy in blocks
};

class Modules {
 public:
  explicit Modules(Binaries& binaries) : binaries_(binaries) {}
  // The instance of this process for a cache folder and driver; see Binaries::of. Allocates nothing
  // if the thread's previous call had the same arguments.
  static Modules& of(const Driver& driver, std::string_view cache_root);

  // Finds the kernels of this context; null for those not loaded yet. Allocates nothing.
  void find_all(const CurrentContext& context, std::span<const KernelSpec> specs,
                std::span<const Kernel*> kernels) const;
  [[nodiscard]] const Kernel* find(const CurrentContext& context, const KernelSpec& spec) const {
    const Kernel* kernel = nullptr;
    find_all(context, {&spec, 1}, {&kernel, 1});
    return kernel;
  }
  // Finds the kernel, or compiles and loads it. The pointer stays valid. Must not be called while
  // the stream of the call captures: see find_or_load in launch.hpp.
  core::Status load(const CurrentContext& context, const KernelSpec& spec, const Kernel*& kernel);
  // The same for several kernels. Compiles them concurrently.
  core::Status load_all(const CurrentContext& context, std::span<const KernelSpec> specs,
                        std::span<const Kernel*> kernels);

  [[nodiscard]] Binaries& binaries() { return binaries_; }

 private:
  struct Key {
    std::uint64_t context = 0;
    KernelSpec spec;
    bool operator==(const Key&) const = default;
  };
  struct KeyRef {  // looks up a Key without copying the spec
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
