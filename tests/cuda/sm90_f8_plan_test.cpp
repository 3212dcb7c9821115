// Plans of calls with f8 queries. The family sm90 alone has kernels for them; other calls run on a
// 16-bit copy of q.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/access.hpp"
#include "core/validate.hpp"
#include "cuda/families/make_plan.hpp"
#include "facts.hpp"
#include "harness/case.hpp"

namespace attn::cuda::test {
namespace {

using core::Access;

core::Result<CudaPlan> f8_plan_of(const std::string& problem, Access access = Access::tma,
                                  Pass pass = Pass::forward) {
  const Problem parsed = parse_problem(problem);
  const core::Status status = core::validate_problem(pass, parsed);
  EXPECT_TRUE(status.ok()) << status.message;
  return make_plan(pass, parsed, h200(), access, FamilyChoice::sm90);
}

TEST(CudaSm90F8Plan, LeavesOtherCallsToSm80) {
  const auto refusal = [](const std::string& problem, Access access = Access::tma,
                          Pass pass = Pass::forward) {
    const core::Result<CudaPlan> planned =
        f8_plan_of("dtype=f8e4m3 len_q=64 len_kv=64 " + problem, access, pass);
    EXPECT_TRUE(planned.ok()) << planned.reason();
    if (!planned.ok()) return std::string();
    EXPECT_EQ(planned.value().runs_on_copies, !planned.value().refusals.empty());
    return planned.value().refusals;
  };
  EXPECT_EQ(refusal("", Access::vector), "sm90: needs the access tma, the call's is vector");
  EXPECT_EQ(refusal("dim_qk=40 dim_vo=40"), "sm90: needs the access tma, the call's is element");
  EXPECT_EQ(refusal("dropout"), "sm90: has no kernel for dropout with f8 types");
  EXPECT_EQ(refusal("", Access::tma, Pass::decode), "sm90: has no kernel for the decode");
  EXPECT_EQ(refusal("bias=hk"), "sm90: takes no bias or mask that broadcasts queries or keys");
  EXPECT_EQ(refusal("bias=hqk dim_qk=256 dim_vo=256"),
            "sm90: has no shared memory for a bias above dim 128");
  EXPECT_EQ(refusal("dim_qk=512 dim_vo=512"), "sm90: has no kernel for f8 types above dim 256");
  EXPECT_EQ(refusal("page_size=16"), "sm90: has no kernel for paged caches");
  EXPECT_EQ(refusal("descale_rows"), "sm90: has no kernel with a factor for each row of k and v");
  EXPECT_EQ(refusal("len_q=1"), "") << "no decode kernel takes few queries";
}

TEST(CudaSm90F8Plan, CopiesOfQueries) {
  const auto plan_of = [](const std::string& problem, FamilyChoice choice = FamilyChoice::sm80) {
    const Problem parsed = parse_problem("dtype=f8e5m2 len_q=64 len_kv=64 " + problem);
    return make_plan(Pass::forward, parsed, h200(), Access::tma, choice).value();
  };
  const auto type_of = [](const CudaPlan& plan, const char* name) {
    return plan.kernels[plan.main].config.get(name);
  };
  for (const DType out : {DType::bf16, DType::f16, DType::f32}) {
    const CudaPlan plan = plan_of(std::string("dtype_kv=f8e4m3 dtype_out=") + to_string(out));
    EXPECT_EQ(plan.summary().kernels, (std::vector<std::string>{"attn_rope", "attn_decode"}));
    const DType type = out == DType::f16 ? DType::f16 : DType::bf16;
    EXPECT_EQ(type_of(plan, "dtype"), static_cast<int>(type)) << to_string(out);
    EXPECT_EQ(type_of(plan, "kv_type"), static_cast<int>(DType::f8e4m3));
    EXPECT_EQ(plan.on_copies.out_type(), out);
    EXPECT_EQ(plan.problem.dtype, DType::f8e5m2);
    EXPECT_EQ(plan.rotary.q.bytes, 64 * 64 * 2);
    EXPECT_EQ(plan.rotary.descales.bytes, 4);
    EXPECT_EQ(plan.rotary.k.bytes, 0);
  }
  EXPECT_EQ(plan_of("descale_rows").rotary.descales.bytes, 4 * 64);
  EXPECT_EQ(plan_of("descale_rows page_size=16").rotary.descales.bytes, 0);
  EXPECT_EQ(plan_of("dim_qk=512 dim_vo=512").rotary.descales.bytes, 0);
  const CudaPlan rotated = plan_of("rope=half", FamilyChoice::sm90);
  EXPECT_STREQ(rotated.family_name, "sm90") << "k and v are copied too";
  EXPECT_EQ(type_of(rotated, "dtype"), static_cast<int>(DType::bf16));
  EXPECT_EQ(rotated.rotary.v.bytes, 64 * 64 * 2);
}

// A call without a workspace allocates what its own kernels need.
TEST(CudaSm90F8Plan, NeedsNoScratchForOtherFamilies) {
  const CudaPlan plan = f8_plan_of("dtype=f8e4m3 len_q=512 len_kv=512").value();
  EXPECT_FALSE(plan.runs_on_copies);
  EXPECT_GE(plan.workspace_bytes, 512 * 64 * 2);
  EXPECT_EQ(plan.scratch_bytes, plan.workspace.bytes);
}

TEST(CudaSm90F8Plan, TypesAndTiles) {
  struct Expected {
    std::string problem;
    DType kv;
    DType staged;  // O in shared memory
    bool elements;
    int tile_q, tile_kv, accumulate;
  };
  const std::string d128 = "len_q=512 len_kv=512 dim_qk=128 dim_vo=128 ";
  const std::string d128_long = "len_q=64 len_kv=513 dim_qk=128 dim_vo=128 ";
  const Expected expected[] = {
      {d128, DType::f8e4m3, DType::bf16, false, 128, 128, 0},
      {d128 + "dtype_out=f16 dtype_kv=f8e5m2", DType::f8e5m2, DType::f16, false, 128, 128, 0},
      {d128 + "dtype_out=f32", DType::f8e4m3, DType::bf16, true, 128, 128, 0},
      {d128 + "mask=qk", DType::f8e4m3, DType::bf16, false, 128, 64, 0},
      {d128_long, DType::f8e4m3, DType::bf16, false, 128, 128, 1},
      {d128_long + "bias=hqk", DType::f8e4m3, DType::bf16, false, 128, 64, 1},
      {"len_q=64 len_kv=512", DType::f8e4m3, DType::bf16, false, 192, 128, 0},
      {"len_q=64 len_kv=513", DType::f8e4m3, DType::bf16, false, 128, 128, 1},
      {"len_q=64 len_kv=1024 dim_qk=256 dim_vo=256", DType::f8e4m3, DType::bf16, false, 128, 64, 0},
      {"len_q=64 len_kv=1025 dim_qk=256 dim_vo=256", DType::f8e4m3, DType::bf16, false, 128, 64, 8},
  };
  for (const Expected& e : expected) {
    SCOPED_TRACE(e.problem);
    const core::Result<CudaPlan> planned = f8_plan_of("dtype=f8e4m3 " + e.problem);
    ASSERT_TRUE(planned.ok()) << planned.reason();
    const CudaPlan& plan = planned.value();
    EXPECT_STREQ(plan.family_name, "sm90");
    const Config& config = plan.kernels[plan.main].config;
    EXPECT_EQ(config.get("dtype"), static_cast<int>(DType::f8e4m3));
    EXPECT_EQ(config.get("dtype_kv"), static_cast<int>(e.kv));
    EXPECT_EQ(config.get("dtype_out"), static_cast<int>(e.staged));
    EXPECT_EQ(config.get("store_elements"), e.elements ? 1 : 0);
    EXPECT_EQ(config.get("tile_q"), e.tile_q);
    EXPECT_EQ(config.get("tile_kv"), e.tile_kv);
    EXPECT_EQ(config.get("accumulate_tiles"), e.accumulate);
    EXPECT_LE(plan.kernels[plan.main].shared_bytes, h200().shared_per_block);
  }
}

// The two f8 types have elements of one size, so one may be q's and the other the keys'.
TEST(CudaSm90F8Plan, AccessOfMixedTypes) {
  const auto access = [](const char* problem) {
    return core::best_access(Pass::forward, parse_problem(problem));
  };
  EXPECT_EQ(access("dtype=f8e4m3 dtype_kv=f8e5m2 len_q=8 len_kv=8"), Access::tma);
  EXPECT_EQ(access("dtype=f8e4m3 len_q=8 len_kv=8 dim_qk=24 dim_vo=64"), Access::element);
}

}  // namespace
}  // namespace attn::cuda::test
