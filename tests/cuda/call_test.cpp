// A call's kernels as the driver is given them: order, grids and the Arguments structure.
#include "cuda/call.hpp"

#include <cstring>
#include <vector>

#include "core/validate.hpp"
#include "cuda/host/arguments.hpp"
#include "facts.hpp"
#include "fake.hpp"

namespace attn::cuda::test {
namespace {

struct Seen {
  std::string entry;
  unsigned blocks;
  unsigned threads;
  unsigned shared_bytes;
  device::Arguments arguments;
};

class CudaCall : public WithFakeDriver {
 protected:
  CudaCall() {
    Arguments& a = arguments;
    for (TensorView* view : {&a.q, &a.k, &a.v, &a.o}) *view = make(DType::bf16, {2, 300, 4, 64});
    a.lse = make(DType::f32, {2, 4, 300});
  }

  // Device memory of its own, that nobody follows.
  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    next_ += 1 << 24;
    TensorView view = TensorView::contiguous(reinterpret_cast<void*>(next_), dtype, shape);
    view.device = Device::cuda;
    return view;
  }

  // What run() launches.
  std::vector<Seen> launched(Pass pass, const Problem& problem) {
    const core::Status valid = core::validate(pass, problem, arguments);
    EXPECT_TRUE(valid.ok()) << valid.message;
    const DeviceFacts facts = h200();
    const core::Result<CudaPlan> made =
        make_plan(pass, problem, facts, core::Access::tma, FamilyChoice::sm80);
    EXPECT_TRUE(made.ok()) << made.reason();
    const CudaPlan& plan = made.value();
    const CurrentContext context(fake_driver(), 0);
    std::vector<Kernel> kernels(plan.num_kernels);
    std::vector<std::string> reported;
    const core::LaunchObserver observer{
        [](void* names, const char* kernel) {
          static_cast<std::vector<std::string>*>(names)->emplace_back(kernel);
        },
        &reported};
    core::Executor executor;
    executor.observer = &observer;
    DeviceCall call{context,
                    arguments,
                    plan,
                    executor,
                    {},
                    stream_of(this),
                    reinterpret_cast<void*>(2 * kDeviceMemory)};
    for (std::size_t i = 0; i < plan.num_kernels; ++i) {
      kernels[i].spec = plan.kernels[i];
      kernels[i].function = reinterpret_cast<abi::Function>(i + 1);
      call.kernels[i] = &kernels[i];
    }
    fake().parameter_bytes = sizeof(device::Arguments);
    fake().launched.clear();
    const core::Status status = run(call);
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(reported, plan.summary().kernels);
    std::vector<Seen> list;
    for (const FakeLaunch& launch : fake().launched) {
      EXPECT_EQ(launch.stream, this);
      Seen seen{plan.kernels[launch.function - 1].entry,
                launch.blocks,
                launch.threads,
                launch.shared_bytes,
                {}};
      EXPECT_EQ(launch.parameters.size(), sizeof(seen.arguments));
      std::memcpy(&seen.arguments, launch.parameters.data(), sizeof(seen.arguments));
      list.push_back(seen);
    }
    std::vector<std::string> entries;
    for (const Seen& seen : list) entries.push_back(seen.entry);
    EXPECT_EQ(entries, reported) << "what the driver was given is what the plan says";
    return list;
  }

  Arguments arguments;

 private:
  std::uintptr_t next_ = kDeviceMemory;
};

TEST_F(CudaCall, Forward) {
  const Problem problem = describe(arguments);
  const auto list = launched(Pass::forward, problem);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].entry, "attn_forward");
  EXPECT_EQ(list[0].blocks, 3u * 4 * 2) << "tiles of 128 of 300 queries, heads, entries";
  EXPECT_EQ(list[0].threads, 128u);
  EXPECT_EQ(list[0].shared_bytes, 50176u);
  EXPECT_EQ(list[0].arguments.max_len_q, 300);
  EXPECT_EQ(list[0].arguments.o.stride_row, 4 * 64 * 2);
}

