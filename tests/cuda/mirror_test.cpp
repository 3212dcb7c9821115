// A case's memory on a device and back: the CPU backend computes on the copies, in the memory of a
// driver without a device, and must find everything where the host's call has it.
#include "harness/mirror.hpp"

#include <cmath>
#include <map>

#include "core/signature.hpp"
#include "fake.hpp"
#include "folder.hpp"
#include "harness/check.hpp"
#include "harness/inputs.hpp"
#include "harness/place.hpp"
#include "harness/values.hpp"

namespace attn::cuda::test {
namespace {

using harness::Case;
using harness::DeviceQueue;
using harness::Mirror;
using harness::Place;
using harness::Storage;

class CudaMirror : public WithFakeDriver {
 protected:
  void SetUp() override {
    WithFakeDriver::SetUp();
    allocations = fake().allocations;
  }
  void TearDown() override {
    EXPECT_EQ(fake().allocations, allocations) << "all memory is freed";
    WithFakeDriver::TearDown();
  }
  int allocations = 0;
};

// A call's memory, as run_case() has it.
struct MirroredCall {
  explicit MirroredCall(const Case& c, std::int64_t bytes)
      : inputs(c), outputs(c, DType::none), workspace(bytes) {
    inputs.arguments.workspace = workspace.begin();
    inputs.arguments.workspace_size = bytes;
    if (c.pass == Pass::backward) {
      harness::fill_all(inputs.arguments.lse, [](std::uint64_t) { return 3.0; });
      if (inputs.arguments.o.given()) {
        harness::fill_all(inputs.arguments.o,
                          [](std::uint64_t n) { return static_cast<double>(n % 3); });
      }
    }
    outputs.give(inputs.arguments);
    std::vector<TensorView> written;
    for (const auto& [name, view] : outputs.views) written.push_back(view);
    inputs.tensors.seal({inputs.arguments.nonfinite_count});
    outputs.tensors.seal(written);
  }
  void add_to(Mirror& mirror) {
    inputs.tensors.each_storage([&](Storage& storage) { mirror.add(storage); });
    outputs.tensors.each_storage([&](Storage& storage) { mirror.add(storage); });
    mirror.add(workspace, true);
  }

  harness::Inputs inputs;
  harness::OutputSet outputs;
  Storage workspace;
};

void compute(Context& context, const Case& c, const Arguments& arguments) {
  c.pass == Pass::backward ? attn::backward(context, c.problem, arguments)
                           : attn::forward(context, c.problem, arguments);
}

// The same addresses, called memory of the host again.
Arguments for_the_cpu(const Case& c, Arguments arguments) {
  for (const core::Slot& slot : core::slots_of(c.pass, c.problem)) {
    TensorView& view = arguments.*slot.view;
    if (!view.given()) continue;
    EXPECT_EQ(view.device, Device::cuda) << slot.name;
    view.device = Device::host;
    view.ordinal = 0;
  }
  arguments.stream.reset();
  return arguments;
}

void expect_same(const MirroredCall& host, const MirroredCall& device, const std::string& name) {
  for (const auto& [output, view] : host.outputs.views) {
    const std::vector<double> a = harness::read_all(view);
    const std::vector<double> b = harness::read_all(*device.outputs.find(output));
    std::size_t differ = 0;
    for (std::size_t n = 0; n < a.size(); ++n) {
      differ += a[n] == b[n] || (std::isnan(a[n]) && std::isnan(b[n])) ? 0 : 1;
    }
    EXPECT_EQ(differ, 0u) << output << " of " << name;
  }
}

TEST_F(CudaMirror, CallsFindEverythingInTheirPlaces) {
  ContextOptions options;
  options.threads = 1;
  Context context(options);
  std::map<harness::Memory, int> memories;
  int pointers = 0;
  for (const bool exact : {false, true}) {
    DeviceQueue queue(1, exact);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      harness::Filter filter;
      filter.pass = pass;
      filter.dtype = DType::bf16;
      filter.limit = 120;
      for (const Case& c : harness::case_list(filter)) {
        const std::int64_t bytes = attn::workspace_bytes(context, pass, c.problem);
        MirroredCall on_host(c, bytes);
        MirroredCall on_device(c, bytes);
        compute(context, c, on_host.inputs.arguments);
        Mirror mirror(queue);
        on_device.add_to(mirror);
        const Arguments moved = mirror.arguments(pass, c.problem, on_device.inputs.arguments);
        EXPECT_EQ(moved.q.ordinal, 1);
        EXPECT_EQ(moved.stream, queue.stream());
        // Whatever the host's allocator gave, the device's memory begins where a real one does.
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(moved.q.data) % 256, 0u);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(moved.workspace) % 256, 0u);
        EXPECT_NE(moved.q.data, on_device.inputs.arguments.q.data);
        if (c.device_seed) {
          ++pointers;
          EXPECT_NE(moved.seed.device, on_device.inputs.arguments.seed.device);
          EXPECT_EQ(*moved.seed.device, *on_device.inputs.arguments.seed.device);
        }
        ++memories[c.memory];
        compute(context, c, for_the_cpu(c, moved));
        mirror.download();
        expect_same(on_host, on_device, to_string(c));
        EXPECT_EQ(on_device.outputs.tensors.changed(), "") << to_string(c);
        EXPECT_EQ(on_device.inputs.tensors.changed(), "") << to_string(c);
      }
    }
  }
  EXPECT_EQ(memories.size(), 5u);
  EXPECT_GT(pointers, 0);
}

