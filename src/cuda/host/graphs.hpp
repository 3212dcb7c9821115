// Graphs: launches the kernels of a call together, by an executable graph. Each call sets its own
// grids and parameters in the graph's nodes. A kernel launch takes the driver about 3 us. Setting
// the parameters of three kernels and launching their graph takes less than 2 us in total (H200,
// driver 580, 2026-11).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "cuda/host/launch.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda {

// Executable graphs of a context, by stream and sequence of kernels. Streams do not share a graph,
// because launches of one executable graph run in sequence on whatever streams they are queued, so
// streams would wait for each other.
class Graphs {
 public:
  // The most graphs to keep. The least recently used one is evicted.
  static constexpr std::size_t kMaxGraphs = 64;

  explicit Graphs(const Driver& driver) : driver_(driver) {}
  // The instance of a context. Never freed: destroying a context destroys its graphs, and no other
  // context gets its id.
  static Graphs& of(const CurrentContext& context);

  // Launches all kernels. No grid may be empty, and the context must be the one passed to of().
  // Returns nullopt if nothing was launched; the caller then launches the kernels one by one. This
  // happens on the first call for a stream and sequence of kernels, if the graph can't be created
  // (for example, without memory), if the driver rejects the new parameters, and on streams of
  // other contexts, such as green contexts.
  std::optional<core::Status> launch(const CurrentContext& context,
                                     std::span<const KernelLaunch> launches, abi::Stream stream);

 private:
  struct Key {
    abi::Stream stream = nullptr;
    std::array<abi::Function, kMaxKernels> functions{};
    std::array<std::uint8_t, kMaxKernels> clusters{};  // set once, when the graph is created
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  class Graph;
  struct Entry {
    std::shared_ptr<Graph> graph;
    std::uint64_t used = 0;  // value of clock_ at the last use
  };

  // Null for a new key, which is added.
  std::shared_ptr<Graph> find_or_note(const Key& key);
  void drop(const Key& key, const Graph* graph);

  const Driver& driver_;
  std::mutex mutex_;
  std::uint64_t clock_ = 0;
  std::unordered_map<Key, Entry, Hash> entries_;
};

// How a call's kernels are launched: by a graph; one by one; or one by one with programmatic
// dependent launch, where each kernel begins with ptx::WaitForPrimary() (needs 9.0). The
// environment variable ATTN_CUDA_LAUNCH, read once, selects a mode for measurements.
enum class LaunchMode { graphs, kernels, overlap };
LaunchMode parse_launch_mode(const char* text);  // null or an unknown name: graphs
LaunchMode launch_mode();

// Launches the kernels of a call in order, at most kMaxKernels; skips empty grids. Uses a graph if
// possible. On a capturing stream, the kernels are recorded one by one.
core::Status launch_in_order(const CurrentContext& context, std::span<const KernelLaunch> launches,
                             abi::Stream stream);

}  // namespace attn::cuda