// A launch for each 256 columns of v and o; the first writes lse.
TEST_F(CudaCall, WideForward) {
  Arguments& a = arguments;
  for (TensorView* wide : {&a.q, &a.k, &a.v, &a.o}) {
    *wide = make(DType::bf16, {2, 300, wide == &a.q || wide == &a.o ? 4 : 2, 320});
  }
  const Problem problem = describe(a);
  const auto list = launched(Pass::forward, problem);
  ASSERT_EQ(list.size(), 2u);
  for (std::size_t n = 0; n < 2; ++n) {
    const device::Arguments& seen = list[n].arguments;
    const std::size_t offset = n * 256 * 2;
    EXPECT_EQ(list[n].entry, "attn_forward");
    EXPECT_EQ(list[n].blocks, list[0].blocks);
    EXPECT_EQ(seen.dim_qk, 320);
    EXPECT_EQ(seen.dim_vo, n == 0 ? 256 : 64);
    EXPECT_EQ(seen.q.base, a.q.data);
    EXPECT_EQ(seen.k.base, a.k.data);
    EXPECT_EQ(seen.v.base, static_cast<char*>(a.v.data) + offset);
    EXPECT_EQ(seen.o.base, static_cast<char*>(a.o.data) + offset);
    EXPECT_EQ(seen.lse.base, n == 0 ? a.lse.data : nullptr);
  }
}

TEST_F(CudaCall, AFailedLaunchEndsIt) {
  own_context(100);  // where nothing was launched before
  const Problem problem = describe(arguments);
  const DeviceFacts facts = h200();
  const CudaPlan plan =
      make_plan(Pass::forward, problem, facts, core::Access::tma, FamilyChoice::sm80).value();
  const CurrentContext context(fake_driver(), 0);
  Kernel kernel;
  kernel.spec = plan.kernels[0];
  const core::Executor executor;
  const DeviceCall call{context, arguments, plan, executor, {&kernel}, nullptr, nullptr};
  fake().failing_result = abi::kOutOfMemory;
  // The first call's kernels are launched one by one, the second's by a graph.
  for (const char* launching : {"cuLaunchKernelEx", "cuGraphLaunch"}) {
    fake().failing = launching;
    const core::Status status = run(call);
    EXPECT_EQ(status.code, ErrorCode::out_of_memory) << launching;
    EXPECT_NE(status.message.find(launching), std::string::npos) << status.message;
    EXPECT_NE(status.message.find("while launching attn_forward of"), std::string::npos);
  }
}

TEST_F(CudaCall, EachHasItsOwnArguments) {
  const Problem problem = describe(arguments);
  for (int n = 0; n < 4; ++n) {
    arguments.q = make(DType::bf16, {2, 300, 4, 64});
    const int before = fake().graph_launches;
    const auto list = launched(Pass::forward, problem);
    ASSERT_EQ(list.size(), 1u);
    EXPECT_EQ(list[0].arguments.q.base, arguments.q.data);
    if (n > 0) {
      EXPECT_EQ(fake().graph_launches, before + 1);
    }
  }
}

TEST_F(CudaCall, DecodeCutsTheKeys) {
  Arguments& a = arguments;
  a.q.shape[1] = a.o.shape[1] = 1;
  a.lse.shape[2] = 1;
  Problem problem = describe(a);
  problem.split_keys = 128;
  const auto list = launched(Pass::decode, problem);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].entry, "attn_decode");
  const auto cuts = static_cast<unsigned>((problem.len_kv + 127) / 128);
  EXPECT_EQ(list[0].blocks, static_cast<unsigned>(problem.batch * problem.heads_kv) * cuts);
}

TEST_F(CudaCall, PackedRowsOfNoEntryComeFirst) {
  Arguments& a = arguments;
  for (TensorView* view : {&a.q, &a.o}) *view = make(DType::bf16, {600, 4, 64});
  a.lse = make(DType::f32, {4, 600});
  a.cu_len_q = make(DType::i32, {3});
  Problem problem = describe(a);
  problem.len_q = 500;
  const auto list = launched(Pass::forward, problem);
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].entry, "attn_uncovered_rows");
  EXPECT_EQ(list[0].blocks, 3u);
  EXPECT_EQ(list[0].threads, 256u);
  EXPECT_EQ(list[1].entry, "attn_forward");
  EXPECT_EQ(list[1].blocks, 4u * 4 * 2);
  EXPECT_EQ(list[1].arguments.total_q, 600);
  problem.len_q = 0;  // no entry has rows, and all of them are to be written
  const auto none = launched(Pass::forward, problem);
  ASSERT_EQ(none.size(), 1u);
  EXPECT_EQ(none[0].entry, "attn_uncovered_rows");
}

