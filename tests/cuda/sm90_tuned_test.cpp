// Tiles of the Hopper forward that were measured: their texts, which fit, and that plans take them.
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/families/make_plan.hpp"
#include "cuda/families/sm90/family.hpp"
#include "cuda/families/sm90/forward_tuning.hpp"
#include "cuda/families/tuned.hpp"
#include "facts.hpp"

namespace attn::cuda::test {
namespace {

using namespace sm90;  // tiles and their choice

Problem problem_of(const std::string& words) {
  return parse_problem("dtype=bf16 batch=2 heads_q=2 heads_kv=2 len_q=4096 len_kv=4096 " + words);
}
const Problem kCausal = problem_of("dim_qk=128 dim_vo=128 causal");

CudaPlan plan_of(const Problem& problem, const DeviceFacts& facts) {
  return make_plan(Pass::forward, problem, facts, core::Access::tma, FamilyChoice::sm90).value();
}

TEST(CudaSm90Tuned, TilesAsText) {
  const Tiles tiles = choose_tiles(kCausal, h200());
  const std::string text =
      "tile_q=128 tile_kv=128 stages=2 q_stages=2 blocks=1 o_columns=128 producer_warp=0 "
      "raw_stages=0 schedule=1";
  EXPECT_EQ(to_string(tiles), text);
  EXPECT_EQ(to_string(parse_tiles(text).value()), text);
  EXPECT_EQ(parse_tiles("tile_q=128 tile_kv=128"), std::nullopt);
  EXPECT_EQ(parse_tiles(text + " more=1"), std::nullopt);
  EXPECT_EQ(tuning_key(kCausal),
            "sm90 forward dim=128 f8=0 left_bound=0 right_bound=1 row_ranges=0 lengths=0 softcap=0 "
            "alibi=0 dropout=0 bias_bytes=0 mask=0 keys=4096");
  EXPECT_NE(tuning_key(problem_of("dim_qk=96 dim_vo=64 causal len_kv=2049")).find("keys=4096"),
            std::string::npos);
}

TEST(CudaSm90Tuned, PlansTakeWhatWasMeasured) {
  DeviceFacts facts = h200();
  const CudaPlan table = plan_of(kCausal, facts);
  Tuned tuned("", facts.name);
  facts.tuned = &tuned;
  const std::string key = tuning_key(kCausal);
  tuned.use(key,
            "tile_q=128 tile_kv=64 stages=3 q_stages=2 blocks=1 o_columns=64 producer_warp=0 "
            "raw_stages=0 schedule=1");
  const CudaPlan plan = plan_of(kCausal, facts);
  EXPECT_EQ(plan.summary().tile_kv, 64);
  EXPECT_EQ(plan.num_kernels, 1u) << "paired tiles need no counter";
  Problem softcap = kCausal;
  softcap.softcap = true;
  EXPECT_EQ(plan_of(softcap, facts).summary().tile_kv, 128) << "of another key";
  // What does not fit is passed over.
  tuned.use(key,
            "tile_q=192 tile_kv=128 stages=4 q_stages=2 blocks=1 o_columns=128 producer_warp=0 "
            "raw_stages=0 schedule=2");
  EXPECT_EQ(plan_of(kCausal, facts).kernels[table.main], table.kernels[table.main]);
}

TEST(CudaSm90Tuned, MisfitsSayWhatIsAccepted) {
  const auto why = [](const std::string& text, const Problem& problem = kCausal) {
    return family().tune_misfit(Pass::forward, problem, text, h200());
  };
  const std::string rest = " o_columns=128 producer_warp=0 raw_stages=0 schedule=2";
  EXPECT_EQ(why("tile_q=128 tile_kv=128 stages=2 q_stages=2 blocks=1" + rest), "");
  EXPECT_EQ(why("tile_q=128"), "can't read the tiles");
  EXPECT_EQ(why("tile_q=96 tile_kv=128 stages=2 q_stages=2 blocks=1" + rest),
            "tile_q=96; accepted 64, 128, 192, 256");
  EXPECT_EQ(why("tile_q=128 tile_kv=128 stages=9 q_stages=2 blocks=1" + rest),
            "stages=9; accepted 2 to 4");
  EXPECT_EQ(why("tile_q=128 tile_kv=128 stages=2 q_stages=2 blocks=2" + rest),
            "producer_warp=0; accepted 1 with blocks=2 or 3, else 0");
  EXPECT_NE(why("tile_q=128 tile_kv=128 stages=4 q_stages=2 blocks=1" + rest).find("do not fit"),
            std::string::npos);
  EXPECT_EQ(why("tile_q=128 tile_kv=64 stages=2 q_stages=1 blocks=1" + rest,
                problem_of("dim_qk=128 dim_vo=128 mask=hqk")),
            "raw_stages=0; accepted 1 to 6");
  const Problem d512 = problem_of("dim_qk=512 dim_vo=512");
  const std::string wide = " q_stages=1 blocks=1 o_columns=256 producer_warp=0 raw_stages=0";
  EXPECT_EQ(why("tile_q=128 tile_kv=64 stages=8" + wide + " schedule=0", d512), "");
  EXPECT_EQ(why("tile_q=192 tile_kv=64 stages=8" + wide + " schedule=0", d512),
            "tile_q=192; accepted 128 above dim 256");
  EXPECT_EQ(why("tile_q=128 tile_kv=128 stages=2" + wide + " schedule=0", d512),
            "tile_kv=128; accepted 64, 80, 96");
  EXPECT_EQ(why("tile_q=128 tile_kv=64 stages=9" + wide + " schedule=0", d512),
            "stages=9; accepted 2 to 8");
  EXPECT_EQ(why("tile_q=128 tile_kv=96 stages=8" + wide + " schedule=0", d512),
            "needs 279552 bytes of shared memory");
  EXPECT_EQ(why("tile_q=128 tile_kv=64 stages=8" + wide + " schedule=1", d512),
            "schedule=1; accepted 2; 0 if rows are equal");
  EXPECT_EQ(family().tune_key(Pass::backward, kCausal), "");
}

// The heuristics' choice is among the candidates, and a plan with any of them is one of the model.
TEST(CudaSm90Tuned, CandidatesFitTheDevice) {
  for (const char* words :
       {"dim_qk=64 dim_vo=64", "dim_qk=64 dim_vo=64 causal len_q=1024 len_kv=1024",
        "dim_qk=128 dim_vo=128", "dim_qk=128 dim_vo=128 causal len_q=512 len_kv=512",
        "dim_qk=256 dim_vo=256 causal", "dim_qk=128 dim_vo=128 softcap window_left=256",
        "dim_qk=64 dim_vo=64 kv_begin", "dim_qk=64 dim_vo=64 mask=hqk",
        "dim_qk=128 dim_vo=128 bias=hqk dtype_bias=bf16", "dim_qk=512 dim_vo=512",
        "dim_qk=512 dim_vo=512 causal", "dim_qk=320 dim_vo=320 kv_end"}) {
    const Problem problem = problem_of(words);
    const std::vector<Tiles> list = candidate_tiles(problem, h200());
    EXPECT_GE(list.size(), 2u) << words;
    EXPECT_LE(list.size(), 60u) << words;
    for (const Tiles& tiles : list) EXPECT_EQ(misfit(problem, tiles, h200()), "") << words;
    const Tiles chosen = choose_tiles(problem, h200());
    EXPECT_EQ(misfit(problem, chosen, h200()), "") << words;
    // Columns of O and stages of Q and of the mask are the candidates' own choice.
    EXPECT_TRUE(std::any_of(list.begin(), list.end(),
                            [&](const Tiles& one) {
                              return one.tile_q == chosen.tile_q && one.tile_kv == chosen.tile_kv &&
                                     one.blocks == chosen.blocks && one.stages == chosen.stages &&
                                     one.schedule == chosen.schedule;
                            }))
        << words << ": " << to_string(chosen);
  }
}

}  // namespace
}  // namespace attn::cuda::test
