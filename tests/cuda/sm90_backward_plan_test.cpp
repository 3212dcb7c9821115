// The family sm90: plans of backwards.
#include <gtest/gtest.h>

#include "cuda/families/sm90/backward_plan.hpp"
#include "cuda/families/sm90/bias_gradient_plan.hpp"
#include "cuda/families/sm90/family.hpp"
#include "cuda/kernels/sm90/backward_shared.cuh"
#include "sm90_plan.hpp"

namespace attn::cuda::test {
namespace {

using core::Access;

TEST(CudaSm90BackwardPlan, OrderOfBackwardBlocks) {
  struct Expected {
    std::string problem;
    int persistent;
    std::int64_t blocks;
    int heads_at_once;
    int heads_reversed = 0;
  };
  const std::string rows1024 = "dtype=bf16 batch=16 heads_q=16 heads_kv=16 len_q=1024 len_kv=1024 ";
  const std::string rows512 = "dtype=bf16 batch=32 heads_q=32 heads_kv=8 len_q=512 len_kv=512 ";
  const std::string rows4096 = "dtype=bf16 batch=4 heads_q=16 heads_kv=16 len_q=4096 len_kv=4096 ";
  const std::string dim128 = "dim_qk=128 dim_vo=128 ";
  constexpr int kEarly = device::sm90::kTakesEarly;
  constexpr int kLate = device::sm90::kTakesLate;
  const Expected expected[] = {
      {rows1024 + dim128, kLate, 132, 1},
      {rows1024, kEarly, 132, 1},
      {rows1024 + dim128 + "causal", kLate, 132, 25},
      {rows1024 + "causal", kEarly, 132, 25},
      {rows1024 + "causal deterministic", kLate, 132, 1, 16},
      {rows1024 + dim128 + "causal deterministic", kLate, 132, 1, 16},
      {rows1024 + "causal deterministic dq=0", kEarly, 132, 1},
      {rows1024 + "causal deterministic kv_end", 0, 8 * 256, 1},
      {rows1024 + "deterministic", kLate, 132, 16},
      {rows1024 + "deterministic dq=0", kEarly, 132, 16},
      {rows1024 + "deterministic softcap", 0, 8 * 256, 16},
      {rows1024 + "deterministic kv_end", 0, 8 * 256, 1},
      {rows1024 + "causal dropout", 0, 8 * 256, 25},
      {rows1024 + "accumulate", 0, 8 * 256, 1},
      {rows512 + dim128, kLate, 132, 1},
      {rows512 + dim128 + "causal", 0, 4 * 256, 50},
      {rows512 + dim128 + "causal deterministic", 0, 4 * 256, 1, 33},
      {rows4096 + "causal", 0, 32 * 64, 7},
      {rows4096 + "deterministic", kLate, 132, 4},
      {rows4096 + "causal window_left=1024", kEarly, 132, 1},
      {rows4096 + "causal window_left=1024 deterministic", kLate, 132, 1},
      {rows4096 + "causal window_left=1024 kv_end", 0, 32 * 64, 1},
      {rows4096 + "dim_qk=256 dim_vo=256 causal", 0, 52 * 64, 4},
      {rows4096 + "dim_qk=256 dim_vo=256 deterministic", 0, 52 * 64, 2},
      {rows1024 + "dim_qk=256 dim_vo=256 deterministic", 0, 13 * 256, 8},
      {rows4096 + "dim_qk=256 dim_vo=256 causal deterministic", 0, 52 * 64, 1, 2},
      {rows512 + "dim_qk=256 dim_vo=256 deterministic", 0, 7 * 256, 4},
      {"dtype=bf16 heads_q=2 heads_kv=2 len_q=1024 len_kv=1024 causal", 0, 16, 2},
      {"dtype=bf16 heads_q=2 heads_kv=2 len_q=1024 len_kv=1024 causal deterministic", 0, 16, 1, 2}};
  for (const Expected& e : expected) {
    const CudaPlan plan = plan_of(e.problem, Access::tma, FamilyChoice::sm90, Pass::backward);
    ASSERT_STREQ(plan.family_name, "sm90") << e.problem << ": " << plan.refusals;
    const KernelSpec& spec = plan.kernels[plan.main];
    EXPECT_EQ(spec.config.get("persistent").value_or(0), e.persistent) << e.problem;
    EXPECT_EQ(plan.blocks[plan.main], e.blocks) << e.problem;
    EXPECT_EQ(plan.workspace.kv_heads_at_once, e.heads_at_once) << e.problem;
    EXPECT_EQ(plan.workspace.kv_heads_reversed, e.heads_reversed) << e.problem;
    const Part& counter = plan.workspace.tile_counter;
    EXPECT_EQ(counter.bytes, e.persistent != 0 ? 4 : 0) << e.problem;
    const std::int64_t zeros = plan.workspace.zeros_offset();
    EXPECT_GE(counter.offset, zeros) << e.problem;
    EXPECT_LE(counter.offset + counter.bytes, zeros + plan.workspace.zeros_bytes()) << e.problem;
  }
}

TEST(CudaSm90BackwardPlan, BackwardsOfTheUsualShapes) {
  struct Expected {
    std::string problem;
    int dim;
    int tile_q;
    unsigned shared_bytes;
    std::int64_t blocks;
  };
  const std::string gqa = "batch=2 heads_q=16 heads_kv=4 len_q=512 len_kv=600 ";
  const Expected expected[] = {
      {kLong, 64, 128, 198912, 32 * 2 * 16},
      {kLong + "dim_qk=128 dim_vo=128 causal", 128, 64, 197888, 32 * 2 * 16},
      {kLong + "softcap causal", 64, 128, 198912, 32 * 2 * 16},
      {kLong + "softcap dropout", 128, 64, 197888, 32 * 2 * 16},
      {kLong + "softcap bias=hk", 128, 64, 197888 + 512, 32 * 2 * 16},
      {kLong + "softcap bias=hqk dtype_bias=f16", 128, 64, 197888 + 16384, 32 * 2 * 16},
      {kLong + "mask=qk", 64, 128, 198912 + 16384, 32 * 2 * 16},
      {kLong + "bias=hqk dtype_bias=bf16", 64, 128, 198912 + 32768, 32 * 2 * 16},
      {kLong + "bias=hqk dtype_bias=f32", 128, 64, 197888 + 32768, 32 * 2 * 16},
      {kLong + "bias=hqk dtype_bias=f16 mask=qk", 128, 64, 197888 + 24576, 32 * 2 * 16},
      {kLong + "mask=bk", 64, 128, 198912 + 128, 32 * 2 * 16},
      {kLong + "bias=hk mask=qk", 64, 128, 198912 + 1024 + 16384, 32 * 2 * 16},
      {kLong + "bias=hqk mask=bk dtype_bias=bf16", 64, 128, 198912 + 32768 + 128, 32 * 2 * 16},
      {gqa + "dim_qk=40 dim_vo=64", 64, 128, 198912, 5 * 2 * 4},
      {gqa + "dim_qk=64 dim_vo=72", 128, 64, 197888, 5 * 2 * 4}};
  for (const Expected& e : expected) {
    const CudaPlan plan = plan_of(e.problem, Access::tma, FamilyChoice::sm90, Pass::backward);
    ASSERT_STREQ(plan.family_name, "sm90") << e.problem << ": " << plan.refusals;
    ASSERT_EQ(plan.num_kernels, 3u);
    const KernelSpec& spec = plan.kernels[plan.main];
    EXPECT_STREQ(spec.entry, sm90::kBackwardEntry);
    EXPECT_EQ(spec.config.get("dim"), e.dim) << e.problem;
    EXPECT_EQ(spec.config.get("tile_q"), e.tile_q) << e.problem;
    EXPECT_EQ(plan.kernels[0].config.get("tile_q"), e.tile_q) << e.problem;
    EXPECT_EQ(plan.workspace.dim, e.dim) << e.problem;
    EXPECT_EQ(spec.threads, 384u) << e.problem;
    EXPECT_EQ(spec.shared_bytes, e.shared_bytes) << e.problem;
    EXPECT_EQ(plan.blocks[plan.main], e.blocks) << e.problem;
  }
  for (const char* options : {"accumulate", "nonfinite_zero", "dtype_grad=f32"}) {
    const CudaPlan plan = plan_of(kLong + options, Access::tma, FamilyChoice::sm90, Pass::backward);
    ASSERT_STREQ(plan.family_name, "sm90") << options << ": " << plan.refusals;
    EXPECT_EQ(plan.kernels[plan.main].config.get("store_elements"), 1) << options;
  }
  const CudaPlan ranges =
      plan_of(kLong + "kv_begin", Access::tma, FamilyChoice::sm90, Pass::backward);
  ASSERT_STREQ(ranges.family_name, "sm90") << ranges.refusals;
  EXPECT_EQ(ranges.kernels[ranges.main].shared_bytes, 198912u + 2 * 128 * 8 + 12);
  EXPECT_GT(plan_of(kLong + "deterministic", Access::tma, FamilyChoice::sm90, Pass::backward)
                .workspace.dq_semaphore.bytes,
            0);
  EXPECT_EQ(
      plan_of(kLong + "sink dsink", Access::tma, FamilyChoice::sm90, Pass::backward).num_kernels,
      4u);
  Problem only_keys = parse_problem("dtype=bf16 len_q=64 len_kv=64");
  only_keys.dq = false;
  const CudaPlan no_dq =
      make_plan(Pass::backward, only_keys, h200(), Access::tma, FamilyChoice::sm90).value();
  EXPECT_EQ(no_dq.num_kernels, 2u) << "no sums to convert";
  EXPECT_EQ(no_dq.workspace.dq_accum.bytes, 0);
}

TEST(CudaSm90BackwardPlan, BackwardsAboveDim128) {
  struct Expected {
    std::string problem;
    int dim;
    int tile_kv;
    unsigned shared_bytes;
    std::int64_t blocks;
  };
  const Expected expected[] = {
      {kLong + "dim_qk=256 dim_vo=256", 256, 80, 231680, 52 * 2 * 16},
      {kLong + "dim_qk=200 dim_vo=64 causal window_left=9", 256, 80, 231680, 52 * 2 * 16},
      {kLong + "dim_qk=192 dim_vo=128 deterministic", 192, 96, 205056, 43 * 2 * 16},
      {kShort + "dim_qk=136 dim_vo=136", 192, 96, 209152, 6 * 2 * 16},
      {kLong + "dim_qk=256 dim_vo=256 lengths_kv alibi", 256, 80, 231680, 52 * 2 * 16},
      {kLong + "dim_qk=256 dim_vo=256 kv_end", 256, 80, 231680 + 16, 52 * 2 * 16},
      {kLong + "dim_qk=256 dim_vo=256 softcap", 256, 64, 205056, 64 * 2 * 16},
      {kLong + "dim_qk=192 dim_vo=192 dropout", 192, 80, 211200, 52 * 2 * 16},
      {kLong + "dim_qk=192 dim_vo=128 softcap dropout", 192, 96, 205056, 43 * 2 * 16},
      {kLong + "dim_qk=256 dim_vo=256 bias=hqk mask=qk softcap", 256, 64, 205056 + 20480,
       64 * 2 * 16},
      {kLong + "dim_qk=192 dim_vo=128 bias=hqk mask=qk", 192, 64, 184576, 64 * 2 * 16},
      {kLong + "dim_qk=256 dim_vo=256 bias=hk mask=bk kv_end", 256, 80, 231680 + 512 + 16,
       52 * 2 * 16}};
  for (const Expected& e : expected) {
    const CudaPlan plan = plan_of(e.problem, Access::tma, FamilyChoice::sm90, Pass::backward);
    ASSERT_STREQ(plan.family_name, "sm90") << e.problem << ": " << plan.refusals;
    ASSERT_EQ(plan.num_kernels, 3u);
    const KernelSpec& spec = plan.kernels[plan.main];
    EXPECT_STREQ(spec.config.source(), "sm90/backward_wide.cu");
    EXPECT_STREQ(spec.entry, sm90::kBackwardEntry);
    EXPECT_EQ(spec.config.get("dim"), e.dim) << e.problem;
    EXPECT_EQ(spec.config.get("tile_kv"), e.tile_kv) << e.problem;
    EXPECT_EQ(plan.kernels[0].config.get("tile_q"), 64) << e.problem;
    EXPECT_EQ(plan.workspace.dim, e.dim) << e.problem;
    EXPECT_EQ(spec.threads, 384u) << e.problem;
    EXPECT_EQ(spec.shared_bytes, e.shared_bytes) << e.problem;
    EXPECT_EQ(plan.blocks[plan.main], e.blocks) << e.problem;
  }
}

// Clusters of two blocks: a block has half of the columns.
TEST(CudaSm90BackwardPlan, BackwardsAboveDim256) {
  struct Expected {
    std::string problem;
    int dim;
    int dim_vo;
    unsigned shared_bytes;
  };
  const Expected expected[] = {
      {"dim_qk=512 dim_vo=512", 256, 256, 221696},
      {"dim_qk=264 dim_vo=64 causal", 192, 128, 180736},
      {"dim_qk=320 dim_vo=384 dropout", 192, 192, 205312},
      {"dim_qk=64 dim_vo=400 kv_end", 256, 256, 221696 + 16},
      {"dim_qk=512 dim_vo=512 deterministic bias=hqk dtype_bias=bf16", 256, 256, 221696 + 8192},
  };
  for (const Expected& e : expected) {
    const CudaPlan plan =
        plan_of(kLong + e.problem, Access::tma, FamilyChoice::sm90, Pass::backward);
    ASSERT_STREQ(plan.family_name, "sm90") << e.problem << ": " << plan.refusals;
    const KernelSpec& spec = plan.kernels[plan.main];
    EXPECT_STREQ(spec.config.source(), "sm90/backward_wide.cu");
    EXPECT_EQ(spec.cluster, 2u) << e.problem;
    EXPECT_EQ(spec.config.get("cluster"), 2) << e.problem;
    EXPECT_EQ(spec.config.get("dim"), e.dim) << e.problem;
    EXPECT_EQ(spec.config.get("dim_vo"), e.dim_vo) << e.problem;
    EXPECT_EQ(spec.config.get("tile_kv"), 64) << e.problem;
    EXPECT_EQ(plan.workspace.dim, 2 * e.dim) << e.problem;
    EXPECT_EQ(spec.shared_bytes, e.shared_bytes) << e.problem;
    EXPECT_EQ(plan.blocks[plan.main], 2 * 64 * 2 * 16) << e.problem;
  }
  const std::string ordered = "dim_qk=512 dim_vo=512 deterministic";
  EXPECT_EQ(plan_of(kLong + ordered, Access::tma, FamilyChoice::sm90, Pass::backward)
                .workspace.dq_semaphore.bytes,
            64 * 2 * 16 * 4 * 4)
      << "a semaphore for each warpgroup of both blocks";
  for (const char* options : {"bias=hqk dtype_bias=f32", "bias=hqk dtype_bias=bf16 mask=qk"}) {
    const CudaPlan plan = plan_of(kLong + "dim_qk=512 dim_vo=512 " + options, Access::tma,
                                  FamilyChoice::automatic, Pass::backward);
    EXPECT_STREQ(plan.family_name, "sm80") << "shared memory: " << options;
  }
}

TEST(CudaSm90BackwardPlan, SummariesOfBackwardsNameTheTiles) {
  const auto tiles = [](const std::string& dims) {
    const PlanSummary plan =
        plan_of(kLong + dims, Access::tma, FamilyChoice::automatic, Pass::backward).summary();
    EXPECT_EQ(plan.family, "sm90");
    return std::pair(plan.tile_q, plan.tile_kv);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(tiles("dim_qk=64 dim_vo=64"), Pair(128, 128));
  EXPECT_EQ(tiles("dim_qk=128 dim_vo=128"), Pair(64, 128));
  EXPECT_EQ(tiles("dim_qk=192 dim_vo=128"), Pair(64, 96));
  EXPECT_EQ(tiles("dim_qk=256 dim_vo=256"), Pair(64, 80));
  EXPECT_EQ(tiles("dim_qk=512 dim_vo=512"), Pair(64, 64));
}

TEST(CudaSm90BackwardPlan, BackwardsWithOptions) {
  const auto backward = [](const std::string& problem) {
    CudaPlan plan = plan_of(problem, Access::tma, FamilyChoice::sm90, Pass::backward);
    EXPECT_STREQ(plan.family_name, "sm90") << problem << ": " << plan.refusals;
    return plan;
  };
  const auto constants = [&](const std::string& options) {
    const CudaPlan plan = backward(kLong + options);
    const Config& config = plan.kernels[plan.main].config;
    return std::pair(config.get("lengths"), config.get("row_ranges"));
  };
  EXPECT_EQ(constants("causal"),
            std::pair(std::optional<std::int64_t>(0), std::optional<std::int64_t>(0)));
  for (const char* option : {"softcap", "alibi", "dropout"}) {
    const CudaPlan plan = backward(kLong + option);
    EXPECT_EQ(plan.kernels[plan.main].config.get(option), 1);
  }
  const CudaPlan scores = backward(kLong + "bias=hqk dtype_bias=f16 mask=qk");
  const Config& constants_of_scores = scores.kernels[scores.main].config;
  EXPECT_EQ(constants_of_scores.get("bias_type"), static_cast<int>(DType::f16));
  EXPECT_EQ(constants_of_scores.get("mask"), 1);
  EXPECT_EQ(constants("lengths_q").first, 1);
  EXPECT_EQ(constants("kv_end").second, 1);
  const CudaPlan packed = backward(
      "batch=2 heads_q=4 heads_kv=4 layout_q=packed layout_kv=packed total_q=600 "
      "total_kv=700 len_q=400 len_kv=400");
  EXPECT_EQ(packed.kernels[packed.main].config.get("lengths"), 1);
  ASSERT_EQ(packed.num_kernels, 4u);
  EXPECT_STREQ(packed.kernels[1].entry, "attn_uncovered_gradients");
  EXPECT_EQ(packed.blocks[packed.main], 4 * 2 * 4);
  EXPECT_EQ(packed.blocks[3], 10 * 4) << "rows of the packed tensor";
}

// Tiles of queries that see one tile of keys alone: the main kernel writes dq, and the postprocess
// skips them.
TEST(CudaSm90BackwardPlan, DqOfTilesOfOneVisitor) {
  struct Expected {
    std::string options;
    int tile_q;  // 0: not done
    bool first_stores;
  };
  const std::string dim128 = "dim_qk=128 dim_vo=128 ";
  const Expected expected[] = {
      {"kv_begin", 128, true},
      {"kv_begin kv_end causal window_left=300", 128, true},
      {"kv_end deterministic", 128, true},
      {"kv_end heads_kv=4 dropout", 128, true},
      {"kv_end bias=hqk dtype_bias=f32", 64, true},
      // At dim 128 the first block stores up to 1024 keys.
      {dim128 + "kv_begin", 64, false},
      {dim128 + "kv_begin len_q=1024 len_kv=1024", 64, true},
      {dim128 + "kv_begin deterministic", 64, true},
      {"causal", 0, true},
      {"kv_begin lengths_q", 0, false},
      {"kv_begin lengths_kv", 0, false},
      {"kv_begin mask=qk", 128, true},
      {"kv_begin mask=bk", 0, false},
      {"kv_begin dropout alibi", 0, false},
      {"kv_begin softcap", 128, true},
      {"kv_begin softcap alibi", 0, false},
      {"kv_begin accumulate", 0, false},
      {"kv_begin nonfinite_zero", 0, false},
      {"kv_begin dtype_grad=f32", 0, false},
      {"dim_qk=256 dim_vo=256 kv_begin", 0, false},
  };
  for (const Expected& e : expected) {
    const CudaPlan plan =
        plan_of(kLong + e.options, Access::tma, FamilyChoice::sm90, Pass::backward);
    ASSERT_STREQ(plan.family_name, "sm90") << e.options << ": " << plan.refusals;
    const Config& main = plan.kernels[plan.main].config;
    EXPECT_EQ(main.get("writes_sole_dq"), e.tile_q != 0) << e.options;
    const KernelSpec& last = plan.kernels[plan.num_kernels - 1];
    ASSERT_STREQ(last.entry, "attn_backward_postprocess") << e.options;
    EXPECT_EQ(last.config.get("sole_tile_q"), e.tile_q) << e.options;
    EXPECT_EQ(last.config.get("sole_tile_kv"), e.tile_q != 0 ? 128 : 0) << e.options;
    EXPECT_EQ(plan.workspace.dq_first_stores, e.first_stores) << e.options;
    EXPECT_EQ(plan.workspace.dq_semaphore.bytes > 0, e.first_stores) << e.options;
  }
  const CudaPlan keys =
      plan_of(kLong + "kv_begin dq=0", Access::tma, FamilyChoice::sm90, Pass::backward);
  EXPECT_EQ(keys.kernels[keys.main].config.get("writes_sole_dq"), 0);
}

// The main kernel stores tiles of dS, adds them to f32 sums, or leaves dbias to another kernel.
TEST(CudaSm90BackwardPlan, GradientsOfABias) {
  struct Expected {
    std::string options;
    int dbias;
    std::vector<std::string> last;  // kernels after the main one
  };
  const std::string post = "attn_backward_postprocess";
  const std::string apart = sm90::kBiasGradientEntry;
  const std::string apart_sm80 = "attn_bias_gradient";
  const std::string sum = "attn_bias_gradient_sum";
  const std::string convert = "attn_bias_gradient_convert";
  const std::string kPair = "bias=hqk heads_q=4 heads_kv=4 len_q=512 len_kv=512 ";
  const Expected expected[] = {
      {"bias=bhqk dtype_bias=bf16", 1, {post}},
      {"bias=bhqk dtype_bias=bf16 deterministic", 1, {post}},
      {"bias=bhqk dtype_bias=f16", 0, {post, apart}},
      {"bias=bhqk dtype_bias=bf16 dtype_dbias=f32 deterministic", 0, {post, apart_sm80}},
      {"bias=bhqk dtype_bias=bf16 accumulate", 0, {post, apart_sm80}},
      {"bias=bhqk dtype_bias=bf16 nonfinite_zero", 0, {post, apart_sm80}},
      {"bias=hqk dtype_bias=bf16", 0, {post, apart}},
      {"bias=qk dtype_bias=f32", 0, {post, apart}},
      {"bias=hqk dtype_bias=bf16 deterministic", 0, {post, apart}},
      {"bias=bhk dtype_bias=bf16", 0, {post, apart_sm80}},
      {"bias=bhqk dtype_bias=bf16 softcap", 0, {post, apart_sm80}},
      {"bias=bhqk dtype_bias=bf16 dim_qk=256 dim_vo=256", 0, {post, apart_sm80}},
      // A pair bias: 8 sequences and more share 4 MiB of sums. The main kernel adds to them where
      // sm90/bias_gradient.cu refuses the options.
      {kPair + "batch=8", 0, {post, apart, sum}},
      {kPair + "batch=8 lengths_kv", 2, {post, convert}},
      {kPair + "batch=128 len_q=128 len_kv=128 dtype_bias=bf16", 2, {post, convert}},
      {kPair + "batch=256 len_q=256 len_kv=256 dtype_bias=bf16", 0, {post, apart, sum}},
      {kPair + "batch=8 mask=bqk dtype_bias=bf16", 2, {post, convert}},
      {kPair + "batch=8 dtype_bias=bf16 accumulate", 2, {post, convert}},
      {kPair + "batch=512 bias=b/128hqk", 0, {post, apart}},
      {kPair + "batch=512 bias=b/128hqk lengths_kv", 2, {post, convert}},
      {kPair + "batch=7", 0, {post, apart, sum}},
      {kPair + "batch=8 deterministic", 0, {post, apart, sum}},
      {kPair + "batch=8 dtype_bias=bf16 softcap", 0, {post, apart_sm80, sum}},
      {kPair + "batch=8 dim_qk=128 dim_vo=128", 0, {post, apart, sum}},
      {kPair + "batch=8 len_q=1536 len_kv=1536", 0, {post, apart}},
      // Options of the scores, lengths and key ranges.
      {"bias=hqk causal window_left=99 dlse sink", 0, {post, apart}},
      {"bias=b/2hqk dtype_bias=f16", 0, {post, apart}},
      {"bias=hqk dim_qk=40 dim_vo=128", 0, {post, apart}},
      {"bias=hqk alibi", 0, {post, apart_sm80}},
      {"bias=hqk dropout", 0, {post, apart_sm80}},
      {"bias=hqk mask=bk", 0, {post, apart}},
      {"bias=hqk mask=b/2k", 0, {post, apart}},
      {"bias=hqk dtype_bias=bf16 mask=bqk", 0, {post, apart_sm80}},
      {"bias=hqk lengths_kv", 0, {post, apart_sm80}},
      {"bias=hqk kv_end", 0, {post, apart_sm80}},
      {"bias=qk deterministic batch=1 heads_q=1 heads_kv=1", 0, {post, apart}},
      {"bias=qk deterministic len_q=128 len_kv=128", 0, {post, apart, sum}},
  };
  for (const Expected& e : expected) {
    const CudaPlan plan =
        plan_of(kLong + "dbias " + e.options, Access::tma, FamilyChoice::sm90, Pass::backward);
    ASSERT_STREQ(plan.family_name, "sm90") << e.options << ": " << plan.refusals;
    EXPECT_EQ(plan.kernels[plan.main].config.get("dbias").value_or(0), e.dbias) << e.options;
    std::vector<std::string> last;
    for (std::size_t i = plan.main + 1; i < plan.num_kernels; ++i) {
      last.emplace_back(plan.kernels[i].entry);
    }
    EXPECT_EQ(last, e.last) << e.options;
    EXPECT_EQ(plan.workspace.dbias_accum.bytes > 0, e.dbias == 2) << e.options;
  }
}

// sm90/bias_gradient.cu: tiles of 128 x 128, one block each, or several splits of their sums.
TEST(CudaSm90BackwardPlan, TilesOfTheGradientOfABias) {
  struct Expected {
    std::string options;
    std::int64_t blocks;
    int splits;
    unsigned shared_bytes;
    std::int64_t box_q;  // of the main kernel's tensor maps
  };
  constexpr unsigned kTile = 128 * 64 * 2;  // bytes of a tile of Q, K, V or dO, 64 columns
  constexpr unsigned kBias = 128 * 128 * 2;
  constexpr unsigned kRows = 128 * 8 + 16;  // lse, delta; bits of a mask
  constexpr unsigned kBarriers = 256;
  const std::string kPair = "heads_q=4 heads_kv=4 len_q=512 len_kv=512 ";
  const Expected expected[] = {
      {"bias=hqk dtype_bias=bf16", 1024 * 16, 1, 8 * kTile + kBias + 2 * kRows + kBarriers, 128},
      {"bias=qk dtype_bias=bf16", 1024, 1, 8 * kTile + kBias + 2 * kRows + kBarriers, 128},
      {"bias=hqk", 1024 * 16, 1, 8 * kTile + 2 * kBias + 2 * kRows + kBarriers, 64},
      {"bias=hqk dtype_bias=bf16 dim_qk=128 dim_vo=128", 1024 * 16, 1,
       8 * kTile + 4 * kTile + kBias + kRows + kBarriers, 64},
      {"bias=hqk dim_qk=128 dim_vo=128", 1024 * 16, 1,
       4 * kTile + 4 * kTile + 2 * kBias + kRows + kBarriers, 64},
      {"bias=hqk dtype_bias=bf16 dim_qk=96 dim_vo=64", 1024 * 16, 1,
       8 * kTile + 4 * kTile + kBias + 2 * kRows + kBarriers, 64},
      {"bias=b/2hqk dtype_bias=bf16 len_q=300 len_kv=520 batch=6", 15 * 3 * 16, 1,
       8 * kTile + kBias + 2 * kRows + kBarriers, 128},
      // 64 tiles on 132 multiprocessors. Two splits use 128 of them.
      {kPair + "bias=hqk dtype_bias=bf16 deterministic batch=16", 64 * 2, 2,
       8 * kTile + kBias + 2 * kRows + kBarriers, 128},
      {kPair + "bias=hqk dtype_bias=bf16 deterministic batch=4", 64, 1,
       8 * kTile + kBias + 2 * kRows + kBarriers, 128},
  };
  for (const Expected& e : expected) {
    const CudaPlan plan =
        plan_of(kLong + "dbias " + e.options, Access::tma, FamilyChoice::sm90, Pass::backward);
    ASSERT_STREQ(plan.family_name, "sm90") << e.options << ": " << plan.refusals;
    const std::size_t at = plan.num_kernels - (e.splits > 1 ? 2 : 1);
    const KernelSpec& spec = plan.kernels[at];
    ASSERT_STREQ(spec.entry, sm90::kBiasGradientEntry) << e.options;
    EXPECT_EQ(spec.threads, 384u) << e.options;
    EXPECT_EQ(plan.blocks[at], e.blocks) << e.options;
    EXPECT_EQ(plan.workspace.splits, e.splits) << e.options;
    EXPECT_EQ(spec.config.get("partials"), e.splits > 1) << e.options;
    EXPECT_EQ(plan.workspace.partials.bytes > 0, e.splits > 1) << e.options;
    EXPECT_EQ(spec.shared_bytes, e.shared_bytes) << e.options;
    EXPECT_EQ(spec.config.get("box_q"), e.box_q) << e.options;
    EXPECT_EQ(plan.kernels[plan.main].config.get("tile_q"), e.box_q) << e.options;
  }
}

}  // namespace
}  // namespace attn::cuda::test
