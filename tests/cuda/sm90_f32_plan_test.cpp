// Plans of f32 forwards on the family sm90.
#include <gtest/gtest.h>

#include <string>

#include "core/access.hpp"
#include "core/validate.hpp"
#include "cuda/families/make_plan.hpp"
#include "cuda/families/sm90/forward_tiles.hpp"
#include "cuda/families/sm90/forward_tuning.hpp"
#include "facts.hpp"
#include "harness/case.hpp"

namespace attn::cuda::test {
namespace {

using core::Access;

core::Result<CudaPlan> f32_plan_of(const std::string& problem, Access access = Access::tma,
                                   FamilyChoice choice = FamilyChoice::sm90) {
  const Problem parsed = parse_problem("dtype=f32 len_q=512 len_kv=512 " + problem);
  const core::Status status = core::validate_problem(Pass::forward, parsed);
  EXPECT_TRUE(status.ok()) << status.message;
  return make_plan(Pass::forward, parsed, h200(), access, choice);
}

// What sm90 refuses runs on sm80.
TEST(CudaSm90F32Plan, RefusesWithReasons) {
  const auto refusal = [](const std::string& problem, Access access = Access::tma) -> std::string {
    const core::Result<CudaPlan> plan = f32_plan_of(problem, access);
    EXPECT_TRUE(plan.ok()) << plan.reason();
    if (!plan.ok()) return plan.reason();
    EXPECT_STREQ(plan.value().family_name, "sm80") << problem;
    return plan.value().refusals;
  };
  EXPECT_EQ(refusal("precision=ieee"), "sm90: has no kernel for the precision ieee");
  EXPECT_EQ(refusal("dim_qk=132 dim_vo=64"), "sm90: has no kernel for f32 above dim 128");
  EXPECT_EQ(refusal("dim_qk=64 dim_vo=256"), "sm90: has no kernel for f32 above dim 128");
  EXPECT_EQ(refusal("bias=hqk"), "sm90: has no kernel for a bias or mask in f32");
  EXPECT_EQ(refusal("mask=qk"), "sm90: has no kernel for a bias or mask in f32");
  EXPECT_EQ(refusal("", Access::vector), "sm90: needs the access tma, the call's is vector");
  EXPECT_EQ(refusal("len_q=16"), "sm90: leaves up to 16 queries to the decode kernel");
}

TEST(CudaSm90F32Plan, TilesAndConstants) {
  struct Expected {
    std::string problem;
    int dim, slots;
    bool overlap;
    int parts = 3;
  };
  const Expected expected[] = {
      {"", 64, 7, true},
      {"causal", 64, 7, true},
      {"dim_qk=20 dim_vo=36 dropout alibi softcap", 64, 7, true},
      {"dim_qk=128 dim_vo=128", 128, 5, false},
      {"dim_qk=64 dim_vo=68 kv_begin window_left=9", 128, 5, false},
      {"nonfinite_zero lengths_q lengths_kv", 64, 7, true},
      {"precision=tf32 causal", 64, 8, true, 2},
      {"precision=tf32 dim_qk=128 dim_vo=128", 128, 8, false, 2},
  };
  for (const Expected& e : expected) {
    SCOPED_TRACE(e.problem);
    const core::Result<CudaPlan> planned = f32_plan_of(e.problem);
    ASSERT_TRUE(planned.ok()) << planned.reason();
    const CudaPlan& plan = planned.value();
    EXPECT_STREQ(plan.family_name, "sm90") << plan.refusals;
    const KernelSpec& main = plan.kernels[plan.main];
    const Config& config = main.config;
    EXPECT_EQ(config.get("dim_qk"), e.dim);
    EXPECT_EQ(config.get("dim_vo"), e.dim);
    EXPECT_EQ(config.get("tile_q"), 128);
    EXPECT_EQ(config.get("tile_kv"), 64);
    EXPECT_EQ(config.get("stages"), e.slots);
    EXPECT_EQ(config.get("overlap"), e.overlap ? 1 : 0);
    EXPECT_EQ(config.get("store_elements"), 1);
    EXPECT_EQ(main.threads, 384u);
    EXPECT_EQ(config.get("bf16_parts"), e.parts);
    // The parts of each element of Q and of the slots, and the barriers.
    const int bytes = 2 * e.parts;
    EXPECT_EQ(main.shared_bytes,
              static_cast<unsigned>(128 * e.dim * bytes + e.slots * 64 * 64 * bytes + 1024));
    EXPECT_LE(main.shared_bytes, h200().shared_per_block);
  }
}

// The tuner tries two and three warpgroups, and half of the keys.
TEST(CudaSm90F32Plan, CandidatesFitAndMisfitsAreNamed) {
  const auto problem = [](const std::string& text) {
    return parse_problem("dtype=f32 len_q=4096 len_kv=4096 " + text);
  };
  const Problem d64 = problem("causal");
  const Problem d128 = problem("causal dim_qk=128 dim_vo=128");
  EXPECT_EQ(sm90::candidate_tiles(d64, h200()).size(), 8u);
  EXPECT_EQ(sm90::candidate_tiles(d128, h200()).size(), 4u);
  for (const Problem& p : {d64, d128}) {
    for (const sm90::Tiles& tiles : sm90::candidate_tiles(p, h200())) {
      EXPECT_EQ(sm90::misfit(p, tiles, h200()), "") << sm90::to_string(tiles);
    }
  }
  const auto misfit = [](const Problem& p, const auto& change) {
    sm90::Tiles tiles = sm90::choose_tiles(p, h200());
    EXPECT_EQ(sm90::misfit(p, tiles, h200()), "");
    change(tiles);
    return sm90::misfit(p, tiles, h200());
  };
  EXPECT_EQ(misfit(d64, [](sm90::Tiles& t) { t.tile_q = 64; }), "tile_q=64; accepted 128, 192");
  EXPECT_EQ(misfit(d128, [](sm90::Tiles& t) { t.tile_q = 192; }),
            "tile_q=192; accepted 128 in f32 above dim 64");
  EXPECT_EQ(misfit(d64, [](sm90::Tiles& t) { t.tile_kv = 128; }),
            "tile_kv=128; accepted 32, 64 in f32");
  EXPECT_EQ(misfit(d64, [](sm90::Tiles& t) { t.stages = 1; }), "stages=1; accepted 2 to 8");
  EXPECT_EQ(misfit(d128, [](sm90::Tiles& t) { t.stages = 3; }), "stages=3; accepted 4 to 8");
  EXPECT_EQ(misfit(d128, [](sm90::Tiles& t) { t.stages = 6; }),
            "needs 246784 bytes of shared memory");
  EXPECT_EQ(misfit(d64, [](sm90::Tiles& t) { t.q_stages = 2; }), "q_stages=2; accepted 1 in f32");
  EXPECT_EQ(misfit(d64, [](sm90::Tiles& t) { t.blocks = 2; }),
            "blocks=2; accepted 1, and producer_warp=0, in f32");
  EXPECT_EQ(misfit(d64, [](sm90::Tiles& t) { t.o_columns = 128; }),
            "o_columns=128; accepted 64 in f32");
  EXPECT_EQ(misfit(d64, [](sm90::Tiles& t) { t.raw_stages = 1; }), "raw_stages=1; accepted 0");
  EXPECT_EQ(misfit(d64, [](sm90::Tiles& t) { t.schedule = 0; }),
            "schedule=0; accepted 2; 0 if rows are equal; 1 if plain causal");
}

// Two parts leave room for other tiles than three, so winners of one are not those of the other.
TEST(CudaSm90F32Plan, TwoPartsAreTunedApart) {
  const Problem three = parse_problem("dtype=f32 len_q=4096 len_kv=4096");
  const Problem two = parse_problem("dtype=f32 precision=tf32 len_q=4096 len_kv=4096");
  EXPECT_NE(sm90::tuning_key(three), sm90::tuning_key(two));
}

}  // namespace
}  // namespace attn::cuda::test