Case small_case() {
  return harness::parse_case(
      "forward memory=padded : dtype=bf16 len_q=5 len_kv=7 dim_qk=8 dim_vo=8");
}

TEST_F(CudaMirror, WhatTheDeviceWroteOutsideIsSeen) {
  DeviceQueue queue(0);
  const Case c = small_case();
  for (const std::int64_t past : {-1, 8 * 2, 5 * (8 + 5) * 2 * 2 + 100}) {  // guard, gap, guard
    MirroredCall call(c, 0);
    Mirror mirror(queue);
    call.add_to(mirror);
    const Arguments a = mirror.arguments(c.pass, c.problem, call.inputs.arguments);
    mirror.download();
    EXPECT_EQ(call.outputs.tensors.changed(), "");
    static_cast<unsigned char*>(a.o.address())[past] ^= 1u;
    mirror.download();
    EXPECT_NE(call.outputs.tensors.changed(), "") << past;
  }
  MirroredCall call(c, 0);
  Mirror mirror(queue);
  call.add_to(mirror);
  static_cast<unsigned char*>(
      mirror.arguments(c.pass, c.problem, call.inputs.arguments).k.address())[0] ^= 1u;
  mirror.download();
  EXPECT_NE(call.inputs.tensors.changed(), "") << "an input was written";
}

TEST_F(CudaMirror, PointersOfNoStorageAreRefused) {
  DeviceQueue queue(0);
  const Case c = small_case();
  MirroredCall call(c, 0);
  Mirror mirror(queue);
  EXPECT_THROW((void)mirror.arguments(c.pass, c.problem, call.inputs.arguments), Error);
}

// As of a file: one tensor begins where another ends, an empty one lies between.
TEST_F(CudaMirror, TensorsAreCopiedEachByItself) {
  Problem problem;
  problem.len_q = 2;
  problem.len_kv = 3;
  problem.dim_qk = problem.dim_vo = 4;
  problem.lse = false;
  std::vector<float> memory(8 + 12 + 12 + 8);
  for (std::size_t n = 0; n < memory.size(); ++n) memory[n] = static_cast<float>(n);
  const std::vector<float> before = memory;
  Arguments host;
  host.q = TensorView::contiguous(memory.data(), DType::f32, {1, 2, 1, 4});
  host.k = TensorView::contiguous(memory.data(), DType::f32, {1, 3, 1, 4});
  host.k.offset_bytes = 8 * 4;
  host.v = TensorView::contiguous(memory.data() + 20, DType::f32, {1, 3, 1, 4});
  host.o = TensorView::contiguous(memory.data() + 32, DType::f32, {1, 2, 1, 4});
  DeviceQueue queue(0);
  {
    Mirror mirror(queue);
    const int had = fake().allocations;
    mirror.add_tensors(Pass::forward, problem, host);
    mirror.add_tensors(Pass::forward, problem, host);
    EXPECT_EQ(fake().allocations, had + 4);
    const Arguments moved = mirror.arguments(Pass::forward, problem, host);
    for (const auto& [view, first] : {std::pair{&moved.q, 0}, {&moved.k, 8}, {&moved.v, 20}}) {
      EXPECT_EQ(*static_cast<float*>(view->address()), static_cast<float>(first));
      static_cast<float*>(view->address())[0] = -1.0f;  // not written by a call: stays there
    }
    for (int n = 0; n < 8; ++n) static_cast<float*>(moved.o.address())[n] = 7.0f;
    mirror.download();
    for (std::size_t n = 0; n < memory.size(); ++n) {
      EXPECT_EQ(memory[n], n < 32 ? before[n] : 7.0f);
    }
  }
  problem.len_kv = 0;
  host.k.shape[1] = host.v.shape[1] = 0;
  host.v.data = nullptr;
  Mirror mirror(queue);
  mirror.add_tensors(Pass::forward, problem, host);
  const Arguments moved = mirror.arguments(Pass::forward, problem, host);
  EXPECT_EQ(moved.v.data, nullptr);
  EXPECT_EQ(moved.v.device, Device::cuda);
}

TEST_F(CudaMirror, ExactQueuesTakeNoByteMore) {
  const Case c = small_case();
  MirroredCall call(c, 640);
  DeviceQueue queue(0, true);
  Mirror mirror(queue);
  const std::uint64_t before = fake().allocated_bytes;
  mirror.add(call.workspace, true);
  EXPECT_EQ(fake().allocated_bytes, before + 640);
}

