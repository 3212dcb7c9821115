// Plans of sm90/backward_head.cu.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/families/make_plan.hpp"
#include "cuda/families/sm90/backward_plan.hpp"
#include "facts.hpp"
#include "harness/case.hpp"

namespace attn::cuda::test {
namespace {

// Blocks own heads where one launch with dq in shared memory computes all gradients of a head.
TEST(CudaSm90HeadPlan, BackwardsOfShortRows) {
  const std::string heads = "dtype=bf16 batch=32 heads_q=32 heads_kv=32 ";
  const auto plan = [](const std::string& problem) {
    CudaPlan made = make_plan(Pass::backward, parse_problem(problem), h200(), core::Access::tma,
                              FamilyChoice::sm90)
                        .value();
    EXPECT_STREQ(made.family_name, "sm90") << problem << ": " << made.refusals;
    return made;
  };
  const std::string rows = heads + "len_q=512 len_kv=512 ";
  for (const std::string& problem :
       {rows, rows + "causal", rows + "causal deterministic", rows + "window_left=60",
        rows + "sink", rows + "dropout", rows + "softcap alibi", rows + "delta",
        heads + "len_q=1 len_kv=512 causal", heads + "len_q=130 len_kv=200 dim_qk=24 dim_vo=40"}) {
    const CudaPlan made = plan(problem);
    EXPECT_EQ(made.num_kernels, 1u) << problem;
    EXPECT_EQ(made.workspace.bytes, 0) << problem << ": other accesses may need more";
    const KernelSpec& spec = made.kernels[made.main];
    EXPECT_STREQ(spec.config.source(), "sm90/backward_head.cu") << problem;
    EXPECT_STREQ(spec.entry, sm90::kBackwardEntry);
    EXPECT_EQ(spec.config.get("tile_q"), 64);
    EXPECT_EQ(spec.threads, 384u);
    EXPECT_EQ(spec.shared_bytes, 225536u);
    EXPECT_EQ(made.blocks[made.main], 132) << problem;
  }
  EXPECT_EQ(plan("dtype=f16 heads_q=100 heads_kv=100 len_q=64 len_kv=64").blocks[0], 100);
  for (const std::string& problem :
       {heads + "len_q=513 len_kv=512", heads + "len_q=512 len_kv=513", rows + "dim_qk=72",
        rows + "dim_vo=128", rows + "lengths_q", rows + "kv_begin", rows + "mask=qk",
        rows + "bias=hqk", rows + "sink dsink", rows + "accumulate",
        heads + "len_q=512 len_kv=500 causal",
        std::string("dtype=bf16 batch=32 heads_q=32 heads_kv=8 len_q=512 len_kv=512"),
        std::string("dtype=bf16 heads_q=90 heads_kv=90 len_q=512 len_kv=512"),
        std::string("dtype=bf16 heads_q=140 heads_kv=140 len_q=512 len_kv=512")}) {
    const CudaPlan made = plan(problem);
    EXPECT_STREQ(made.kernels[made.main].config.source(), "sm90/backward.cu") << problem;
  }
  Problem only_keys = parse_problem(rows);
  only_keys.dq = false;
  EXPECT_EQ(make_plan(Pass::backward, only_keys, h200(), core::Access::tma, FamilyChoice::sm90)
                .value()
                .num_kernels,
            2u);
}

// So that `attn check` runs the kernel on a GPU.
TEST(CudaSm90HeadPlan, TheCaseListHasShortRows) {
  harness::Filter filter;
  filter.pass = Pass::backward;
  filter.name = "short_rows";
  const std::vector<harness::Case> list = harness::case_list(filter);
  EXPECT_EQ(list.size(), 6u);
  for (const harness::Case& c : list) {
    const CudaPlan made =
        make_plan(Pass::backward, c.problem, h200(), core::Access::tma, FamilyChoice::sm90).value();
    EXPECT_STREQ(made.kernels[made.main].config.source(), "sm90/backward_head.cu")
        << to_string(c.problem);
  }
}

}  // namespace
}  // namespace attn::cuda::test
