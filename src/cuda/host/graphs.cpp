// Executable graphs; see graphs.hpp.
#include "cuda/host/graphs.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "cuda/host/apart_from_captures.hpp"

namespace attn::cuda {
namespace {

// Whether the stream belongs to the context. Kernels of a graph run in the context that they were
// loaded into. Only plain launches run in the context of a stream that belongs to another one, such
// as a green context, which has a subset of the multiprocessors.
bool is_of(abi::Stream stream, const CurrentContext& context) {
  const DriverApi& api = context.driver().api();
  abi::Context owner = nullptr;
  unsigned long long id = 0;
  return api.cuStreamGetCtx(stream, &owner) == abi::kSuccess &&
         api.cuCtxGetId(owner, &id) == abi::kSuccess && id == context.id();
}

bool captures(const DriverApi& api, abi::Stream stream) {
  int status = abi::kCaptureNone;
  return api.cuStreamIsCapturing(stream, &status) != abi::kSuccess || status != abi::kCaptureNone;
}

// `pointers` holds the address of the parameters. The driver reads them before the call that takes
// the node's parameters returns.
abi::KernelNodeParams node_params(const KernelLaunch& launch, void* (&pointers)[1]) {
  const auto& [kernel, grid, parameters] = launch;
  pointers[0] = const_cast<void*>(parameters.data);  // the driver only reads
  abi::KernelNodeParams params{};
  params.function = kernel->function;
  params.grid_x = grid.x;
  params.grid_y = grid.y;
  params.grid_z = grid.z;
  params.block_x = kernel->spec.threads;
  params.block_y = params.block_z = 1;
  params.shared_bytes = kernel->spec.shared_bytes;
  params.parameters = pointers;
  return params;
}

core::Status failed(const CurrentContext& context, abi::Result result,
                    std::span<const KernelLaunch> launches) {
  std::string tried = "launching ";
  for (const KernelLaunch& launch : launches) {
    if (&launch != launches.data()) tried += ", then ";
    tried += to_string(launch);
  }
  return context.driver().status(result, "cuGraphLaunch",
                                 tried + " on cuda:" + std::to_string(context.ordinal()));
}

}  // namespace

// Callers must hold `mutex`: neither a graph nor the update of its parameters is thread-safe.
class Graphs::Graph {
 public:
  explicit Graph(const DriverApi& api) : api_(api) {}
  // Queued and running launches still complete. The context must be current.
  ~Graph() { clear(); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  [[nodiscard]] bool made() const { return exec_ != nullptr; }
  bool make(std::span<const KernelLaunch> launches, abi::Stream stream);
  // Sets grids and parameters of later launches. Queued launches keep their own.
  bool set(std::span<const KernelLaunch> launches);
  abi::Result launch(abi::Stream stream) { return api_.cuGraphLaunch(exec_, stream); }

  std::mutex mutex;

 private:
  void clear();

  const DriverApi& api_;
  abi::Graph graph_ = nullptr;  // owns nodes_, so it lives as long as they are used
  std::array<abi::GraphNode, kMaxKernels> nodes_{};
  abi::GraphExec exec_ = nullptr;
};

bool Graphs::Graph::make(std::span<const KernelLaunch> launches, abi::Stream stream) {
  const ApartFromCaptures apart(api_);
  abi::Result result = api_.cuGraphCreate(&graph_, 0);
  if (result != abi::kSuccess) graph_ = nullptr;
  for (std::size_t i = 0; i < launches.size() && result == abi::kSuccess; ++i) {
    void* pointers[1];
    const abi::KernelNodeParams params = node_params(launches[i], pointers);
    const abi::GraphNode* before = i > 0 ? &nodes_[i - 1] : nullptr;
    result = api_.cuGraphAddKernelNode_v2(&nodes_[i], graph_, before, i > 0 ? 1 : 0, &params);
    const unsigned cluster = launches[i].kernel->spec.cluster;
    if (result != abi::kSuccess || cluster == 1) continue;
    abi::LaunchAttributeValue value{};
    value.cluster = {cluster, 1, 1};
    result = api_.cuGraphKernelNodeSetAttribute(nodes_[i], abi::kLaunchClusterDimension, &value);
  }
  if (result == abi::kSuccess) {
    result = api_.cuGraphInstantiateWithFlags(&exec_, graph_, 0);
    if (result != abi::kSuccess) exec_ = nullptr;
  }
  // Without this, the first launch would upload the graph, and fail if no memory is left.
  if (result == abi::kSuccess) result = api_.cuGraphUpload(exec_, stream);
  if (result != abi::kSuccess) clear();
  return result == abi::kSuccess;
}

bool Graphs::Graph::set(std::span<const KernelLaunch> launches) {
  for (std::size_t i = 0; i < launches.size(); ++i) {
    void* pointers[1];
    const abi::KernelNodeParams params = node_params(launches[i], pointers);
    if (api_.cuGraphExecKernelNodeSetParams_v2(exec_, nodes_[i], &params) != abi::kSuccess) {
      return false;
    }
  }
  return true;
}

void Graphs::Graph::clear() {
  if (graph_ == nullptr) return;
  const ApartFromCaptures apart(api_);
  if (exec_ != nullptr) api_.cuGraphExecDestroy(exec_);
  api_.cuGraphDestroy(graph_);
  exec_ = nullptr;
  graph_ = nullptr;
}

std::size_t Graphs::Hash::operator()(const Key& key) const {
  auto hash = reinterpret_cast<std::uintptr_t>(key.stream);
  for (const abi::Function function : key.functions) {
    if (function == nullptr) break;
    hash = (hash ^ reinterpret_cast<std::uintptr_t>(function)) * std::size_t{0x9E3779B97F4A7C15u};
    hash ^= hash >> 32;
  }
  return hash;
}

Graphs& Graphs::of(const CurrentContext& context) {
  using Owner = std::pair<const Driver*, std::uint64_t>;
  thread_local Owner last_owner;
  thread_local Graphs* last = nullptr;
  const Owner owner{&context.driver(), context.id()};
  if (last != nullptr && last_owner == owner) return *last;
  static std::mutex mutex;
  static auto& all = *new std::map<Owner, std::unique_ptr<Graphs>>;  // never freed
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Graphs>& graphs = all[owner];
  if (graphs == nullptr) graphs = std::make_unique<Graphs>(context.driver());
  last_owner = owner;
  last = graphs.get();
  return *last;
}

std::shared_ptr<Graphs::Graph> Graphs::find_or_note(const Key& key) {
  std::shared_ptr<Graph> oldest;  // destroyed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    found->second.used = ++clock_;
    return found->second.graph;
  }
  if (entries_.size() >= kMaxGraphs) {
    const auto first = std::min_element(
        entries_.begin(), entries_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    oldest = std::move(first->second.graph);
    entries_.erase(first);
  }
  entries_.emplace(key, Entry{std::make_shared<Graph>(driver_.api()), ++clock_});
  return nullptr;
}

void Graphs::drop(const Key& key, const Graph* graph) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.graph.get() == graph) entries_.erase(found);
}

