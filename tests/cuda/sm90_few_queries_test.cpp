// Forwards of the family sm90 with few queries or few keys: heads of a group that share tiles of
// queries, and small tiles.
#include <gtest/gtest.h>

#include "core/validate.hpp"
#include "cuda/families/make_plan.hpp"
#include "cuda/families/sm90/forward_plan.hpp"
#include "cuda/families/sm90/forward_tiles.hpp"
#include "facts.hpp"

namespace attn::cuda::test {
namespace {

CudaPlan forward_of(const std::string& problem) {
  const Problem parsed = parse_problem("dtype=bf16 " + problem);
  const core::Status status = core::validate_problem(Pass::forward, parsed);
  EXPECT_TRUE(status.ok()) << status.message;
  core::Result<CudaPlan> plan = make_plan(Pass::forward, parsed, h200());
  EXPECT_TRUE(plan.ok()) << plan.reason();
  EXPECT_STREQ(plan.value().family_name, "sm90") << problem << ": " << plan.value().refusals;
  return std::move(plan).value();
}

std::int64_t constant_of(const std::string& problem, const char* name) {
  const CudaPlan plan = forward_of(problem);
  return plan.kernels[plan.main].config.get(name).value_or(-1);
}

// 64 query heads on 8 key heads in 64 sequences.
const std::string kGrouped = "batch=64 heads_q=64 heads_kv=8 len_kv=2048 ";
const std::string kOfDim128 = "dim_qk=128 dim_vo=128 ";

TEST(CudaSm90FewQueries, HeadsOfAGroupShareTiles) {
  struct Expected {
    std::string problem;
    int tile_q;
    int heads;
  };
  const Expected expected[] = {
      {kGrouped + kOfDim128 + "len_q=17", 128, 4},
      {kGrouped + kOfDim128 + "len_q=32", 128, 4},
      {kGrouped + kOfDim128 + "len_q=33", 128, 8},  // 48 rows instead of 64
      {kGrouped + kOfDim128 + "len_q=64 causal", 128, 2},
      {kGrouped + kOfDim128 + "len_q=96", 128, 4},
      {kGrouped + kOfDim128 + "len_q=128", 128, 1},
      {kGrouped + kOfDim128 + "len_q=160 lengths_q", 128, 4},
      {kGrouped + kOfDim128 + "len_q=1000", 128, 1},
      {kGrouped + "len_q=32", 128, 4},  // instead of tiles of 192 queries
      {kGrouped + "len_q=128", 192, 1},
      {kGrouped + "len_q=160", 192, 1},
      {kGrouped + "len_q=17 dim_qk=256 dim_vo=256", 128, 4},
      {kGrouped + kOfDim128 + "len_q=8 dropout", 128, 8},
      {kGrouped + kOfDim128 + "len_q=1 dtype=f8e4m3 dtype_out=bf16", 128, 8},
      {"batch=64 heads_q=48 heads_kv=8 len_kv=2048 len_q=64", 192, 3},
      {"batch=64 heads_q=24 heads_kv=8 len_kv=2048 len_q=32 " + kOfDim128, 128, 1}};
  for (const Expected& e : expected) {
    EXPECT_EQ(constant_of(e.problem, "tile_q"), e.tile_q) << e.problem;
    EXPECT_EQ(constant_of(e.problem, "tile_heads"), e.heads) << e.problem;
  }
}

TEST(CudaSm90FewQueries, TilesAreCountedPerHeadsThatShareThem) {
  const std::string problem = kGrouped + kOfDim128 + "len_q=160";
  const sm90::TileCounts counts = sm90::tile_counts(parse_problem("dtype=bf16 " + problem), 128, 4);
  EXPECT_EQ(counts.q_tiles, 5);
  EXPECT_EQ(counts.num_tiles, 64 * 16 * 5);
}

// Empty rows cost nothing where every tile has an SM of its own.
TEST(CudaSm90FewQueries, FewTilesHaveOneHead) {
  const std::string heads = "heads_q=66 heads_kv=33 len_q=32 len_kv=2048 ";
  EXPECT_EQ(constant_of("batch=2 " + heads + kOfDim128, "tile_heads"), 1);
  EXPECT_EQ(constant_of("batch=3 " + heads + kOfDim128, "tile_heads"), 2);
}

TEST(CudaSm90FewQueries, OptionsThatNeedTilesOfOneHead) {
  const std::string problem = kGrouped + kOfDim128 + "len_q=32 ";
  for (const char* option : {"mask=qk", "bias=hqk dtype_bias=bf16", "kv_begin"}) {
    EXPECT_EQ(constant_of(problem + option, "tile_heads"), 1) << option;
  }
  for (const char* option : {"softcap", "alibi", "sink", "lengths_kv", "window_left=100"}) {
    EXPECT_EQ(constant_of(problem + option, "tile_heads"), 4) << option;
  }
  EXPECT_EQ(constant_of("batch=256 heads_q=8 heads_kv=2 len_q=160 len_kv=160 causal " + kOfDim128,
                        "schedule"),
            sm90::kDynamic)
      << "pairs are of tiles of one head";
}

TEST(CudaSm90FewQueries, FewKeysHaveSmallTiles) {
  struct Expected {
    std::string problem;
    int tile_q;
    int blocks;
    int heads;
  };
  const std::string many = "batch=64 heads_q=16 heads_kv=16 ";
  const std::string groups = "batch=64 heads_q=16 heads_kv=4 ";
  const Expected expected[] = {
      {many + "len_q=64 len_kv=128", 64, 3, 1},
      {many + "len_q=65 len_kv=128", 128, 2, 1},
      {many + "len_q=64 len_kv=129", 192, 1, 1},
      {many + kOfDim128 + "len_q=64 len_kv=128 causal", 64, 2, 1},
      {many + kOfDim128 + "len_q=65 len_kv=128", 128, 1, 1},
      {groups + "len_q=32 len_kv=32", 64, 3, 2},
      {groups + kOfDim128 + "len_q=20 len_kv=32", 64, 2, 2},
      {"batch=8 heads_q=16 heads_kv=16 " + kOfDim128 + "len_q=64 len_kv=64", 128, 1, 1}};
  for (const Expected& e : expected) {
    EXPECT_EQ(constant_of(e.problem, "tile_q"), e.tile_q) << e.problem;
    EXPECT_EQ(constant_of(e.problem, "blocks"), e.blocks) << e.problem;
    EXPECT_EQ(constant_of(e.problem, "tile_heads"), e.heads) << e.problem;
  }
}

}  // namespace
}  // namespace attn::cuda::test
