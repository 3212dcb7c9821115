// The C++ entry points: the chain of a call, workspace, plans, questions, many threads.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cmath>
#include <thread>
#include <vector>

#include "allocations.hpp"
#include "call.hpp"
#include "sanitizer.hpp"

namespace attn {
namespace {

using test::CallMemory;
using test::make_call;

constexpr const char* kText = "batch=2 heads_q=4 heads_kv=2 len_q=40 len_kv=50 dim_qk=16 dim_vo=8";

ContextOptions one_thread(const char* backend = "") {
  ContextOptions options;
  options.threads = 1;
  options.backend = backend;
  return options;
}

// Sets all of v to `value`; then o is `value` too.
void fill(const TensorView& view, float value) {
  std::int64_t elements = 1;
  for (int d = 0; d < view.rank; ++d) elements *= view.shape[static_cast<std::size_t>(d)];
  for (std::int64_t i = 0; i < elements; ++i) static_cast<float*>(view.data)[i] = value;
}

template <class Body>
std::string message_of(ErrorCode code, Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

bool has_cuda() {
  Context context(one_thread());
  return backends(context)[0].usable;
}

// Why the CUDA backend can't run.
std::string cuda_reason() {
  Context context(one_thread());
  return backends(context)[0].detail;
}

TEST(Api, EachBackendComputes) {
  for (const char* backend : {"", "cpu", "reference"}) {
    Context context(one_thread(backend));
    const Problem problem = parse_problem(kText);
    CallMemory call = make_call(Pass::forward, problem);
    fill(call.arguments.v, 3.0f);
    forward(context, problem, call.arguments);
    EXPECT_NEAR(static_cast<float*>(call.arguments.o.data)[0], 3.0f, 1e-5) << backend;
    EXPECT_NEAR(static_cast<float*>(call.arguments.lse.data)[0], std::log(50.0), 1e-5) << backend;
    CallMemory decoding = make_call(Pass::decode, problem);
    fill(decoding.arguments.v, 2.0f);
    decode(context, problem, decoding.arguments);
    EXPECT_NEAR(static_cast<float*>(decoding.arguments.o.data)[0], 2.0f, 1e-5) << backend;
    CallMemory back = make_call(Pass::backward, problem);
    fill(back.arguments.lse, static_cast<float>(std::log(50.0)));
    fill(back.arguments.dout, 1.0f);
    backward(context, problem, back.arguments);
    // dv_j = sum over 2 heads and 40 queries of 1/50.
    EXPECT_NEAR(static_cast<float*>(back.arguments.dv.data)[0], 1.6f, 1e-5) << backend;
  }
}

TEST(Api, MergeAndRope) {
  for (const char* backend : {"", "cpu", "reference"}) {
    Context context(one_thread(backend));
    CallMemory memory;
    MergeArguments m;
    for (TensorView* view : {&m.o1, &m.o2, &m.o}) *view = memory.tensor(DType::f32, {1, 3, 2, 8});
    for (TensorView* view : {&m.lse1, &m.lse2, &m.lse}) {
      *view = memory.tensor(DType::f32, {1, 2, 3});
    }
    fill(m.o1, 1.0f);
    fill(m.o2, 3.0f);
    merge(context, m);
    EXPECT_NEAR(static_cast<float*>(m.o.data)[0], 2.0f, 1e-6);
    EXPECT_NEAR(static_cast<float*>(m.lse.data)[0], std::log(2.0), 1e-6);
    MergeBackwardArguments b;
    b.o1 = m.o1, b.o2 = m.o2, b.o = m.o, b.lse1 = m.lse1, b.lse2 = m.lse2, b.lse = m.lse;
    b.dout = memory.tensor(DType::f32, {1, 3, 2, 8});
    b.dout1 = memory.tensor(DType::f32, {1, 3, 2, 8});
    fill(b.dout, 1.0f);
    merge_backward(context, b);
    EXPECT_NEAR(static_cast<float*>(b.dout1.data)[0], 0.5f, 1e-6);
    RopeArguments r;
    r.x = m.o1;
    r.out = memory.tensor(DType::f32, {1, 3, 2, 8});
    rope(context, r);
    EXPECT_NEAR(static_cast<float*>(r.out.data)[16], std::cos(1.0) - std::sin(1.0), 1e-6);
    EXPECT_NE(message_of(ErrorCode::invalid_argument, [&] { merge(context, {}); }), "");
    EXPECT_NE(message_of(ErrorCode::invalid_argument, [&] { merge_backward(context, {}); }), "");
    EXPECT_NE(message_of(ErrorCode::invalid_argument, [&] { rope(context, {}); }), "");
  }
}

TEST(Api, ErrorsAreThrownBeforeAnythingIsWritten) {
  Context context(one_thread());
  const Problem problem = parse_problem(kText);
  CallMemory call = make_call(Pass::forward, problem);
  fill(call.arguments.o, 7.0f);
  call.arguments.scale = NAN;
  EXPECT_EQ(
      message_of(ErrorCode::invalid_argument, [&] { forward(context, problem, call.arguments); }),
      "forward: scale: found nan; accepted a finite number");
  EXPECT_EQ(static_cast<float*>(call.arguments.o.data)[0], 7.0f);
  Problem bad = problem;
  bad.dim_qk = 0;
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { forward(context, bad, call.arguments); }),
            "forward: size: found dim_qk=0; accepted 1 to 512");
}

BackendInfo backend_info(Context& context, const std::string& name) {
  for (const BackendInfo& info : backends(context)) {
    if (info.name == name) return info;
  }
  return {};
}

TEST(Api, UnsupportedTellsEveryReason) {
  if (has_cuda()) GTEST_SKIP() << "says what there is not";
  Context context(one_thread());
  const BackendInfo webgpu = backend_info(context, "webgpu");
  const Problem problem = parse_problem(kText);
  CallMemory call = make_call(Pass::forward, problem);
  for (TensorView* view : {&call.arguments.q, &call.arguments.k, &call.arguments.v,
                           &call.arguments.o, &call.arguments.lse}) {
    view->device = Device::cuda;
  }
  EXPECT_EQ(
      message_of(ErrorCode::unsupported, [&] { forward(context, problem, call.arguments); }),
      "forward: no backend can: cuda: " + cuda_reason() + "; webgpu: " +
          (webgpu.usable ? "works on webgpu memory, the tensors are on cuda" : webgpu.detail) +
          "; cpu: works on host memory, the tensors are on cuda; reference: only runs when it is "
          "requested by name");
  RopeArguments r;
  r.x = call.arguments.q;
  r.out = r.x;
  EXPECT_NE(message_of(ErrorCode::unsupported, [&] { rope(context, r); })
                .find("rope: no backend can: cuda: " + cuda_reason()),
            std::string::npos);
  Context forced(one_thread("webgpu"));
  EXPECT_EQ(supports(forced, Pass::forward, problem).reason,
            webgpu.usable
                ? ""
                : "cuda: the context asks for webgpu; webgpu: " + webgpu.detail +
                      "; cpu: the context asks for webgpu; reference: the context asks for "
                      "webgpu");
}

TEST(Api, WorkspaceOfTheCaller) {
  Context context(one_thread());
  const Problem problem = parse_problem(kText);
  const std::int64_t bytes = workspace_bytes(context, Pass::backward, problem);
  ASSERT_GT(bytes, 0);
  CallMemory call = make_call(Pass::backward, problem);
  const TensorView memory = call.tensor(DType::u8, {bytes + 64});
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data);
  call.arguments.workspace = reinterpret_cast<void*>((address + 63) / 64 * 64);
  call.arguments.workspace_size = bytes;
  const auto before = test::allocations();
  backward(context, problem, call.arguments);
  EXPECT_EQ(test::allocations().bytes, before.bytes);
  call.arguments.workspace_size = bytes - 1;
  EXPECT_EQ(
      message_of(ErrorCode::invalid_argument, [&] { backward(context, problem, call.arguments); }),
      "backward: workspace: found " + std::to_string(bytes - 1) + " bytes; accepted at least " +
          std::to_string(bytes));
}

