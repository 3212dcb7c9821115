// The fake driver's graphs: chains of kernels, which count as launched kernels when they are. Wrong
// use is counted, and refused where it can be.
#include <atomic>
#include <memory>
#include <mutex>
#include <set>

#include "fake_functions.hpp"

namespace attn::cuda::abi {
struct GraphNodeHandle {
  Graph graph;
  std::size_t place;
};
}  // namespace attn::cuda::abi

namespace {

struct Kernel {
  abi::KernelNodeParams params;
  std::vector<unsigned char> parameters;
  unsigned cluster = 1;
};

Kernel kernel_of(const abi::KernelNodeParams& params) {
  return {params, parameters_of(params.function, params.parameters), 1};
}

std::mutex alive_mutex;
std::set<const void*>& alive() {
  static auto& all = *new std::set<const void*>;
  return all;
}
bool is_alive(const void* handle) {
  const std::lock_guard<std::mutex> lock(alive_mutex);
  return alive().count(handle) == 1;
}
template <class Handle>
Handle* begin(Handle* handle) {
  const std::lock_guard<std::mutex> lock(alive_mutex);
  alive().insert(handle);
  return handle;
}
template <class Handle>
abi::Result end(Handle* handle) {
  {
    const std::lock_guard<std::mutex> lock(alive_mutex);
    if (alive().erase(handle) == 0) return abi::kInvalidValue;
  }
  delete handle;
  return 0;
}

abi::Result misused() {
  ++state.misused_graphs;
  return abi::kInvalidValue;
}

// The mode in which nothing that the thread does breaks a capture of another stream.
thread_local int capture_mode = 0;
bool may_break_captures() {
  return capture_mode != abi::kCaptureModeRelaxed;
}

}  // namespace

namespace attn::cuda::abi {
struct GraphHandle {
  std::vector<std::unique_ptr<GraphNodeHandle>> nodes;
  std::vector<Kernel> kernels;
};
struct GraphExecHandle {
  Graph graph;
  std::vector<Kernel> kernels;
  std::atomic<bool> in_use = false;
};
}  // namespace attn::cuda::abi

namespace {

// An executable graph is used by one thread at a time.
class Use {
 public:
  explicit Use(abi::GraphExec exec) : exec_(exec), alone_(!exec->in_use.exchange(true)) {}
  ~Use() { exec_->in_use = false; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  [[nodiscard]] bool alone() const { return alone_; }

 private:
  abi::GraphExec exec_;
  bool alone_;
};

}  // namespace

abi::Result cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(capture_mode, *mode);
  return 0;
}
abi::Result cuGraphCreate(abi::Graph* graph, unsigned) {
  FAIL_IF_ASKED();
  *graph = begin(new abi::GraphHandle);
  return 0;
}
abi::Result cuGraphAddKernelNode_v2(abi::GraphNode* node, abi::Graph graph,
                                    const abi::GraphNode* dependencies,
                                    std::size_t num_dependencies,
                                    const abi::KernelNodeParams* params) {
  FAIL_IF_ASKED();
  if (!is_alive(graph)) return misused();
  auto& nodes = graph->nodes;
  // A chain: behind the node that was added last.
  if (num_dependencies != (nodes.empty() ? 0 : 1)) return misused();
  if (num_dependencies == 1 && dependencies[0] != nodes.back().get()) return misused();
  nodes.push_back(std::make_unique<abi::GraphNodeHandle>(graph, nodes.size()));
  graph->kernels.push_back(kernel_of(*params));
  *node = nodes.back().get();
  return 0;
}
abi::Result cuGraphKernelNodeSetAttribute(abi::GraphNode node, int attribute,
                                          const abi::LaunchAttributeValue* value) {
  FAIL_IF_ASKED();
  if (!is_alive(node->graph) || attribute != abi::kLaunchClusterDimension) return misused();
  state.graph_cluster = value->cluster.x;
  node->graph->kernels[node->place].cluster = value->cluster.x;
  return 0;
}
abi::Result cuGraphInstantiateWithFlags(abi::GraphExec* exec, abi::Graph graph,
                                        unsigned long long) {
  FAIL_IF_ASKED();
  if (!is_alive(graph) || may_break_captures()) return misused();
  *exec = begin(new abi::GraphExecHandle{graph, graph->kernels});
  ++state.graphs_made;
  ++state.graphs;
  return 0;
}
abi::Result cuGraphUpload(abi::GraphExec exec, abi::Stream) {
  FAIL_IF_ASKED();
  return is_alive(exec) && !may_break_captures() ? 0 : misused();
}
abi::Result cuGraphExecKernelNodeSetParams_v2(abi::GraphExec exec, abi::GraphNode node,
                                              const abi::KernelNodeParams* params) {
  FAIL_IF_ASKED();
  if (!is_alive(exec) || !is_alive(exec->graph) || node->graph != exec->graph) return misused();
  const Use use(exec);
  if (!use.alone()) return misused();
  const unsigned cluster = exec->kernels[node->place].cluster;
  exec->kernels[node->place] = kernel_of(*params);
  exec->kernels[node->place].cluster = cluster;
  return 0;
}
abi::Result cuGraphLaunch(abi::GraphExec exec, abi::Stream stream) {
  FAIL_IF_ASKED();
  if (!is_alive(exec)) return misused();
  const Use use(exec);
  if (!use.alone()) return misused();
  ++state.graph_launches;
  for (const Kernel& kernel : exec->kernels) {
    const abi::KernelNodeParams& p = kernel.params;
    abi::LaunchAttribute cluster{};
    cluster.id = abi::kLaunchClusterDimension;
    cluster.value.cluster = {kernel.cluster, 1, 1};
    record({p.grid_x, p.grid_y, p.grid_z, p.block_x, p.block_y, p.block_z, p.shared_bytes, stream,
            &cluster, 1},
           p.function, kernel.parameters);
  }
  return 0;
}
abi::Result cuGraphExecDestroy(abi::GraphExec exec) {
  if (may_break_captures() || end(exec) != 0) return misused();
  --state.graphs;
  return 0;
}
abi::Result cuGraphDestroy(abi::Graph graph) {
  return may_break_captures() || end(graph) != 0 ? misused() : 0;
}