TEST_F(CudaMirror, PiecesAreUsedAgain) {
  DeviceQueue queue(0);
  void* first = queue.take(1000);
  void* second = queue.take(1000);
  EXPECT_NE(first, second);
  EXPECT_EQ(fake().allocations, allocations + 2);
  queue.give_back(first);
  EXPECT_EQ(queue.take(900), first);
  EXPECT_EQ(fake().allocations, allocations + 2);
  queue.give_back(second);
  EXPECT_NE(queue.take(10), second) << "far too large for it";
}

TEST_F(CudaMirror, ErrorsSayWhatWasTried) {
  const auto message = [](ErrorCode code, auto&& action) -> std::string {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code);
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(message(ErrorCode::invalid_argument, [] { DeviceQueue(7); }),
            "cuda: device: found cuda:7; accepted cuda:0 to cuda:1");
  DeviceQueue queue(1);
  fake().failing = "cuMemAlloc_v2";
  fake().failing_result = abi::kOutOfMemory;
  EXPECT_EQ(
      message(ErrorCode::out_of_memory, [&] { queue.take(512); }),
      "cuda: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (as the test asked), while taking 512 bytes "
      "on cuda:1");
  fake().failing = "cuStreamSynchronize";
  fake().failing_result = abi::kIllegalAddress;
  EXPECT_NE(message(ErrorCode::device_error, [&] { queue.synchronize(); }).find("can't be used"),
            std::string::npos);
  fake().failing = nullptr;
}

TEST_F(CudaMirror, SpansAreBetweenMarks) {
  const int events = fake().events;
  {
    DeviceQueue queue(0);
    EXPECT_TRUE(queue.spans().empty());
    for (int round = 0; round < 2; ++round) {
      for (int n = 0; n < 3; ++n) queue.mark();
      EXPECT_EQ(queue.spans(), (std::vector<double>{1e-3, 1e-3}));
    }
    EXPECT_EQ(fake().events, events + 3) << "events are used again";
  }
  EXPECT_EQ(fake().events, events);
}

TEST_F(CudaMirror, CasesThatCudaRefusesAreSkippedWithItsReason) {
  ContextOptions options;
  options.backend = "cuda";
  Context context(options);
  DeviceQueue queue(1);
  Case c = small_case();
  c.problem.dtype = DType::f64;
  const harness::CheckReport report = harness::run_case(context, c, &queue);
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.message, "cuda: no kernel for f64 on CUDA; f32, f16 and bf16 are supported");
}

TEST_F(CudaMirror, ADeviceThatIsLostIsSaid) {
  const Folder folder;
  ContextOptions options;
  options.backend = "cuda";
  options.cache_dir = folder.path();
  Context context(options);
  DeviceQueue queue(0);
  fake().failing = "cuStreamSynchronize";
  fake().failing_result = abi::kIllegalAddress;
  harness::CheckReport report = harness::run_case(context, small_case(), &queue);
  EXPECT_FALSE(report.passed);
  EXPECT_FALSE(report.skipped);
  EXPECT_TRUE(report.device_lost);
  fake().failing = "cuMemcpyHtoDAsync_v2";
  report = harness::run_case(context, small_case(), &queue);
  EXPECT_FALSE(report.passed);
  EXPECT_FALSE(report.device_lost) << "an error of one call: " << report.message;
  fake().failing = nullptr;
}

TEST(Places, AreReadAndPrinted) {
  EXPECT_EQ(harness::parse_place("host"), Place{});
  EXPECT_EQ(harness::parse_place("cuda"), (Place{Device::cuda, 0}));
  EXPECT_EQ(harness::parse_place("cuda:3"), (Place{Device::cuda, 3}));
  EXPECT_EQ(to_string(harness::parse_place("cuda")), "cuda:0");
  EXPECT_EQ(harness::parse_place("webgpu"), (Place{Device::webgpu, 0}));
  EXPECT_EQ(to_string(harness::parse_place("webgpu")), "webgpu");
  for (const char* text :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cudas", "host:0", "webgpu:0"}) {
    EXPECT_THROW((void)harness::parse_place(text), Error) << text;
  }
}

TEST(Places, SayWhichBackendAndWhoseMemory) {
  const Place webgpu = harness::place_of("", "webgpu");
  EXPECT_EQ(webgpu.device, Device::webgpu);
  EXPECT_EQ(harness::device_of_tensors(webgpu), Device::host);
  EXPECT_EQ(harness::backend_for(harness::place_of("webgpu", ""), ""), "webgpu");
  EXPECT_EQ(harness::backend_for(harness::place_of("cuda:1", ""), ""), "cuda");
  EXPECT_EQ(harness::backend_for(harness::place_of("", "cpu"), "cpu"), "cpu");
  EXPECT_EQ(harness::backend_for(harness::place_of("", ""), ""), "");
  EXPECT_THROW((void)harness::place_of("webgpu", "cpu"), Error);
}

}  // namespace
}  // namespace attn::cuda::test