TEST(Api, PlannedCallsAllocateTheWorkspaceAlone) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "allocations are not counted";
  ContextOptions options = one_thread();
  options.pool_bytes = 0;
  Context context(options);
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::decode}) {
    const Problem problem = parse_problem(kText);
    const CallMemory call = make_call(pass, problem);
    prepare(context, pass, problem);
    const auto before = test::allocations();
    if (pass == Pass::forward) forward(context, problem, call.arguments);
    if (pass == Pass::backward) backward(context, problem, call.arguments);
    if (pass == Pass::decode) decode(context, problem, call.arguments);
    EXPECT_EQ(test::allocations().bytes - before.bytes, workspace_bytes(context, pass, problem))
        << to_string(pass);
  }
}

TEST(Api, WorkspaceThatCantBeHad) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "allocations are not counted";
  // Nothing is read or written: the error comes first.
  Context context(one_thread());
  Problem problem = parse_problem("heads_q=2000000000 len_q=1000000 len_kv=1 dim_qk=1 dim_vo=1");
  Arguments a;
  static float memory[4];
  a.q = TensorView::contiguous(memory, DType::f32, {1, 1000000, 2000000000, 1});
  a.o = a.dq = a.dout = a.q;
  a.dq.data = reinterpret_cast<void*>(std::uintptr_t{1} << 61);
  problem.dk = problem.dv = false;
  a.k = a.v = TensorView::contiguous(memory, DType::f32, {1, 1, 1, 1});
  a.lse = TensorView::contiguous(memory, DType::f32, {1, 2000000000, 1000000});
  if (workspace_bytes(context, Pass::backward, problem) < (std::int64_t{1} << 50)) {
    GTEST_SKIP() << "the plan needs little memory";
  }
  const std::string message =
      message_of(ErrorCode::out_of_memory, [&] { backward(context, problem, a); });
  EXPECT_NE(message.find("bytes can't be allocated"), std::string::npos) << message;
}