class CudaBackwardCall : public CudaCall {
 protected:
  CudaBackwardCall() {
    Arguments& a = arguments;
    for (TensorView* view : {&a.dout, &a.dq, &a.dk, &a.dv}) {
      *view = make(DType::bf16, {2, 300, 4, 64});
    }
  }
  // The workspace is a device address that nobody follows.
  std::vector<Seen> launched(const Problem& problem) {
    return CudaCall::launched(Pass::backward, problem);
  }
  static std::vector<std::string> entries(const std::vector<Seen>& list) {
    std::vector<std::string> names;
    for (const Seen& seen : list) names.push_back(seen.entry);
    return names;
  }
  using Names = std::vector<std::string>;
};

// Begin and end of each part of the workspace, for the problem of this test.
TEST_F(CudaBackwardCall, InOrder) {
  const Problem problem = describe(arguments);
  const auto list = launched(problem);
  ASSERT_EQ(entries(list),
            (Names{"attn_backward_preprocess", "attn_backward", "attn_backward_postprocess"}));
  const PlanSummary plan =
      make_plan(Pass::backward, problem, h200(), core::Access::vector).value().summary();
  const auto tile_q = static_cast<unsigned>(plan.tile_q);
  const auto tile_kv = static_cast<unsigned>(plan.tile_kv);
  EXPECT_EQ(list[0].blocks, (300 + tile_q - 1) / tile_q * 4 * 2);
  EXPECT_EQ(list[1].blocks, (300 + tile_kv - 1) / tile_kv * 4 * 2);
  EXPECT_EQ(list[2].blocks, 5u * 4 * 2) << "64 rows each";
  const device::Arguments& a = list[1].arguments;
  EXPECT_EQ(a.lse_delta.stride_row, 8);
  EXPECT_EQ(a.lse_delta.stride_head, 300 * 8);
  EXPECT_EQ(a.lse_delta.stride_batch, 4 * 300 * 8);
  EXPECT_EQ(a.dq_accum.stride_row, 64 * 4);
  EXPECT_EQ(a.dq_accum.stride_batch, 4 * 304 * 64 * 4);
  EXPECT_EQ(a.dq_semaphore, nullptr);
  EXPECT_EQ(a.partials, nullptr);
  EXPECT_EQ(a.zeros, a.dq_accum.base);
  EXPECT_GE(a.zeros_bytes, 2 * 4 * 300 * 64 * 4);
}

TEST_F(CudaBackwardCall, EveryKernel) {
  Arguments& a = arguments;
  a.k = make(DType::bf16, {500, 4, 64});
  a.v = make(DType::bf16, {500, 4, 64});
  a.dk = make(DType::bf16, {500, 4, 64});
  a.dv = make(DType::bf16, {500, 4, 64});
  a.cu_len_kv = make(DType::i32, {3});
  a.bias = make(DType::f32, {1, 1, 1, 400});
  a.dbias = make(DType::f32, {1, 1, 1, 400});
  a.sinks = make(DType::f32, {4});
  a.dsink = make(DType::f32, {4});
  Problem problem = describe(a);
  problem.len_kv = 400;
  problem.deterministic = true;
  const auto list = launched(problem);
  ASSERT_EQ(entries(list),
            (Names{"attn_backward_preprocess", "attn_uncovered_gradients", "attn_backward",
                   "attn_backward_postprocess", "attn_bias_gradient", "attn_bias_gradient_sum",
                   "attn_sink_gradient"}));
  EXPECT_EQ(list[1].blocks, 2u) << "256 of 500 rows each";
  EXPECT_EQ(list[5].blocks, 2u) << "256 of 400 elements each";
  EXPECT_EQ(list[6].blocks, 4u);
  const device::Arguments& given = list[4].arguments;
  EXPECT_EQ(given.dbias_full, 1);
  EXPECT_GT(given.splits, 1) << "7 tiles of keys on 132 SMs";
  EXPECT_EQ(list[4].blocks, 7u * static_cast<unsigned>(given.splits));
  EXPECT_NE(given.partials, nullptr);
  EXPECT_NE(given.dq_semaphore, nullptr);
  EXPECT_EQ(given.dsink_stride, 4);
  problem.accumulate = true;
  EXPECT_EQ(entries(launched(problem))[1], "attn_backward")
      << "rows of no entry keep what is there";
}