std::optional<core::Status> Graphs::launch(const CurrentContext& context,
                                           std::span<const KernelLaunch> launches,
                                           abi::Stream stream) {
  // Checked on each call: another stream may have got the handle of a destroyed one.
  if (!is_of(stream, context)) return std::nullopt;
  Key key;
  key.stream = stream;
  for (std::size_t i = 0; i < launches.size(); ++i) {
    key.functions[i] = launches[i].kernel->function;
    key.clusters[i] = static_cast<std::uint8_t>(launches[i].kernel->spec.cluster);
  }
  // A graph is created on the second call, because creating one costs more than it saves in a few
  // calls. Streams with a single call, and more keys in turn than are kept, would pay on each call.
  const std::shared_ptr<Graph> graph = find_or_note(key);
  if (graph == nullptr) return std::nullopt;
  const std::lock_guard<std::mutex> lock(graph->mutex);
  if (!graph->made()) {
    if (!graph->make(launches, stream)) return std::nullopt;
  } else if (!graph->set(launches)) {
    drop(key, graph.get());
    return std::nullopt;
  }
  const abi::Result result = graph->launch(stream);
  if (result == abi::kSuccess) return core::Status{};
  // Some of the kernels may be queued, so launching them one by one could run them twice.
  drop(key, graph.get());
  return failed(context, result, launches);
}

LaunchMode parse_launch_mode(const char* text) {
  const std::string_view name = text != nullptr ? text : "";
  if (name == "kernels") return LaunchMode::kernels;
  if (name == "overlap") return LaunchMode::overlap;
  return LaunchMode::graphs;
}

LaunchMode launch_mode() {
  static const LaunchMode mode = parse_launch_mode(std::getenv("ATTN_CUDA_LAUNCH"));
  return mode;
}

core::Status launch_in_order(const CurrentContext& context, std::span<const KernelLaunch> launches,
                             abi::Stream stream) {
  std::array<KernelLaunch, kMaxKernels> kept;
  std::size_t count = 0;
  const LaunchMode mode = launch_mode();
  const bool plain = mode != LaunchMode::graphs ||
                     reinterpret_cast<std::uintptr_t>(stream) == abi::kStreamPerThread;
  for (const KernelLaunch& launch : launches) {
    if (launch.grid.empty()) continue;
    kept[count++] = launch;
  }
  if (count == 0) return {};
  const std::span<const KernelLaunch> chain = std::span(kept).first(count);
  if (!plain && !captures(context.driver().api(), stream)) {
    auto status = Graphs::of(context).launch(context, chain, stream);
    if (status.has_value()) return *std::move(status);
  }
  bool overlap = false;  // the first kernel must wait for earlier work of the caller
  for (const KernelLaunch& launch : chain) {
    core::Status status = launch_kernel(context, launch, stream, overlap);
    if (!status.ok()) return status;
    overlap = mode == LaunchMode::overlap;
  }
  return {};
}

}  // namespace attn::cuda
