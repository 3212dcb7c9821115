// A call of the family sm90 as the driver is given it: the counter's kernel, the parameters with
// tensor maps, graphs and captures.
#include <cstring>
#include <vector>

#include "core/validate.hpp"
#include "cuda/call.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/families/sm90/bias_gradient_plan.hpp"
#include "cuda/families/sm90/forward_plan.hpp"
#include "cuda/host/tensor_map.hpp"
#include "cuda/kernels/passes/tile_counter.cuh"
#include "cuda/kernels/sm90/backward_params.cuh"
#include "cuda/kernels/sm90/forward_params.cuh"
#include "facts.hpp"
#include "fake.hpp"

namespace attn::cuda::test {
namespace {

using device::sm90::BackwardParams;
using device::sm90::ForwardParams;

class CudaSm90Call : public WithFakeDriver {
 protected:
  CudaSm90Call() {
    Arguments& a = arguments;
    a.q = make(DType::bf16, {2, 304, 4, 64});
    a.o = make(DType::bf16, {2, 304, 4, 64});
    a.k = make(DType::bf16, {2, 160, 2, 64});
    a.v = make(DType::bf16, {2, 160, 2, 64});
    a.lse = make(DType::f32, {2, 4, 304});
  }
  void SetUp() override {
    WithFakeDriver::SetUp();
    own_context(++last_id);  // no graphs yet
  }

  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    next_ += 1 << 24;
    TensorView view = TensorView::contiguous(reinterpret_cast<void*>(next_), dtype, shape);
    view.device = Device::cuda;
    return view;
  }

  struct Seen {
    std::vector<std::string> entries;
    std::vector<unsigned> blocks;
    ForwardParams params;
    BackwardParams backward;
    unsigned* counter = nullptr;  // that is zeroed
  };

  Seen launched(const Problem& problem, void* workspace, Pass pass = Pass::forward) {
    const core::Status valid = core::validate(pass, problem, arguments);
    EXPECT_TRUE(valid.ok()) << valid.message;
    EXPECT_EQ(core::access_of(pass, problem, arguments), core::Access::tma);
    const CudaPlan plan =
        make_plan(pass, problem, h200(), core::Access::tma, FamilyChoice::sm90).value();
    EXPECT_STREQ(plan.family_name, "sm90") << plan.refusals;
    const CurrentContext context(fake_driver(), 0);
    std::vector<Kernel> kernels(plan.num_kernels);
    const core::Executor executor;
    DeviceCall call{context, arguments, plan, executor, {}, stream_of(this), workspace};
    for (std::size_t i = 0; i < plan.num_kernels; ++i) {
      kernels[i].spec = plan.kernels[i];
      kernels[i].function = reinterpret_cast<abi::Function>(i + 1);
      call.kernels[i] = &kernels[i];
      const std::string_view entry = plan.kernels[i].entry;
      fake().parameter_bytes_of[i + 1] = entry == sm90::kForwardEntry    ? sizeof(ForwardParams)
                                         : entry == sm90::kBackwardEntry ? sizeof(BackwardParams)
                                         : entry == sm90::kCounterEntry
                                             ? sizeof(device::tile_counter::Params)
                                             : sizeof(device::Arguments);
    }
    fake().parameter_bytes = 1;
    fake().launched.clear();
    fake().maps.clear();
    forget_encoded_maps();
    const core::Status status = run(call);
    EXPECT_TRUE(status.ok()) << status.message;
    Seen seen;
    for (const FakeLaunch& launch : fake().launched) {
      seen.entries.emplace_back(plan.kernels[launch.function - 1].entry);
      seen.blocks.push_back(launch.blocks);
      if (seen.entries.back() == sm90::kForwardEntry) {
        std::memcpy(&seen.params, launch.parameters.data(), sizeof seen.params);
      } else if (seen.entries.back() == sm90::kBackwardEntry) {
        std::memcpy(&seen.backward, launch.parameters.data(), sizeof seen.backward);
      } else if (seen.entries.back() == sm90::kCounterEntry) {
        device::tile_counter::Params params;
        std::memcpy(&params, launch.parameters.data(), sizeof params);
        seen.counter = params.counter;
      }
    }
    return seen;
  }