TEST_F(CudaBackwardCall, BiasGradientInTheMainKernel) {
  const auto kernels_of = [&](std::initializer_list<std::int64_t> shape, auto change) {
    arguments.bias = make(DType::bf16, shape);
    arguments.dbias = make(DType::bf16, shape);
    Problem problem = describe(arguments);
    change(problem);
    return launched(problem);
  };
  const Names sums{"attn_backward_preprocess", "attn_backward", "attn_backward_postprocess",
                   "attn_bias_gradient_convert"};
  const Names apart{"attn_backward_preprocess", "attn_backward", "attn_backward_postprocess",
                    "attn_bias_gradient", "attn_bias_gradient_sum"};
  const auto nothing = [](Problem&) {};
  const auto deterministic = [](Problem& problem) { problem.deterministic = true; };
  const auto softcap = [&](Problem& problem) {
    arguments.softcap = 30.0;
    problem.softcap = true;
  };
  const auto list = kernels_of({1, 4, 300, 300}, nothing);
  ASSERT_EQ(entries(list), sums);
  EXPECT_EQ(list[3].blocks, 38u * 4) << "8 queries and 1024 keys each";
  const device::Arguments& a = list[1].arguments;
  EXPECT_EQ(a.dbias_accum_stride_head, 304 * 304 * 4);
  EXPECT_EQ(a.dbias_accum_stride_batch, 0);
  EXPECT_GE(a.zeros_bytes, 2 * 4 * 304 * 64 * 4 + 4 * a.dbias_accum_stride_head);
  EXPECT_EQ(entries(kernels_of({1, 4, 300, 300}, deterministic)), apart) << "a sum over entries";
  EXPECT_EQ(entries(kernels_of({2, 1, 300, 300}, deterministic)), apart) << "over heads";
  EXPECT_EQ(entries(kernels_of({2, 4, 300, 300}, deterministic)), sums) << "nothing to sum up";
  EXPECT_EQ(entries(kernels_of({2, 4, 300, 1}, nothing))[3], "attn_bias_gradient");
  EXPECT_EQ(entries(kernels_of({2, 4, 1, 300}, nothing))[3], "attn_bias_gradient");
  EXPECT_EQ(entries(kernels_of({1, 4, 300, 300}, softcap)), apart);
}

