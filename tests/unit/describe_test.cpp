// describe: calls made for a problem state that problem again.
#include <gtest/gtest.h>

#include <attn/attn.hpp>

#include "call.hpp"

namespace attn {
namespace {

TEST(Describe, StatesTheProblemOfACall) {
  const std::pair<Pass, const char*> problems[] = {
      {Pass::forward, "batch=2 heads_q=4 heads_kv=2 len_q=3 len_kv=5 dim_qk=8 dim_vo=6"},
      {Pass::forward, "len_q=3 len_kv=5 lse=off"},
      {Pass::forward, "dtype=bf16 dtype_out=f32 len_q=3 len_kv=5 lengths_q lengths_kv kv_begin"},
      {Pass::forward, "batch=2 heads_q=3 len_q=4 len_kv=5 bias=hqk mask=bk alibi sink softcap"},
      {Pass::forward, "dtype=f64 len_q=4 len_kv=5 bias=1 kv_end nonfinite_zero"},
      {Pass::forward, "dtype=f16 len_q=4 len_kv=5 bias=qk dtype_bias=f16"},
      {Pass::forward,
       "batch=3 len_q=7 len_kv=9 layout_q=packed layout_kv=packed total_q=7 total_kv=9"},
      {Pass::decode,
       "dtype=bf16 dtype_kv=f8e4m3 batch=3 len_q=1 len_kv=8 page_size=4 lengths_kv len_new=2"},
      {Pass::backward, "len_q=3 len_kv=5 dlse"},
      {Pass::backward, "dtype=bf16 dtype_out=f32 dtype_grad=f32 len_q=3 len_kv=5 delta dq=off"},
      {Pass::backward,
       "heads_q=2 len_q=3 len_kv=5 bias=hq dtype_bias=bf16 dtype_dbias=f32 dbias sink dsink"}};
  for (const auto& [pass, text] : problems) {
    EXPECT_EQ(to_string(describe(test::make_call(pass, text).arguments)),
              to_string(parse_problem(text)));
  }
}

TEST(Describe, SwitchesFromNumbersAndPointers) {
  test::CallMemory call = test::make_call(Pass::forward, "len_q=3 len_kv=5");
  call.arguments.dropout_p = 0.5;
  call.arguments.diag = 4;
  EXPECT_EQ(to_string(describe(call.arguments)), "len_q=3 len_kv=5 diagonal=explicit dropout");
  call.arguments.dropout_p = 0.0;
  call.arguments.rope_cos = call.arguments.rope_pos_q = call.arguments.q;
  const Problem problem = describe(call.arguments);
  EXPECT_TRUE(problem.rope_tables);
  EXPECT_TRUE(problem.rope_positions);
}

TEST(Describe, ExpandedDimensionsAreBroadcast) {
  test::CallMemory call =
      test::make_call(Pass::forward, "batch=2 heads_q=3 len_q=4 len_kv=5 bias=bhqk");
  call.arguments.bias.strides[1] = 0;
  EXPECT_EQ(describe(call.arguments).bias, (Extent{true, true, false, true, true}));
}

TEST(Describe, SequencesShareEntries) {
  test::CallMemory call = test::make_call(Pass::forward, "batch=6 len_q=4 len_kv=5 bias=b/2qk");
  EXPECT_EQ(call.arguments.bias.shape[0], 3);
  EXPECT_EQ(describe(call.arguments).bias, (Extent{true, true, false, true, true, 2}));
  call.arguments.bias.shape[0] = 4;  // no divisor: refused as the shape of a whole batch
  EXPECT_EQ(describe(call.arguments).bias, (Extent{true, true, false, true, true}));
}

TEST(Describe, RefusesShapesItCantRead) {
  const auto message = [](auto change) -> std::string {
    test::CallMemory call = test::make_call(Pass::forward, "len_q=3 len_kv=5");
    change(call.arguments);
    try {
      describe(call.arguments);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message([](Arguments& a) { a.q = TensorView{}; }),
            "describe: shape of q: found not given; accepted [b, n, h, dim_qk] or packed [total_q, "
            "h, dim_qk]");
  EXPECT_EQ(message([](Arguments& a) { a.q.rank = 3; }),
            "describe: shape of cu_len_q: found not given; accepted [b + 1] with packed q");
  EXPECT_EQ(
      message([](Arguments& a) {
        a.q.rank = 3;
        a.cu_len_q = TensorView::contiguous(nullptr, DType::i32, {0});
      }),
      "describe: shape of cu_len_q: found i32[0] strides [1] on host; accepted [b + 1], which "
      "starts with 0");
  EXPECT_EQ(message([](Arguments& a) { a.v.rank = 3; }),
            "describe: shape of v: found f32[1, 5, 1] strides [320, 64, 64] on host; accepted the "
            "rank of k");
  EXPECT_NE(message([](Arguments& a) { a.k.rank = 2; }), "");
  EXPECT_NE(message([](Arguments& a) { a.bias = a.lse; }), "");
  EXPECT_NE(message([](Arguments& a) { a.block_table = a.lse; }), "");
  EXPECT_NE(message([](Arguments& a) { a.k_new = a.lse; }), "");
  EXPECT_NE(message([](Arguments& a) { a.q.rank = 7; }), "");
}

// Every public value can be written with designated initializers; the builds where warnings are
// errors hold that what is left out needs no word.
TEST(Describe, TakesDesignatedInitializers) {
  const float data[6] = {};
  const TensorView view = TensorView::contiguous(data, DType::f32, {1, 2, 1, 3});
  const Arguments arguments{.q = view, .k = view, .v = view, .o = view};
  const Problem expected{.len_q = 2, .len_kv = 2, .dim_qk = 3, .dim_vo = 3, .lse = false};
  EXPECT_EQ(describe(arguments), expected);
  const ContextOptions options{.threads = 1};
  Context context(options);
  const RopeArguments rotation{.x = view, .out = view, .rot_dim = 2};
  EXPECT_EQ(rotation.out.shape, rotation.x.shape);
  const MergeArguments partials{.o1 = view, .o2 = view};
  EXPECT_FALSE(partials.lse.given());
}

}  // namespace
}  // namespace attn
