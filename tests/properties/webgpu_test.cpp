// Properties of the WebGPU backend on every device: the same bits from run to run, gradients
// through the rotation, independent sequences in a packed batch. Uses any adapter of the machine;
// skipped with the reason if there is none.
#include <gtest/gtest.h>

#include <string>

#include "harness/values.hpp"
#include "layer.hpp"

namespace attn::properties {
namespace {

class OnWebgpu : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const BackendInfo& info : backends(context)) {
      if (info.name == "webgpu" && !info.usable) GTEST_SKIP() << info.detail;
    }
  }

  static ContextOptions options() {
    ContextOptions options;
    options.backend = "webgpu";
    return options;
  }

  // o, then the gradients, of one call each.
  struct Results {
    TensorView o, lse, dq, dk, dv;
  };
  Results run(const Problem& problem, Arguments a) {
    Results x;
    x.o = a.o = arena.copy(a.o);
    x.lse = a.lse = arena.copy(a.lse);
    forward(context, problem, a);
    x.dq = a.dq = arena.copy(a.dq);
    x.dk = a.dk = arena.copy(a.dk);
    x.dv = a.dv = arena.copy(a.dv);
    backward(context, problem, a);
    return x;
  }

  Context context{options()};
  Arena arena;
};

TEST_F(OnWebgpu, AHundredRepeatsHaveTheSameBits) {
  Problem problem;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.len_q = 70;
  problem.len_kv = 70;
  problem.dim_qk = 32;
  problem.dim_vo = 32;
  problem.causal = true;
  const Arguments layer = make_layer(arena, problem);
  const Results first = run(problem, layer);
  for (int n = 0; n < 99; ++n) {
    const Results again = run(problem, layer);
    ASSERT_TRUE(same_bits(first.o, again.o)) << n;
    ASSERT_TRUE(same_bits(first.lse, again.lse)) << n;
    ASSERT_TRUE(same_bits(first.dq, again.dq)) << n;
    ASSERT_TRUE(same_bits(first.dk, again.dk)) << n;
    ASSERT_TRUE(same_bits(first.dv, again.dv)) << n;
  }
}

TEST_F(OnWebgpu, RotationAndItsInverseAreTheIdentity) {
  for (const Rope style : {Rope::half, Rope::interleaved}) {
    RopeArguments a;
    a.x = arena.normal(DType::f32, {2, 33, 3, 24}, "x");
    a.out = arena.empty(DType::f32, {2, 33, 3, 24});
    a.style = style;
    a.pos_offset = 100000;
    rope(context, a);
    EXPECT_GT(difference(a.out, a.x), 0.1);
    RopeArguments back = a;
    back.x = back.out = a.out;
    back.inverse = true;
    rope(context, back);
    EXPECT_LE(difference(back.out, a.x), 1e-6);
  }
}

// Changing one packed document does not change the bits of another.
TEST_F(OnWebgpu, PackedEntriesDontSeeEachOther) {
  Problem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 2;
  problem.layout_q = problem.layout_kv = Layout::packed;
  problem.len_q = problem.len_kv = 50;
  problem.total_q = problem.total_kv = 90;
  problem.dim_qk = problem.dim_vo = 16;
  problem.causal = true;
  Arguments layer = make_layer(arena, problem);
  layer.cu_len_q = layer.cu_len_kv = arena.numbers(DType::i32, {0, 40, 90});
  const Results first = run(problem, layer);
  Arguments changed = layer;
  changed.q = arena.copy(layer.q);
  changed.k = arena.copy(layer.k);
  changed.v = arena.copy(layer.v);
  for (const TensorView& view : {changed.q, changed.k, changed.v}) {
    set_zero(slice(view, 0, 40, 50));
  }
  const Results second = run(problem, changed);
  for (const auto member : {&Results::o, &Results::dq, &Results::dk, &Results::dv}) {
    EXPECT_TRUE(same_bits(slice(first.*member, 0, 0, 40), slice(second.*member, 0, 0, 40)));
    EXPECT_FALSE(same_bits(slice(first.*member, 0, 40, 50), slice(second.*member, 0, 40, 50)));
  }
}

}  // namespace
}  // namespace attn::properties