// Sums of sm80: 8.0 has no reductions of 16 bytes; memory has room for other things than sums.
TEST(CudaBiasGradient, SumsNeedTheDevice) {
  const Problem problem = parse_problem(
      "dtype=bf16 batch=2 heads_q=16 heads_kv=16 len_q=4096 len_kv=4096 bias=hqk dbias");
  const auto has_sums = [&](const Problem& of, DeviceFacts facts) {
    const core::Result<CudaPlan> plan = make_plan(
        Pass::backward, of, facts, core::best_access(Pass::backward, of), FamilyChoice::sm80);
    EXPECT_TRUE(plan.ok()) << plan.reason();
    return plan.ok() && plan.value().workspace.dbias_accum.bytes > 0;
  };
  DeviceFacts facts = h200();
  EXPECT_TRUE(has_sums(problem, facts));
  facts.memory_bytes = std::int64_t{8} << 30;
  EXPECT_TRUE(has_sums(problem, facts)) << "1 of 8 GiB";
  --facts.memory_bytes;
  EXPECT_FALSE(has_sums(problem, facts));
  facts = h200();
  facts.major = 8;
  EXPECT_FALSE(has_sums(problem, facts));
  for (const core::Access access : {core::Access::element, core::Access::vector}) {
    EXPECT_EQ(make_plan(Pass::backward, problem, h200(), access).value().workspace_bytes,
              make_plan(Pass::backward, problem, h200()).value().workspace_bytes)
        << "a caller's workspace is for all calls of the problem";
  }
  Problem endless = problem;
  endless.len_q = endless.len_kv = std::int64_t{1} << 29;
  endless.batch = endless.heads_q = endless.heads_kv = 1 << 4;
  endless.bias.batch = true;
  EXPECT_FALSE(dbias_accum_fits(endless, h200().memory_bytes)) << "beyond 64 bits";
  Problem odd = problem;
  odd.dim_qk = 60;
  EXPECT_FALSE(has_sums(odd, h200()));
  Problem alone = problem;
  alone.dq = alone.dk = alone.dv = false;
  EXPECT_FALSE(has_sums(alone, h200())) << "the main kernel is not needed";
}

TEST_F(CudaBackwardCall, OnlyWhatIsAskedFor) {
  arguments.dq = TensorView{};
  Problem problem = describe(arguments);
  problem.deterministic = true;
  const auto keys = launched(problem);
  EXPECT_EQ(entries(keys), (Names{"attn_backward_preprocess", "attn_backward"}));
  EXPECT_EQ(keys[1].arguments.dq_accum.base, nullptr);
  EXPECT_EQ(keys[1].arguments.dq_semaphore, nullptr);
  EXPECT_EQ(keys[0].arguments.zeros_bytes, 0);
  arguments.dk = arguments.dv = TensorView{};
  arguments.sinks = make(DType::f32, {4});
  arguments.dsink = make(DType::f32, {4});
  EXPECT_EQ(entries(launched(describe(arguments))),
            (Names{"attn_backward_preprocess", "attn_sink_gradient"}));
}

TEST_F(CudaBackwardCall, ZerosWhereThereAreNoKeysOrQueries) {
  Arguments& a = arguments;
  const Arguments whole = a;
  for (TensorView* view : {&a.k, &a.v, &a.dk, &a.dv}) view->shape[1] = 0;
  EXPECT_EQ(entries(launched(describe(a))),
            (Names{"attn_backward_preprocess", "attn_backward_postprocess"}));
  a = whole;
  for (TensorView* view : {&a.q, &a.o, &a.dout, &a.dq}) view->shape[1] = 0;
  a.lse.shape[2] = 0;
  EXPECT_EQ(entries(launched(describe(a))), Names{"attn_backward"});
}

// Packed rows whose entries are all empty: dq of them is zero, so its sums must be.
TEST_F(CudaBackwardCall, SumsOfRowsOfNoEntryAreZeroed) {
  Arguments& a = arguments;
  for (TensorView* view : {&a.q, &a.o, &a.dout, &a.dq}) *view = make(DType::bf16, {600, 4, 64});
  a.lse = make(DType::f32, {4, 600});
  a.cu_len_q = make(DType::i32, {3});
  Problem problem = describe(a);
  problem.len_q = 0;
  const auto list = launched(problem);
  ASSERT_EQ(entries(list),
            (Names{"attn_backward_preprocess", "attn_backward", "attn_backward_postprocess"}));
  EXPECT_EQ(list[0].blocks, 1u);
  EXPECT_EQ(list[0].arguments.zeros_bytes, (592 + 3 * 16) * 4 * 64 * 4)
      << "each sequence's rows start at a multiple of 16";
  EXPECT_EQ(list[0].arguments.lse_delta.stride_head, 600 * 8);
  EXPECT_EQ(list[0].arguments.lse_delta.stride_batch, 0);
  EXPECT_EQ(list[2].blocks, 10u * 4);
}