  static const FakeMap& map_of(const device::sm90::TensorMap& map) {
    return fake().maps.at(map.words[1]);
  }
  static std::vector<std::uint64_t> dims(const device::sm90::TensorMap& map) {
    return {map_of(map).dims, map_of(map).dims + map_of(map).rank};
  }
  static std::vector<std::uint32_t> box(const device::sm90::TensorMap& map) {
    return {map_of(map).box, map_of(map).box + map_of(map).rank};
  }
  // As many queries as need more tiles than there are SMs.
  void make_long() {
    for (TensorView* view : {&arguments.q, &arguments.o}) {
      *view = make(DType::bf16, {2, 17 * 192, 4, 64});
    }
    arguments.lse = make(DType::f32, {2, 4, 17 * 192});
  }
  static std::uint64_t address(const TensorView& view) {
    return reinterpret_cast<std::uintptr_t>(view.address());
  }

  Arguments arguments;
  void* const workspace = reinterpret_cast<void*>(2 * kDeviceMemory);

 private:
  static inline std::uint64_t last_id = 5000;
  std::uintptr_t next_ = kDeviceMemory;
};

using Entries = std::vector<std::string>;
using Dims = std::vector<std::uint64_t>;
using Box = std::vector<std::uint32_t>;

TEST_F(CudaSm90Call, GivesTheKernelItsParameters) {
  const Seen seen = launched(describe(arguments), workspace);
  ASSERT_EQ(seen.entries, (Entries{"attn_forward_sm90"})) << "every tile has its block";
  EXPECT_EQ(seen.blocks, (std::vector<unsigned>{2 * 2 * 4}));
  const ForwardParams& p = seen.params;
  EXPECT_EQ(p.next_tile, nullptr);
  EXPECT_EQ(p.q_tiles, 2) << "192 of 304 queries each";
  EXPECT_EQ(p.num_tiles, 2 * 2 * 4);
  EXPECT_EQ(p.heads_at_once, 8) << "all fit L2";
  EXPECT_EQ(p.q.words[0], address(arguments.q));
  EXPECT_EQ(p.k.words[0], address(arguments.k));
  EXPECT_EQ(p.v.words[0], address(arguments.v));
  EXPECT_EQ(p.o.words[0], address(arguments.o));
  EXPECT_EQ(p.bias.words[0], 0u);
  EXPECT_EQ(dims(p.q), (Dims{64, 304, 4, 2}));
  EXPECT_EQ(dims(p.k), (Dims{64, 160, 2, 2}));
  EXPECT_EQ(box(p.q), (Box{64, 64, 1, 1}));
  EXPECT_EQ(box(p.k), (Box{64, 128, 1, 1}));
  EXPECT_EQ(box(p.v), (Box{64, 128, 1, 1}));
  EXPECT_EQ(box(p.o), (Box{64, 16, 1, 1}));
  for (const auto* map : {&p.q, &p.k, &p.v, &p.o}) {
    EXPECT_EQ(map_of(*map).swizzle, abi::kTensorMapSwizzle128);
    EXPECT_EQ(map_of(*map).type, abi::kTensorMapBf16);
  }
  EXPECT_EQ(p.common.heads_per_kv, 2);
  EXPECT_EQ(p.common.lse.base, arguments.lse.data);
}

TEST_F(CudaSm90Call, GivesF8KernelsRowsOfBytesAndDescales) {
  Arguments& a = arguments;
  a.q = make(DType::f8e4m3, {2, 304, 4, 64});
  a.k = make(DType::f8e5m2, {2, 160, 2, 64});
  a.v = make(DType::f8e5m2, {2, 160, 2, 128});
  a.o = make(DType::f16, {2, 304, 4, 128});
  a.descale_k = make(DType::f32, {2, 2});
  const ForwardParams p = launched(describe(a), workspace).params;
  EXPECT_EQ(box(p.q), (Box{128, 64, 1, 1})) << "both dims are rounded up to 128";
  EXPECT_EQ(box(p.k), (Box{128, 128, 1, 1}));
  EXPECT_EQ(box(p.v), (Box{128, 128, 1, 1}));
  EXPECT_EQ(box(p.o), (Box{64, 16, 1, 1}));
  EXPECT_EQ(map_of(p.k).type, abi::kTensorMapU8);
  EXPECT_EQ(map_of(p.k).swizzle, abi::kTensorMapSwizzle128);
  EXPECT_EQ(p.descale_q.data, nullptr);
  EXPECT_EQ(p.descale_k.data, a.descale_k.address());
  EXPECT_EQ(p.descale_k.stride_batch, 2);
  EXPECT_EQ(p.descale_k.stride_head, 1);
  a.v = make(DType::f8e5m2, {2, 160, 2, 48});
  a.o = make(DType::f32, {2, 304, 4, 48});
  const ForwardParams narrow = launched(describe(a), workspace).params;
  EXPECT_EQ(box(narrow.v), (Box{64, 128, 1, 1}));
  EXPECT_EQ(map_of(narrow.v).swizzle, abi::kTensorMapSwizzle64);
  EXPECT_EQ(narrow.o.words[0], 0u) << "f32 is stored from registers";
}

TEST_F(CudaSm90Call, MapsBiasAndMask) {
  arguments.bias = make(DType::bf16, {1, 4, 304, 160});
  const ForwardParams with_bias = launched(describe(arguments), workspace).params;
  EXPECT_EQ(with_bias.bias.words[0], address(arguments.bias));
  EXPECT_EQ(dims(with_bias.bias), (Dims{160, 304, 4, 1}));
  EXPECT_EQ(box(with_bias.bias), (Box{64, 64, 1, 1})) << "128 bytes of keys";
  EXPECT_EQ(map_of(with_bias.bias).swizzle, abi::kTensorMapSwizzle128);
  EXPECT_EQ(box(with_bias.k), (Box{64, 64, 1, 1}));
  arguments.bias = {};
  arguments.mask = make(DType::u8, {2, 1, 304, 160});
  const ForwardParams with_mask = launched(describe(arguments), workspace).params;
  EXPECT_EQ(dims(with_mask.mask), (Dims{160, 304, 1, 2}));
  EXPECT_EQ(box(with_mask.mask), (Box{128, 64, 1, 1})) << "128 bytes of keys";
  EXPECT_EQ(map_of(with_mask.mask).swizzle, abi::kTensorMapSwizzle128);
}

TEST_F(CudaSm90Call, GivesTheBackwardItsParameters) {
  Arguments& a = arguments;
  a.dout = make(DType::bf16, {2, 304, 4, 64});
  a.dq = make(DType::bf16, {2, 304, 4, 64});
  a.dk = make(DType::bf16, {2, 160, 2, 64});
  a.dv = make(DType::bf16, {2, 160, 2, 64});
  const Seen seen = launched(describe(a), workspace, Pass::backward);
  ASSERT_EQ(seen.entries, (Entries{"attn_backward_preprocess", "attn_backward_sm90",
                                   "attn_backward_postprocess"}));
  EXPECT_EQ(seen.blocks, (std::vector<unsigned>{3 * 4 * 2, 2 * 2 * 2, 5 * 4 * 2}));
  const BackwardParams& p = seen.backward;
  EXPECT_EQ(p.q.words[0], address(a.q));
  EXPECT_EQ(p.k.words[0], address(a.k));
  EXPECT_EQ(p.v.words[0], address(a.v));
  EXPECT_EQ(p.dout.words[0], address(a.dout));
  for (const auto* map : {&p.q, &p.dout}) EXPECT_EQ(dims(*map), (Dims{64, 304, 4, 2}));
  for (const auto* map : {&p.k, &p.v}) EXPECT_EQ(dims(*map), (Dims{64, 160, 2, 2}));
  for (const auto* map : {&p.q, &p.k, &p.v, &p.dout}) {
    EXPECT_EQ(box(*map), (Box{64, 128, 1, 1}));
    EXPECT_EQ(map_of(*map).swizzle, abi::kTensorMapSwizzle128);
  }
  EXPECT_EQ(p.common.dk.base, a.dk.data);
  EXPECT_EQ(p.common.lse_delta.base, workspace);
  EXPECT_NE(p.common.dq_accum.base, nullptr);
}

TEST_F(CudaSm90Call, GivesTheBackwardOfShortRowsItsParameters) {
  Arguments& a = arguments;
  for (TensorView* view : {&a.q, &a.o, &a.dout, &a.dq}) *view = make(DType::bf16, {33, 304, 4, 64});
  for (TensorView* view : {&a.k, &a.v, &a.dk, &a.dv}) *view = make(DType::bf16, {33, 160, 4, 64});
  a.lse = make(DType::f32, {33, 4, 304});
  const Seen seen = launched(describe(a), workspace, Pass::backward);
  ASSERT_EQ(seen.entries, (Entries{"attn_backward_sm90"}));
  EXPECT_EQ(seen.blocks, (std::vector<unsigned>{132}));
  const BackwardParams& p = seen.backward;
  EXPECT_EQ(p.o.words[0], address(a.o));
  for (const auto* map : {&p.q, &p.dout, &p.o}) EXPECT_EQ(dims(*map), (Dims{64, 304, 4, 33}));
  for (const auto* map : {&p.k, &p.v}) EXPECT_EQ(dims(*map), (Dims{64, 160, 4, 33}));
  for (const auto* map : {&p.q, &p.k, &p.v, &p.dout, &p.o}) {
    EXPECT_EQ(box(*map), (Box{64, 64, 1, 1}));
  }
  EXPECT_EQ(p.common.dq.base, a.dq.data);
  EXPECT_EQ(p.common.lse_delta.base, nullptr);
}

TEST_F(CudaSm90Call, MapsTheGradientOfABiasThatIsNoSum) {
  Arguments& a = arguments;
  a.dout = make(DType::bf16, {2, 304, 4, 64});
  a.dq = make(DType::bf16, {2, 304, 4, 64});
  a.bias = make(DType::bf16, {2, 4, 304, 160});
  a.dbias = make(DType::bf16, {2, 4, 304, 160});
  const BackwardParams stored = launched(describe(a), workspace, Pass::backward).backward;
  EXPECT_EQ(stored.dbias.words[0], address(a.dbias));
  EXPECT_EQ(dims(stored.dbias), (Dims{160, 304, 4, 2}));
  EXPECT_EQ(box(stored.dbias), (Box{64, 64, 1, 1}));
  EXPECT_EQ(map_of(stored.dbias).swizzle, abi::kTensorMapSwizzle128);
  EXPECT_EQ(stored.common.dbias_accum, nullptr);
  a.dbias.strides[2] = 164;
  EXPECT_EQ(core::access_of(Pass::backward, describe(a), a), core::Access::vector)
      << "rows that begin at 8 bytes";
  a.dbias = make(DType::bf16, {2, 4, 304, 168});
  a.dbias.shape[3] = 164;
  EXPECT_EQ(core::access_of(Pass::backward, describe(a), a), core::Access::vector)
      << "a store by TMA would write past the end of rows";
}

// sm90/bias_gradient.cu has the same parameters; sm80/bias_gradient.cu needs no tensor map.
TEST_F(CudaSm90Call, MapsTheGradientOfABiasThatIsComputedApart) {
  Arguments& a = arguments;
  a.dout = make(DType::bf16, {2, 304, 4, 64});
  a.dq = make(DType::bf16, {2, 304, 4, 64});
  a.bias = make(DType::f32, {2, 4, 304, 160});
  a.dbias = make(DType::f32, {2, 4, 304, 160});
  Problem problem = describe(a);
  const Seen apart = launched(problem, workspace, Pass::backward);
  ASSERT_EQ(apart.entries.back(), sm90::kBiasGradientEntry);
  EXPECT_EQ(apart.backward.dbias.words[0], address(a.dbias));
  EXPECT_EQ(dims(apart.backward.dbias), (Dims{160, 304, 4, 2}));
  EXPECT_EQ(box(apart.backward.dbias), (Box{32, 64, 1, 1}));
  EXPECT_EQ(apart.backward.common.dbias_accum, nullptr);
  problem.accumulate = true;
  const Seen sm80 = launched(problem, workspace, Pass::backward);
  ASSERT_EQ(sm80.entries.back(), "attn_bias_gradient");
  EXPECT_EQ(sm80.backward.dbias.words[0], 0u);
}

// The block that comes first stores dQ, where every query sees a key; else sums begin as zeros.
TEST_F(CudaSm90Call, FirstBlockOfBackwardStoresDq) {
  Arguments& a = arguments;
  a.dout = make(DType::bf16, {2, 304, 4, 64});
  a.dq = make(DType::bf16, {2, 304, 4, 64});
  a.dk = make(DType::bf16, {2, 160, 2, 64});
  a.dv = make(DType::bf16, {2, 160, 2, 64});
  constexpr long long kSemaphoreBytes = 2 * 4 * 3 * 2 * 4;  // [b, h, tiles, warpgroups] u32
  Problem problem = describe(a);
  for (const bool deterministic : {false, true}) {
    problem.deterministic = deterministic;
    const device::Arguments given = launched(problem, workspace, Pass::backward).backward.common;
    EXPECT_EQ(given.dq_first_stores, 1);
    EXPECT_EQ(given.dq_ordered, deterministic ? 1 : 0);
    EXPECT_EQ(given.zeros, reinterpret_cast<char*>(given.dq_semaphore));
    EXPECT_GE(given.zeros_bytes, kSemaphoreBytes);
    EXPECT_LT(given.zeros_bytes, kSemaphoreBytes + 256);
  }
  problem.causal = true;  // the first 144 queries see no key
  const device::Arguments given = launched(problem, workspace, Pass::backward).backward.common;
  EXPECT_EQ(given.dq_first_stores, 0);
  EXPECT_EQ(given.zeros, given.dq_accum.base);
  problem.diagonal = Diagonal::top_left;
  EXPECT_EQ(launched(problem, workspace, Pass::backward).backward.common.dq_first_stores, 1);
}

TEST_F(CudaSm90Call, MapsRowsOfABiasThatBroadcastsQueries) {
  Arguments& a = arguments;
  a.dout = make(DType::bf16, {2, 304, 4, 64});
  a.dq = make(DType::bf16, {2, 304, 4, 64});
  a.bias = make(DType::f32, {1, 4, 1, 160});
  a.mask = make(DType::u8, {2, 1, 1, 160});
  const BackwardParams p = launched(describe(a), workspace, Pass::backward).backward;
  EXPECT_EQ(dims(p.bias), (Dims{160, 1, 4, 1}));
  EXPECT_EQ(dims(p.mask), (Dims{160, 1, 1, 2}));
  for (const auto* map : {&p.bias, &p.mask}) {
    EXPECT_EQ(box(*map), (Box{128, 1, 1, 1}));
    EXPECT_EQ(map_of(*map).swizzle, abi::kTensorMapSwizzleNone);
  }
}

TEST_F(CudaSm90Call, MoreTilesThanBlocksNeedACounter) {
  make_long();
  const Seen seen = launched(describe(arguments), workspace);
  ASSERT_EQ(seen.entries, (Entries{"attn_tile_counter", "attn_forward_sm90"}));
  EXPECT_EQ(seen.blocks, (std::vector<unsigned>{1, 132}));
  EXPECT_EQ(seen.params.num_tiles, 17 * 2 * 4);
  EXPECT_EQ(seen.counter, workspace);
  EXPECT_EQ(seen.params.next_tile, workspace);
}

TEST_F(CudaSm90Call, PackedTensorsAreOneBatchEntry) {
  Arguments& a = arguments;
  a.q = make(DType::bf16, {600, 4, 64});
  a.o = make(DType::bf16, {600, 4, 64});
  a.k = make(DType::bf16, {500, 2, 64});
  a.v = make(DType::bf16, {500, 2, 64});
  a.lse = make(DType::f32, {4, 600});
  a.cu_len_q = make(DType::i32, {3});
  a.cu_len_kv = make(DType::i32, {3});
  Problem problem = describe(a);
  problem.len_q = problem.len_kv = 400;
  const Seen seen = launched(problem, workspace);
  ASSERT_EQ(seen.entries, (Entries{"attn_uncovered_rows", "attn_forward_sm90"}));
  EXPECT_EQ(dims(seen.params.q), (Dims{64, 600, 4, 1}));
  EXPECT_EQ(dims(seen.params.k), (Dims{64, 500, 2, 1}));
  EXPECT_EQ(seen.params.num_tiles, 3 * 4 * 2);
  EXPECT_EQ(seen.params.common.total_q, 600);
}

TEST_F(CudaSm90Call, RowsOfEqualWorkNeedNoCounter) {
  for (TensorView* view : {&arguments.q, &arguments.o}) *view = make(DType::bf16, {2, 304, 4, 128});
  for (TensorView* view : {&arguments.k, &arguments.v}) *view = make(DType::bf16, {2, 160, 2, 128});
  const Seen seen = launched(describe(arguments), nullptr);
  ASSERT_EQ(seen.entries, (Entries{"attn_forward_sm90"}));
  EXPECT_EQ(seen.blocks, (std::vector<unsigned>{3 * 4 * 2}));
  EXPECT_EQ(seen.params.next_tile, nullptr);
}

// From the second call on by a graph, which each call gives its own parameters.
TEST_F(CudaSm90Call, CallsInGraphsHaveTheirOwnCounterAndMaps) {
  make_long();
  const Problem problem = describe(arguments);
  for (int n = 0; n < 4; ++n) {
    arguments.k = make(DType::bf16, {2, 160, 2, 64});
    void* const own = static_cast<char*>(workspace) + 4096 * n;
    const int before = fake().graph_launches;
    const Seen seen = launched(problem, own);
    EXPECT_EQ(fake().graph_launches, before + (n > 0 ? 1 : 0));
    ASSERT_EQ(seen.entries, (Entries{"attn_tile_counter", "attn_forward_sm90"}));
    EXPECT_EQ(seen.counter, own);
    EXPECT_EQ(seen.params.next_tile, own);
    EXPECT_EQ(seen.params.k.words[0], address(arguments.k));
  }
}

TEST_F(CudaSm90Call, ACaptureRecordsBothKernels) {
  make_long();
  fake().capturing = abi::kCaptureActive;
  for (int n = 0; n < 2; ++n) {
    const int before = fake().graph_launches;
    const Seen seen = launched(describe(arguments), workspace);
    EXPECT_EQ(fake().graph_launches, before);
    ASSERT_EQ(seen.entries, (Entries{"attn_tile_counter", "attn_forward_sm90"}));
    EXPECT_EQ(seen.params.next_tile, seen.counter);
  }
}

TEST_F(CudaSm90Call, TellsWhichMapFailed) {
  const Problem problem = describe(arguments);
  const CudaPlan plan =
      make_plan(Pass::forward, problem, h200(), core::Access::tma, FamilyChoice::sm90).value();
  const CurrentContext context(fake_driver(), 0);
  const core::Executor executor;
  Kernel kernels[2];
  DeviceCall call{context, arguments, plan, executor, {}, nullptr, workspace};
  for (std::size_t i = 0; i < 2; ++i) {
    kernels[i].spec = plan.kernels[i];
    call.kernels[i] = &kernels[i];
  }
  forget_encoded_maps();
  fake().failing = "cuTensorMapEncodeTiled";
  fake().failing_result = abi::kInvalidValue;
  const int before = fake().launches;
  const core::Status status = run(call);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message.find("making the tensor map of q"), std::string::npos) << status.message;
  EXPECT_EQ(fake().launches, before);
}

}  // namespace
}  // namespace attn::cuda::test