TEST(Api, Questions) {
  Context context(one_thread());
  const Problem problem = parse_problem(kText);
  const Verdict verdict = supports(context, Pass::forward, problem);
  EXPECT_TRUE(verdict.supported);
  EXPECT_EQ(verdict.backend, "cpu");
  EXPECT_EQ(verdict.reason, "");
  const PlanSummary summary = plan(context, Pass::forward, problem);
  EXPECT_EQ(summary.backend, "cpu");
  EXPECT_NE(summary.kernel, "");
  EXPECT_GT(summary.tile_q, 0);
  EXPECT_GT(summary.tile_kv, 0);
  EXPECT_GT(summary.tasks, 0);
  EXPECT_EQ(summary.workspace_bytes, workspace_bytes(context, Pass::forward, problem));
  EXPECT_STREQ(version(), "0.1.0");

  const std::vector<BackendInfo> list = backends(context);
  ASSERT_EQ(list.size(), 4u);
  EXPECT_EQ(list[0].name, "cuda");
  EXPECT_NE(list[0].detail, "");
  if (!list[0].built) {
    EXPECT_EQ(list[0].detail, "this build has no CUDA backend");
  }
  EXPECT_EQ(list[1].name, "webgpu");
  EXPECT_EQ(list[2].name, "cpu");
  EXPECT_TRUE(list[2].built && list[2].usable);
  EXPECT_EQ(list[3].name, "reference");
  EXPECT_TRUE(list[3].usable);
}

TEST(Api, Explain) {
  Context context(one_thread());
  const std::string text = explain(context, Pass::forward, parse_problem(kText));
  for (const char* part : {"problem: forward batch=2 heads_q=4", "\nvalidate: ok\n",
                           "\nbackend cuda: no: ", "\nbackend cpu: runs it",
                           "\nbackend reference: no: only runs when it is requested by name\n",
                           "\nplan: kernel=", " workspace_bytes=", " threads=1\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  const std::string refused = explain(context, Pass::forward, parse_problem("dim_qk=0"));
  EXPECT_NE(refused.find("validate: forward: size: found dim_qk=0"), std::string::npos) << refused;
  const std::string on_cuda =
      explain(context, Pass::forward, parse_problem("len_q=1 len_kv=1"), Device::cuda);
  const char* plan = has_cuda() ? "plan: kernel=" : "plan: none";
  EXPECT_NE(on_cuda.find(plan), std::string::npos) << on_cuda;
}

TEST(Api, OneContextServesManyThreads) {
  ContextOptions options;
  options.threads = 2;
  Context context(options);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&context, &wrong, t] {
      for (int round = 0; round < 20; ++round) {
        Problem problem = parse_problem(kText);
        problem.len_q = 3 + (t + round) % 5;
        CallMemory call = make_call(Pass::forward, problem);
        const auto value = static_cast<float>(t + 1);
        fill(call.arguments.v, value);
        forward(context, problem, call.arguments);
        const float found = static_cast<float*>(call.arguments.o.data)[0];
        if (!(std::abs(found - value) < 1e-4f)) ++wrong[static_cast<std::size_t>(t)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Api, ParallelForOfTheCaller) {
  static int regions;
  regions = 0;
  ContextOptions options;
  options.threads = 3;
  int marker = 0;
  options.parallel_for_user = &marker;
  options.parallel_for = [](void* user, std::int32_t workers, void (*body)(void*, std::int32_t),
                            void* data) {
    ++*static_cast<int*>(user);
    ++regions;
    for (std::int32_t worker = workers - 1; worker >= 0; --worker) body(data, worker);
  };
  Context context(options);
  EXPECT_EQ(context.threads(), 3);
  const Problem problem = parse_problem(kText);
  CallMemory call = make_call(Pass::forward, problem);
  fill(call.arguments.v, 2.0f);
  forward(context, problem, call.arguments);
  EXPECT_GT(regions, 0);
  EXPECT_EQ(marker, regions);
  EXPECT_NEAR(static_cast<float*>(call.arguments.o.data)[0], 2.0f, 1e-5);
}

}  // namespace
}  // namespace attn