TEST_F(CudaBackwardCall, SumsOfABiasWithoutEntriesAreZeroed) {
  Arguments& a = arguments;
  for (TensorView* view : {&a.q, &a.o, &a.dout, &a.dq, &a.k, &a.v, &a.dk, &a.dv}) {
    *view = make(DType::bf16, {0, 60, 4, 64});
  }
  a.lse = make(DType::f32, {0, 4, 60});
  a.bias = make(DType::bf16, {1, 4, 60, 60});
  a.dbias = make(DType::bf16, {1, 4, 60, 60});
  const auto list = launched(describe(a));
  ASSERT_EQ(entries(list), (Names{"attn_backward_preprocess", "attn_bias_gradient_convert"}));
  EXPECT_EQ(list[0].blocks, 1u);
  EXPECT_EQ(list[0].arguments.zeros_bytes, 4 * 64 * 64 * 4);
}

TEST(CudaWorkspace, PartsDoNotOverlap) {
  for (const char* text :
       {"dtype=bf16 batch=3 heads_q=5 heads_kv=5 len_q=77 len_kv=9 bias=h",
        "dtype=bf16 batch=3 heads_q=5 heads_kv=5 len_q=77 len_kv=9 layout_q=packed total_q=101",
        "dtype=bf16 batch=1 len_q=131072 len_kv=131072 heads_q=8 heads_kv=8"}) {
    const Problem problem = parse_problem(text);
    for (const bool turns : {false, true}) {
      for (const int dim : {0, 64, 256}) {
        for (const int splits : {1, 3}) {
          if (splits > 1 && !problem.bias.given) continue;
          const bool sums = problem.bias.given && splits == 1;
          const Workspace w = lay_out(problem, {.tile_q = 64,
                                                .dim = dim,
                                                .dq_semaphores = turns ? 2 : 0,
                                                .splits = splits,
                                                .dbias_accum = sums,
                                                .tile_counter = turns});
          std::int64_t end = 0;
          for (const Part& part : {w.lse_delta, w.row_ranges, w.q_ranges, w.dq_accum,
                                   w.dq_semaphore, w.dbias_accum, w.tile_counter, w.partials}) {
            EXPECT_GE(part.offset, end) << text;
            EXPECT_EQ(part.offset % 256, 0) << text;
            end = part.offset + part.bytes;
          }
          EXPECT_LE(end, w.bytes) << text;
          device::Arguments a;
          place(w, problem, reinterpret_cast<void*>(kDeviceMemory), a);
          EXPECT_EQ(a.dbias_accum != nullptr, sums) << text;
          if (dim == 0 && !turns && !sums) {
            EXPECT_EQ(a.zeros, nullptr);
            continue;
          }
          // The zeros are dq_accum, turns and dbias_accum, to the last of them, and nothing else.
          EXPECT_EQ(a.zeros_bytes % 16, 0) << text;
          EXPECT_EQ(reinterpret_cast<std::uint64_t>(a.zeros),
                    kDeviceMemory + static_cast<std::uint64_t>(w.dq_accum.offset))
              << text;
          EXPECT_LE(w.dq_accum.offset + a.zeros_bytes, w.partials.offset) << text;
          for (const Part& part : {w.dq_accum, w.dq_semaphore, w.dbias_accum}) {
            EXPECT_GE(w.dq_accum.offset + a.zeros_bytes, part.offset + part.bytes) << text;
          }
        }
      }
    }
  }
}

TEST_F(CudaCall, NothingToDoLaunchesNothing) {
  for (const std::size_t dim : {std::size_t{0}, std::size_t{1}}) {
    const Arguments whole = arguments;
    for (TensorView* view : {&arguments.q, &arguments.o}) view->shape[dim] = 0;
    arguments.lse.shape[dim == 0 ? 0 : 2] = 0;
    if (dim == 0) arguments.k.shape[0] = arguments.v.shape[0] = 0;
    EXPECT_TRUE(launched(Pass::forward, describe(arguments)).empty()) << dim;
    arguments = whole;
  }
}

TEST_F(CudaCall, NoKeysIsStillWritten) {
  arguments.k.shape[1] = arguments.v.shape[1] = 0;
  EXPECT_EQ(launched(Pass::forward, describe(arguments)).size(), 1u);
}

}  // namespace
}  // namespace attn::cuda::test
