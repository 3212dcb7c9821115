// The kernels of a call launched together: when by a graph, what each call gives it, and what is
// left when something fails.
#include "cuda/host/graphs.hpp"

#include <cstring>
#include <thread>
#include <vector>

#include "fake.hpp"

namespace attn::cuda::test {
namespace {

class CudaGraphs : public WithFakeDriver {
 protected:
  static constexpr std::size_t kKernels = 3;

  CudaGraphs() {
    const char* entries[] = {"attn_first", "attn_second", "attn_third"};
    for (std::size_t i = 0; i < kKernels; ++i) {
      kernels[i].function = reinterpret_cast<abi::Function>(i + 1);
      kernels[i].spec.config = Config("passes/backward_preprocess.cu");
      kernels[i].spec.entry = entries[i];
      kernels[i].spec.threads = 32 * static_cast<unsigned>(i + 1);
      kernels[i].spec.shared_bytes = 100 * static_cast<unsigned>(i);
    }
  }
  void SetUp() override {
    WithFakeDriver::SetUp();
    own_context(id);  // no graphs yet
    fake().parameter_bytes = sizeof(int);
    graphs = fake().graphs;
    made = fake().graphs_made;
    by_graph = fake().graph_launches;
  }
  void TearDown() override {
    EXPECT_EQ(fake().misused_graphs, 0);
    WithFakeDriver::TearDown();
  }

  static abi::Stream stream(std::uintptr_t handle) {
    return reinterpret_cast<abi::Stream>(handle << 4);
  }
  // With `value` as parameter and first grid.
  core::Status call(abi::Stream on, int value, std::size_t num_kernels = kKernels) {
    const CurrentContext context(fake_driver(), 0);
    std::array<KernelLaunch, kKernels> launches;
    for (std::size_t i = 0; i < num_kernels; ++i) {
      launches[i] = {&kernels[i], {i == 0 ? static_cast<unsigned>(value) : 7}, block_of(value)};
    }
    return launch_in_order(context, std::span(launches).first(num_kernels), on);
  }
  // Calls, and what was launched is what the call says; whether by a graph.
  bool launched_by_graph(abi::Stream on, int value) {
    fake().launched.clear();
    const int before = fake().graph_launches;
    const core::Status status = call(on, value);
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(fake().launched.size(), kKernels);
    for (std::size_t i = 0; i < fake().launched.size(); ++i) {
      const FakeLaunch& launch = fake().launched[i];
      EXPECT_EQ(launch.function, i + 1);
      EXPECT_EQ(launch.blocks, i == 0 ? static_cast<unsigned>(value) : 7);
      EXPECT_EQ(launch.threads, kernels[i].spec.threads);
      EXPECT_EQ(launch.shared_bytes, kernels[i].spec.shared_bytes);
      EXPECT_EQ(launch.stream, on);
      EXPECT_EQ(value_of(launch), value);
    }
    return fake().graph_launches != before;
  }
  static int value_of(const FakeLaunch& launch) {
    int value = -1;
    EXPECT_EQ(launch.parameters.size(), sizeof value);
    std::memcpy(&value, launch.parameters.data(), sizeof value);
    return value;
  }
  static void fail(const char* function, int result = abi::kOutOfMemory) {
    fake().failing = function;
    fake().failing_result = result;
  }

  std::array<Kernel, kKernels> kernels;
  // Since the test began.
  [[nodiscard]] int num_graphs() const { return fake().graphs - graphs; }
  [[nodiscard]] int num_made() const { return fake().graphs_made - made; }
  [[nodiscard]] int num_by_graph() const { return fake().graph_launches - by_graph; }

  static inline std::uint64_t last_id = 1000;
  const std::uint64_t id = ++last_id;

