// Memory: a call allocates exactly workspace_bytes(), which grows linearly with the length.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "allocations.hpp"
#include "harness/values.hpp"

namespace attn::memory {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

ContextOptions threads_of(std::int32_t threads) {
  ContextOptions options;
  options.threads = threads;
  return options;
}

struct Tensors {
  std::vector<std::vector<float>> memory;
  Arguments arguments;

  TensorView make(std::initializer_list<std::int64_t> shape, std::uint64_t stream) {
    TensorView view = TensorView::contiguous(nullptr, DType::f32, shape);
    memory.emplace_back(static_cast<std::size_t>(harness::num_elements(view)), 0.0f);
    view.data = memory.back().data();
    for (std::size_t n = 0; stream != 0 && n < memory.back().size(); ++n) {
      memory.back()[n] = static_cast<float>(harness::hash_normal(1, stream, n));
    }
    return view;
  }

  explicit Tensors(const Problem& p) {
    Arguments& a = arguments;
    a.q = make({p.batch, p.len_q, p.heads_q, p.dim_qk}, 1);
    a.k = make({p.batch, p.len_kv, p.heads_kv, p.dim_qk}, 2);
    a.v = make({p.batch, p.len_kv, p.heads_kv, p.dim_vo}, 3);
    a.dout = make({p.batch, p.len_q, p.heads_q, p.dim_vo}, 4);
    a.o = make({p.batch, p.len_q, p.heads_q, p.dim_vo}, 0);
    a.lse = make({p.batch, p.heads_q, p.len_q}, 0);
    a.dq = make({p.batch, p.len_q, p.heads_q, p.dim_qk}, 0);
    a.dk = make({p.batch, p.len_kv, p.heads_kv, p.dim_qk}, 0);
    a.dv = make({p.batch, p.len_kv, p.heads_kv, p.dim_vo}, 0);
  }
};

Problem long_problem(std::int64_t len) {
  Problem p;
  p.len_q = p.len_kv = len;
  p.causal = true;
  return p;
}

Usage measure(Context& context, Pass pass, const Problem& p, const Arguments& a) {
  start();
  pass == Pass::backward ? backward(context, p, a) : forward(context, p, a);
  return stop();
}

TEST(Allocation, TheHookSeesWhatIsAllocated) {
  start();
  auto one = std::make_unique<std::vector<char>>(3 * kMiB);
  void* two = nullptr;
  ASSERT_EQ(posix_memalign(&two, 4096, static_cast<std::size_t>(5 * kMiB)), 0);
  one.reset();
  free(two);
  void* three = std::aligned_alloc(64, static_cast<std::size_t>(2 * kMiB));
  free(three);
  const Usage usage = stop();
  EXPECT_GE(usage.peak_bytes, 8 * kMiB);
  EXPECT_LT(usage.peak_bytes, 9 * kMiB);
  EXPECT_GE(usage.calls, 3);
}

// The pool allocates the workspace as one block: with a new Context the peak is that block.
TEST(Allocation, LongRowsTakeTheWorkspaceAndNothingElse) {
  const Problem p = long_problem(ATTN_LONG_ROW);
  Tensors tensors(p);
  {
    Context warm(threads_of(2));
    const Problem small = long_problem(300);
    Tensors few(small);
    measure(warm, Pass::forward, small, few.arguments);
    measure(warm, Pass::backward, small, few.arguments);
  }
  Context context(threads_of(2));
  std::int64_t most = 0;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const std::int64_t said = workspace_bytes(context, pass, p);
    const Usage usage = measure(context, pass, p, tensors.arguments);
    // The forward keeps all keys and values in f32, packed.
    const std::int64_t keys = p.batch * p.len_kv * p.heads_kv;
    const std::int64_t packed = pass == Pass::forward ? keys * (p.dim_qk + p.dim_vo) * 4 : 0;
    EXPECT_LT(usage.peak_bytes, packed + 16 * kMiB);
    // Bookkeeping of a few KiB (plan cache, pool entries, thread team).
    EXPECT_LE(usage.peak_bytes, std::max(said, most) + 64 * 1024) << to_string(pass);
    if (said > most) {
      EXPECT_GE(usage.peak_bytes, said - most) << to_string(pass);
    }
    most = std::max(most, said);
    EXPECT_LT(said, packed + 16 * kMiB);
  }
  EXPECT_TRUE(std::isfinite(tensors.memory[6][1000]));
}

// With a caller's workspace, a call with a cached plan allocates nothing.
TEST(Allocation, AGivenWorkspaceIsAllThatIsUsed) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const Problem p = long_problem(3000);
    Tensors tensors(p);
    Context context(threads_of(2));
    const std::int64_t said = workspace_bytes(context, pass, p);
    std::vector<char> workspace(static_cast<std::size_t>(said) + 64);
    Arguments a = tensors.arguments;
    const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
    a.workspace = workspace.data() + (64 - address % 64) % 64;
    a.workspace_size = said;
    measure(context, pass, p, a);
    const Usage usage = measure(context, pass, p, a);
    EXPECT_EQ(usage.calls, 0) << to_string(pass) << ", " << usage.peak_bytes << " bytes";
  }
}

// 16-bit gradients are summed in f32 next to dq: one dq of a head for each worker, 16 MiB here.
TEST(Allocation, SixteenBitGradientsTakeTheSumsOfDq) {
  Context context(threads_of(2));
  Problem p = long_problem(65536);
  p.dtype = DType::bf16;
  EXPECT_LT(workspace_bytes(context, Pass::backward, p), 19 * kMiB);
  p.heads_q = p.heads_kv = 8;
  EXPECT_LT(workspace_bytes(context, Pass::backward, p), 2 * 16 * kMiB + 6 * kMiB);
}

TEST(Allocation, GrowsWithTheLengthNotItsSquare) {
  for (const bool options : {false, true}) {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      Context context(threads_of(2));
      const auto bytes = [&](std::int64_t len) {
        Problem p = long_problem(len);
        if (options) {
          p.bias = {true, true, true, true, true};
          p.dbias = pass == Pass::backward;
          p.softcap = p.alibi = p.dropout = p.sink = p.deterministic = true;
        }
        return workspace_bytes(context, pass, p);
      };
      EXPECT_LE(bytes(65536), 2 * bytes(32768) + kMiB) << to_string(pass);
      EXPECT_LT(bytes(65536), 64 * kMiB) << to_string(pass);
    }
  }
}

}  // namespace
}  // namespace attn::memory
