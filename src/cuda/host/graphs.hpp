// Graphs: the kernels of a call launched together, by an executable graph that each call gives its
// own grids and parameters. A launch takes the driver about 3 us a kernel, that of a graph of three
// kernels less than 2, their parameters set before included (H200, driver 580, 2026-11).
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

// Executable graphs of a context, found by what they stand for: a stream and the kernels in order.
// By stream, since launches of one executable graph run one after the other wherever they are
// queued, so that streams which shared one would wait for each other.
class Graphs {
 public:
  // Pairs of stream and kernels that are kept; the one used longest ago makes room.
  static constexpr std::size_t kMaxGraphs = 64;

  explicit Graphs(const Driver& driver) : driver_(driver) {}
  // The context's. Never freed: a destroyed context took its graphs with it, and as its id doesn't
  // come again, nobody asks for them.
  static Graphs& of(const CurrentContext& context);

  // Launches all; none of the grids is empty, and the context is that of `of`. Without a status
  // nothing was launched, and the kernels are to be launched one by one: at the first call for such
  // a pair, where no graph can be made (for lack of memory, say), and where it doesn't take what a
  // call gives it.
  std::optional<core::Status> launch(const CurrentContext& context,
                                     std::span<const KernelLaunch> launches, abi::Stream stream);

 private:
  struct Key {
    abi::Stream stream = nullptr;
    std::array<abi::Function, kMaxKernels> functions{};
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };
  class Graph;
  struct Entry {
    std::shared_ptr<Graph> graph;
    std::uint64_t used = 0;  // when: see clock_
  };

  // Null for a key that is new.
  std::shared_ptr<Graph> find_or_note(const Key& key);
  void drop(const Key& key, const Graph* graph);

  const Driver& driver_;
  std::mutex mutex_;
  std::uint64_t clock_ = 0;
  std::unordered_map<Key, Entry, Hash> entries_;
};

// How a call's kernels are launched: by a graph; one by one; or one by one with programmatic
// dependent launch, for which each kernel begins with ptx::WaitForPrimary() (needs 9.0). For
// measurements: the environment variable ATTN_CUDA_LAUNCH, read once, names one.
enum class LaunchMode { graphs, kernels, overlap };
LaunchMode parse_launch_mode(const char* text);  // anything else, and null: graphs
LaunchMode launch_mode();

// The kernels of a call, kMaxKernels at most, in order; empty grids are skipped. By a graph if
// possible; a stream that captures records kernels.
core::Status launch_in_order(const CurrentContext& context, std::span<const KernelLaunch> launches,
                             abi::Stream stream);

}  // namespace attn::cuda