 private:
  int graphs = 0;
  int made = 0;
  int by_graph = 0;
};

TEST_F(CudaGraphs, AreMadeAtTheSecondCallAndUsedAgain) {
  EXPECT_FALSE(launched_by_graph(stream(1), 5));
  EXPECT_EQ(num_made(), 0);
  for (const int value : {5, 8, 2}) EXPECT_TRUE(launched_by_graph(stream(1), value));
  EXPECT_EQ(num_made(), 1);
  // The default stream is one like others.
  EXPECT_FALSE(launched_by_graph(nullptr, 5));
  EXPECT_TRUE(launched_by_graph(nullptr, 6));
}

TEST_F(CudaGraphs, AreOfOneStreamAndItsKernels) {
  for (const int value : {1, 2, 3}) {
    EXPECT_EQ(launched_by_graph(stream(1), value), value > 1);
    EXPECT_EQ(launched_by_graph(stream(2), 10 * value), value > 1);
  }
  EXPECT_EQ(num_made(), 2);
  for (const int value : {1, 2, 3}) EXPECT_TRUE(call(stream(1), value, 2).ok());
  EXPECT_EQ(num_made(), 3);
  kernels[2].function = reinterpret_cast<abi::Function>(9);  // loaded again
  for (const int value : {1, 2, 3}) EXPECT_TRUE(call(stream(1), value).ok());
  EXPECT_EQ(num_made(), 4);
  EXPECT_EQ(fake().launched.back().function, 9u);
}

TEST_F(CudaGraphs, LeaveEmptyGridsOut) {
  const CurrentContext context(fake_driver(), 0);
  for (int n = 0; n < 3; ++n) {
    fake().launched.clear();
    const ParameterBlock value = block_of(n);
    const KernelLaunch launches[] = {
        {&kernels[0], {4}, value}, {&kernels[1], {0}, value}, {&kernels[2], {4}, value}};
    EXPECT_TRUE(launch_in_order(context, launches, stream(1)).ok());
    ASSERT_EQ(fake().launched.size(), 2u);
    EXPECT_EQ(fake().launched[1].function, 3u);
  }
  EXPECT_EQ(num_made(), 1);
  const int before = fake().launches;
  for (int n = 0; n < 3; ++n) {
    const KernelLaunch none[] = {{&kernels[0], {0}, {}}, {&kernels[1], {4, 0, 1}, {}}};
    EXPECT_TRUE(launch_in_order(context, none, stream(1)).ok());
    EXPECT_TRUE(launch_in_order(context, {}, stream(1)).ok());
  }
  EXPECT_EQ(fake().launches, before);
  EXPECT_EQ(num_made(), 1);
}

TEST_F(CudaGraphs, AreNotForEveryCall) {
  for (const int value : {1, 2}) EXPECT_EQ(launched_by_graph(stream(1), value), value > 1);
  fake().capturing = abi::kCaptureActive;
  for (const int value : {3, 4}) EXPECT_FALSE(launched_by_graph(stream(1), value)) << "captured";
  fake().capturing = abi::kCaptureNone;
  EXPECT_TRUE(launched_by_graph(stream(1), 5));
  const auto each_thread = reinterpret_cast<abi::Stream>(abi::kStreamPerThread);
  for (const int value : {1, 2, 3}) EXPECT_FALSE(launched_by_graph(each_thread, value));
  fake().foreign_streams = true;
  for (const int value : {1, 2, 3}) EXPECT_FALSE(launched_by_graph(stream(2), value));
  fake().foreign_streams = false;
  EXPECT_EQ(num_made(), 1);
}

// A green context's stream may get the handle of a destroyed stream that has a graph. Launched
// there, the graph would run on all multiprocessors.
TEST_F(CudaGraphs, AreNotLaunchedOnAnotherContextsStreamWithTheSameHandle) {
  for (const int value : {1, 2}) EXPECT_EQ(launched_by_graph(stream(1), value), value > 1);
  fake().foreign_streams = true;
  for (const int value : {3, 4}) EXPECT_FALSE(launched_by_graph(stream(1), value));
  fake().foreign_streams = false;
  EXPECT_TRUE(launched_by_graph(stream(1), 5));
  EXPECT_EQ(num_made(), 1);
}

TEST_F(CudaGraphs, LaunchClusters) {
  for (const unsigned cluster : {2u, 4u}) {  // of the same function
    kernels[1].spec.cluster = cluster;
    for (const int value : {1, 2, 3}) {
      EXPECT_EQ(launched_by_graph(stream(3), value), value > 1) << cluster;
    }
    EXPECT_EQ(fake().graph_cluster, cluster);
  }
  EXPECT_EQ(num_made(), 2);
}

TEST_F(CudaGraphs, ThatCanNotBeMadeAreDoneWithout) {
  EXPECT_FALSE(launched_by_graph(stream(1), 1));
  for (const char* function : {"cuStreamGetCtx", "cuGraphCreate", "cuGraphAddKernelNode_v2",
                               "cuGraphInstantiateWithFlags", "cuGraphUpload"}) {
    fail(function);
    for (const int value : {2, 3}) EXPECT_FALSE(launched_by_graph(stream(1), value)) << function;
    EXPECT_EQ(num_graphs(), 0) << function;
  }
  fake().failing = nullptr;
  EXPECT_TRUE(launched_by_graph(stream(1), 4)) << "a failure is not kept";
  fail("cuGraphExecKernelNodeSetParams_v2");
  EXPECT_FALSE(launched_by_graph(stream(1), 5));
  EXPECT_EQ(num_graphs(), 0) << "one that took some of a call's parameters is not used again";
  fake().failing = nullptr;
  for (const int value : {6, 7}) EXPECT_EQ(launched_by_graph(stream(1), value), value > 6);
}

TEST_F(CudaGraphs, TellWhatTheyWereLaunching) {
  for (const int value : {1, 2}) EXPECT_EQ(launched_by_graph(stream(1), value), value > 1);
  const int before = fake().launches;
  fail("cuGraphLaunch");
  const core::Status memory = call(stream(1), 3);
  EXPECT_EQ(memory.code, ErrorCode::out_of_memory);
  EXPECT_EQ(
      memory.message,
      "cuda: cuGraphLaunch: CUDA_ERROR_OUT_OF_MEMORY (as the test asked), while launching "
      "attn_first of passes/backward_preprocess.cu with 3x1x1 blocks of 32 threads and 0 bytes of "
      "shared memory, then attn_second of passes/backward_preprocess.cu with 7x1x1 blocks of 64 "
      "threads "
      "and 100 bytes of shared memory, then attn_third of passes/backward_preprocess.cu with 7x1x1 "
      "blocks of 96 threads and 200 bytes of shared memory on cuda:0");
  EXPECT_EQ(fake().launches, before) << "what may be queued is not launched again";
  EXPECT_EQ(num_graphs(), 0);
  fake().failing = nullptr;
  for (const int value : {4, 5}) EXPECT_EQ(launched_by_graph(stream(1), value), value > 4);
  fail("cuGraphLaunch", abi::kIllegalAddress);
  const core::Status broken = call(stream(1), 3);
  EXPECT_EQ(broken.code, ErrorCode::device_error);
  EXPECT_NE(broken.message.find("can't be used any more"), std::string::npos) << broken.message;
  // Launched one by one, the kernel that fails is the one named.
  fail("cuLaunchKernelEx");
  const core::Status plain = call(stream(1), 3);
  EXPECT_EQ(plain.code, ErrorCode::out_of_memory);
  EXPECT_NE(plain.message.find("cuLaunchKernelEx"), std::string::npos) << plain.message;
  EXPECT_NE(plain.message.find("while launching attn_first of"), std::string::npos);
  EXPECT_EQ(plain.message.find("attn_second"), std::string::npos) << plain.message;
}

TEST_F(CudaGraphs, AreBoundedInNumber) {
  constexpr int kMax = Graphs::kMaxGraphs;
  for (int n = 0; n < 3 * kMax; ++n) {
    const auto on = static_cast<std::uintptr_t>(n + 2);
    EXPECT_FALSE(launched_by_graph(stream(on), 1)) << "a stream of one call";
  }
  EXPECT_EQ(num_made(), 0);
  for (int n = 0; n < 3 * kMax; ++n) {
    const auto on = static_cast<std::uintptr_t>(n + 2);
    // Streams of the last kMax calls before are known; this one is used all along.
    EXPECT_EQ(launched_by_graph(stream(1), 1), n > 0);
    for (const int value : {1, 2, 3}) EXPECT_TRUE(call(stream(on), value).ok());
    EXPECT_LE(num_graphs(), kMax);
  }
  EXPECT_EQ(num_graphs(), kMax);
  EXPECT_TRUE(launched_by_graph(stream(1), 2));
  EXPECT_TRUE(launched_by_graph(stream(3 * kMax + 1), 2)) << "the last";
  EXPECT_FALSE(launched_by_graph(stream(3 * kMax + 1 - kMax), 2)) << "made room";
}

TEST_F(CudaGraphs, OfADestroyedContextAreLeftAlone) {
  for (const int value : {1, 2}) EXPECT_EQ(launched_by_graph(stream(1), value), value > 1);
  own_context(0);
  own_context(++last_id);
  for (const int value : {3, 4}) EXPECT_EQ(launched_by_graph(stream(1), value), value > 3);
  EXPECT_EQ(num_made(), 2);
  for (std::uintptr_t on = 2; on < 2 + 2 * Graphs::kMaxGraphs; ++on) {
    for (const int value : {1, 2}) EXPECT_TRUE(call(stream(on), value).ok());
  }
  EXPECT_EQ(num_graphs(), 1 + static_cast<int>(Graphs::kMaxGraphs));
}

// Nothing that this does may break a capture of another stream, and the thread's mode is the
// caller's.
TEST_F(CudaGraphs, KeepTheThreadsCaptureMode) {
  for (int mode = 0; mode < 3; ++mode) {
    int exchanged = mode;
    fake_driver().api().cuThreadExchangeStreamCaptureMode(&exchanged);
    const auto on = static_cast<std::uintptr_t>(mode + 1);
    for (const int value : {1, 2, 3}) EXPECT_TRUE(call(stream(on), value).ok());
    fail("cuGraphLaunch");
    EXPECT_FALSE(call(stream(on), 4).ok());
    fake().failing = nullptr;
    exchanged = 0;
    fake_driver().api().cuThreadExchangeStreamCaptureMode(&exchanged);
    EXPECT_EQ(exchanged, mode);
  }
  EXPECT_EQ(num_made(), 3);
}

// What threads launch at once: each call's kernels with that call's parameter.
class CudaGraphsOfThreads : public CudaGraphs {
 protected:
  void run(int num_threads, int calls, int streams) {
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; ++t) {
      threads.emplace_back([this, t, calls, streams] {
        own_context(id);
        for (int n = 0; n < calls; ++n) {
          const auto on = static_cast<std::uintptr_t>((t + n) % streams + 1);
          const core::Status status = call(stream(on), 1 + t * calls + n);
          EXPECT_TRUE(status.ok()) << status.message;
        }
        own_context(0);
      });
    }
    for (std::thread& thread : threads) thread.join();
    const auto total = static_cast<std::size_t>(num_threads * calls);
    ASSERT_EQ(fake().launched.size(), total * kKernels);
    std::vector<std::vector<std::uintptr_t>> found(total + 1);
    for (const FakeLaunch& launch : fake().launched) {
      const int value = value_of(launch);
      ASSERT_TRUE(value >= 1 && value <= num_threads * calls) << value;
      found[static_cast<std::size_t>(value)].push_back(launch.function);
      if (launch.function == 1) {
        EXPECT_EQ(launch.blocks, static_cast<unsigned>(value));
      }
    }
    found.erase(found.begin());
    const std::vector<std::uintptr_t> in_order{1, 2, 3};
    for (const auto& functions : found) EXPECT_EQ(functions, in_order);
  }
};

TEST_F(CudaGraphsOfThreads, OnOneStream) {
  run(6, 300, 1);
  EXPECT_EQ(num_made(), 1);
  EXPECT_EQ(num_by_graph(), 6 * 300 - 1);
}

TEST_F(CudaGraphsOfThreads, OnSeveral) {
  run(6, 300, 5);
  EXPECT_EQ(num_made(), 5);
}

TEST_F(CudaGraphsOfThreads, OnMoreThanAreKept) {
  run(4, 400, 2 * static_cast<int>(Graphs::kMaxGraphs));
  EXPECT_LE(num_graphs(), static_cast<int>(Graphs::kMaxGraphs));
}

TEST(CudaLaunchMode, GraphsUnlessNamed) {
  EXPECT_EQ(parse_launch_mode(nullptr), LaunchMode::graphs);
  EXPECT_EQ(parse_launch_mode(""), LaunchMode::graphs);
  EXPECT_EQ(parse_launch_mode("graphs"), LaunchMode::graphs);
  EXPECT_EQ(parse_launch_mode("kernels"), LaunchMode::kernels);
  EXPECT_EQ(parse_launch_mode("overlap"), LaunchMode::overlap);
}

}  // namespace
}  // namespace attn::cuda::test
