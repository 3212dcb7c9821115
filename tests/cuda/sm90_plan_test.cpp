// The family sm90: when it is asked, what it refuses and why, and what its plans contain.
#include "sm90_plan.hpp"

#include <gtest/gtest.h>

#include <map>

#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/families/sm90/family.hpp"
#include "cuda/families/sm90/forward_plan.hpp"
#include "cuda/families/sm90/forward_tiles.hpp"
#include "cuda/kernels/sm90/backward_shared.cuh"
#include "harness/case.hpp"

namespace attn::cuda::test {
namespace {

using core::Access;

TEST(CudaSm90Plan, IsChosenUnlessAnotherIsNamed) {
  EXPECT_EQ(parse_family_choice(nullptr), FamilyChoice::automatic);
  EXPECT_EQ(parse_family_choice("auto"), FamilyChoice::automatic);
  EXPECT_EQ(parse_family_choice("sm80"), FamilyChoice::sm80);
  EXPECT_EQ(parse_family_choice("sm90"), FamilyChoice::sm90);
  for (const FamilyChoice choice : {FamilyChoice::automatic, FamilyChoice::sm90}) {
    EXPECT_STREQ(plan_of(kLong, Access::tma, choice).family_name, "sm90");
    EXPECT_EQ(plan_of(kLong, Access::tma, choice).refusals, "");
    EXPECT_STREQ(plan_of(kLong, Access::tma, choice, Pass::backward).family_name, "sm90");
  }
  EXPECT_STREQ(plan_of(kLong, Access::tma, FamilyChoice::sm80).family_name, "sm80");
  EXPECT_EQ(plan_of(kLong, Access::tma, FamilyChoice::sm80).workspace_bytes, 0);
}

// sm80 runs what sm90 refuses, and the summary says why.
TEST(CudaSm90Plan, RefusesWithReasons) {
  const auto reason = [](const std::string& problem, Access access = Access::tma,
                         Pass pass = Pass::forward) {
    const PlanSummary plan = plan_of(problem, access, FamilyChoice::sm90, pass).summary();
    EXPECT_EQ(plan.family, "sm80") << problem;
    return plan.refusals;
  };
  EXPECT_EQ(reason(kLong, Access::vector), "sm90: needs the access tma, the call's is vector");
  EXPECT_EQ(reason(kLong + "dim_qk=63 dim_vo=63"),
            "sm90: needs the access tma, the call's is element");
  EXPECT_EQ(reason(kLong, Access::tma, Pass::decode), "sm90: has no kernel for the decode");
  EXPECT_EQ(reason(kLong + "bias=hk dtype_bias=bf16"),
            "sm90: takes no bias or mask that broadcasts queries or keys");
  EXPECT_EQ(reason(kLong + "mask=bq"),
            "sm90: takes no bias or mask that broadcasts queries or keys");
  EXPECT_EQ(reason(kLong + "bias=hqk dtype_bias=bf16 dim_qk=192 dim_vo=192"),
            "sm90: has no shared memory for a bias above dim 128");
  const std::string d512 = kLong + "dim_qk=512 dim_vo=512 ";
  EXPECT_EQ(reason(d512 + "bias=hqk dtype_bias=bf16"),
            "sm90: has no shared memory for a bias above dim 128");
  EXPECT_EQ(reason(d512 + "mask=hqk"), "sm90: has no shared memory for a mask above dim 256");
  EXPECT_EQ(reason(kLong + "dim_qk=257 dim_vo=257"),
            "sm90: needs the access tma, the call's is element");
  EXPECT_EQ(reason(kLong + "bias=hqk dtype_bias=f32"),
            "sm90: needs 271360 bytes of shared memory, a block has 232448");
  EXPECT_EQ(reason("batch=2 heads_q=4 heads_kv=4 layout_q=packed total_q=600 len_q=400 len_kv=400"),
            "sm90: takes q, k and v that are all packed or all padded");
  EXPECT_EQ(reason("len_q=0 len_kv=8"), "sm90: takes no sizes of 0");
  EXPECT_EQ(make_plan(Pass::forward, parse_problem("dtype=bf16 len_q=8 len_kv=8"),
                      *typical_facts(80), Access::tma, FamilyChoice::sm90)
                .value()
                .refusals,
            "sm90: needs compute capability 9.0, cuda:0 is " + to_string(*typical_facts(80)));
  // The reason of the family that takes most is that of the backend.
  EXPECT_EQ(make_plan(Pass::forward, parse_problem("dtype=f64 len_q=8 len_kv=8"), h200(),
                      Access::tma, FamilyChoice::sm90)
                .reason(),
            "no kernel for f64 on CUDA; f32, f16 and bf16 are supported");
}

TEST(CudaSm90Plan, RefusesBackwardsWithReasons) {
  const auto reason = [](const std::string& problem, Access access = Access::tma) {
    const PlanSummary plan = plan_of(problem, access, FamilyChoice::sm90, Pass::backward).summary();
    EXPECT_EQ(plan.family, "sm80") << problem;
    return plan.refusals;
  };
  EXPECT_EQ(reason(kLong, Access::vector), "sm90: needs the access tma, the call's is vector");
  EXPECT_EQ(reason("dim_qk=128 dim_vo=128 len_q=4194305 len_kv=64 kv_end"),
            "sm90: takes up to 4194304 queries with kv_begin or kv_end");
  EXPECT_EQ(reason(kLong + "bias=hqk dbias dq=0 dk=0 dv=0"),
            "sm90: has no kernel for the gradient of a bias alone");
  EXPECT_EQ(reason(kLong + "bias=hqk softcap"),
            "sm90: has no backward with softcap and an f32 bias up to dim 128");
  EXPECT_EQ(reason(kLong + "mask=bq"), "sm90: takes no bias or mask that broadcasts keys");
  EXPECT_EQ(reason(kLong + "bias=hqk mask=qk dtype_bias=f32"),
            "sm90: needs 238848 bytes of shared memory, a block has 232448");
  const std::string wide = kLong + "dim_qk=192 dim_vo=192 ";
  EXPECT_EQ(reason(wide, Access::vector), "sm90: needs the access tma, the call's is vector");
  EXPECT_EQ(reason("dim_qk=256 dim_vo=256 len_q=196609 len_kv=64 kv_end"),
            "sm90: needs 232456 bytes of shared memory, a block has 232448");
  EXPECT_EQ(reason("len_q=0 len_kv=8"), "sm90: takes no sizes of 0");
}

TEST(CudaSm90Plan, WorkspaceIsTheSameForEveryAccess) {
  for (const std::string& problem : {kLong, kLong + "causal", kLong + "dim_qk=128 dim_vo=128"}) {
    const std::int64_t bytes = plan_of(problem).workspace_bytes;
    for (const Access access : {Access::element, Access::vector}) {
      EXPECT_EQ(plan_of(problem, access).workspace_bytes, bytes) << problem;
    }
  }
  EXPECT_EQ(plan_of(kLong).workspace_bytes, 256);
  EXPECT_EQ(plan_of(kLong + "dim_qk=128 dim_vo=128").workspace_bytes, 0) << "no counter";
}

// As in docs/kernels/sm90_forward.md, "Configs and resources".
TEST(CudaSm90Plan, ConfigsOfTheUsualShapes) {
  struct Expected {
    std::string problem;
    int tile_q;
    int tile_kv;
    unsigned threads;
    unsigned shared_bytes;
    std::int64_t blocks;
    int schedule;
  };
  const std::string d128 = "dim_qk=128 dim_vo=128 ";
  const std::string d256 = "dim_qk=256 dim_vo=256 ";
  const std::string kLonger = "batch=2 heads_q=16 heads_kv=16 len_q=4097 len_kv=4097 ";
  const Expected expected[] = {
      {kLong, 192, 128, 512, 173056, 132, sm90::kDynamic},
      {kLong + "causal", 192, 128, 512, 173056, 132, sm90::kDynamic},
      {kShort + "causal", 128, 64, 288, 99328, 128, sm90::kDynamic},
      {kShort + "heads_q=64 heads_kv=64 causal", 128, 64, 288, 99328, 264, sm90::kDynamic},
      {kLong + "causal window_left=383", 128, 64, 288, 99328, 264, sm90::kDynamic},
      {kLong + "causal window_left=384", 192, 128, 512, 173056, 132, sm90::kDynamic},
      {kLong + "window_left=300 window_right=99", 192, 128, 512, 173056, 132, sm90::kDynamic},
      {kLong + "kv_begin alibi", 128, 64, 288, 99328, 264, sm90::kDynamic},
      {kLong + d128, 128, 128, 384, 230400, 132, sm90::kStatic},
      {kLong + d128 + "causal", 128, 128, 384, 230400, 132, sm90::kPaired},
      {kLonger + d128 + "causal", 128, 128, 384, 230400, 132, sm90::kDynamic},
      {kShort + d128 + "causal", 128, 128, 384, 230400, 64, sm90::kPaired},
      {kLong + d256 + "causal", 128, 64, 384, 214016, 132, sm90::kPaired},
      {"len_q=24 len_kv=8 dim_qk=8 dim_vo=80", 128, 128, 384, 230400, 1, sm90::kStatic}};
  for (const Expected& e : expected) {
    const CudaPlan plan = plan_of(e.problem);
    ASSERT_STREQ(plan.family_name, "sm90") << e.problem << ": " << plan.refusals;
    const KernelSpec& spec = plan.kernels[plan.main];
    EXPECT_STREQ(spec.entry, sm90::kForwardEntry);
    EXPECT_EQ(spec.config.get("tile_q"), e.tile_q) << e.problem;
    EXPECT_EQ(spec.config.get("tile_kv"), e.tile_kv) << e.problem;
    EXPECT_EQ(spec.config.get("schedule"), e.schedule) << e.problem;
    EXPECT_EQ(spec.threads, e.threads) << e.problem;
    EXPECT_EQ(spec.shared_bytes, e.shared_bytes) << e.problem;
    EXPECT_EQ(plan.blocks[plan.main], e.blocks) << e.problem;
    const bool has_counter = e.schedule == sm90::kDynamic && e.blocks % 132 == 0;
    EXPECT_EQ(plan.num_kernels, has_counter ? 2u : 1u) << e.problem;
  }
}

TEST(CudaSm90Plan, ConstantsFollowTheProblem) {
  const auto get = [](const std::string& options, const char* name) {
    const CudaPlan plan = plan_of(kLong + options);
    EXPECT_STREQ(plan.family_name, "sm90") << options << ": " << plan.refusals;
    return plan.kernels[plan.main].config.get(name).value_or(-1);
  };
  EXPECT_EQ(get("", "left_bound"), 0);
  EXPECT_EQ(get("", "right_bound"), 0);
  EXPECT_EQ(get("causal", "right_bound"), 1);
  EXPECT_EQ(get("window_right=5", "right_bound"), 1);
  EXPECT_EQ(get("causal window_left=256", "left_bound"), 1);
  EXPECT_EQ(get("kv_end", "row_ranges"), 1);
  EXPECT_EQ(get("lengths_kv", "lengths"), sm90::kPadded);
  EXPECT_EQ(get("mask=qk", "mask"), 1);
  EXPECT_EQ(get("mask=qk", "tile_kv"), 128);
  EXPECT_EQ(get("mask=qk", "raw_stages"), 5);
  EXPECT_EQ(get("bias=hqk dtype_bias=f16", "raw_stages"), 0);
  EXPECT_EQ(get("bias=hqk dtype_bias=bf16", "bias_type"), static_cast<int>(DType::bf16));
  EXPECT_EQ(get("softcap", "softcap"), 1);
  EXPECT_EQ(get("alibi", "alibi"), 1);
  EXPECT_EQ(get("dropout", "dropout"), 1);
}

// Dims above 256: a block computes up to 256 columns of O.
TEST(CudaSm90Plan, ForwardsAboveDim256) {
  struct Expected {
    std::string options;
    int parts;
    int dim_qk;
    int columns;
    int stages;
    int o_columns;
    unsigned shared_bytes;
  };
  const Expected expected[] = {
      {"dim_qk=512 dim_vo=512", 2, 512, 256, 4, 256, 230400},
      {"dim_qk=512 dim_vo=512 causal lengths_kv softcap dropout alibi sink", 2, 512, 256, 4, 256,
       230400},
      {"dim_qk=264 dim_vo=264 kv_begin", 2, 320, 192, 8, 192, 218112},
      {"dim_qk=512 dim_vo=128", 1, 512, 128, 6, 128, 230400},
      {"dim_qk=64 dim_vo=512 window_left=9", 2, 64, 256, 8, 64, 164864}};
  for (const Expected& e : expected) {
    const CudaPlan plan = plan_of(kLong + e.options);
    ASSERT_STREQ(plan.family_name, "sm90") << e.options << ": " << plan.refusals;
    const KernelSpec& spec = plan.kernels[plan.main];
    EXPECT_STREQ(spec.entry, sm90::kForwardEntry);
    EXPECT_EQ(spec.config.get("value_parts"), e.parts) << e.options;
    EXPECT_EQ(spec.config.get("dim_qk"), e.dim_qk) << e.options;
    EXPECT_EQ(spec.config.get("dim_vo"), e.columns) << e.options;
    EXPECT_EQ(spec.config.get("stages"), e.stages) << e.options;
    EXPECT_EQ(spec.config.get("o_columns"), e.o_columns) << e.options;
    EXPECT_EQ(spec.config.get("pingpong"), 0) << e.options;
    EXPECT_EQ(spec.shared_bytes, e.shared_bytes) << e.options;
  }
  // A tile of 128 queries for each part.
  EXPECT_EQ(sm90::tile_counts(parse_problem("dtype=bf16 heads_q=2 heads_kv=1 len_q=300 len_kv=8 "
                                            "dim_qk=512 dim_vo=512"),
                              128, 1)
                .num_tiles,
            3 * 2 * 2);
}

// Every plan of the case list is one that the device can launch.
TEST(CudaSm90Plan, FitsTheDevice) {
  std::map<Pass, int> taken;
  for (const harness::Case& c : harness::case_list()) {
    const core::Result<CudaPlan> made =
        make_plan(c.pass, c.problem, h200(), Access::tma, FamilyChoice::sm90);
    if (!made.ok() || made.value().family != &sm90::family()) continue;
    const CudaPlan& plan = made.value();
    const KernelSpec& spec = plan.kernels[plan.main];
    EXPECT_LE(spec.shared_bytes, h200().shared_per_block) << to_string(c);
    const std::int64_t blocks = spec.config.get("blocks").value_or(1);
    EXPECT_LE(blocks * (spec.shared_bytes + 1024), h200().shared_per_sm) << to_string(c);
    EXPECT_GE(plan.blocks[plan.main], 1) << to_string(c);
    if (c.pass == Pass::forward) {
      EXPECT_LE(plan.blocks[plan.main], blocks * h200().num_sms) << to_string(c);
    }
    EXPECT_LE(spec.threads, 512u);
    ++taken[c.pass];
  }
  EXPECT_GE(taken[Pass::forward], 50);
  EXPECT_GE(taken[Pass::backward], 22);
  RecordProperty("forwards", taken[Pass::forward]);
  RecordProperty("backwards", taken[Pass::backward]);
}

}  // namespace
}  // namespace attn::cuda::test
