// Plans of f8 forwards on the family sm90, which alone has kernels for them.
#include <gtest/gtest.h>

#include <string>

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

TEST(CudaSm90F8Plan, RefusesWithReasons) {
  const auto reason = [](const std::string& problem, Access access = Access::tma,
                         Pass pass = Pass::forward) {
    return f8_plan_of("dtype=f8e4m3 len_q=64 len_kv=64 " + problem, access, pass).reason();
  };
  const std::string sm80 = "; sm80: no kernel for q of f8 types";
  EXPECT_EQ(reason("", Access::vector), "sm90: needs the access tma, the call's is vector" + sm80);
  EXPECT_EQ(reason("dim_qk=40 dim_vo=40"),
            "sm90: needs the access tma, the call's is element" + sm80);
  EXPECT_EQ(reason("dropout"), "sm90: has no kernel for dropout with f8 types" + sm80);
  EXPECT_EQ(reason("", Access::tma, Pass::decode), "sm90: has no kernel for the decode" + sm80);
  EXPECT_EQ(reason("bias=hk"),
            "sm90: takes no bias or mask that broadcasts queries or keys" + sm80);
  EXPECT_EQ(reason("bias=hqk dim_qk=256 dim_vo=256"),
            "sm90: has no shared memory for a bias above dim 128" + sm80);
  const std::string rope = "no rotary embedding of f8 queries on CUDA";
  EXPECT_EQ(reason("rope=half"), "sm90: " + rope + "; sm80: " + rope);
  EXPECT_EQ(reason("len_q=1"), "") << "no decode kernel takes few queries";
}

TEST(CudaSm90F8Plan, TypesAndTiles) {
  struct Expected {
    std::string problem;
    DType kv;
    DType staged;  // O in shared memory
    bool elements;
    int tile_q, tile_kv, accumulate;
  };
  const std::string d128 = "len_q=2047 len_kv=2047 dim_qk=128 dim_vo=128 ";
  const std::string d128_long = "len_q=2048 len_kv=2048 dim_qk=128 dim_vo=128 ";
  const Expected expected[] = {
      {d128_long, DType::f8e4m3, DType::bf16, false, 192, 64, 0},
      {d128_long + "causal", DType::f8e4m3, DType::bf16, false, 192, 64, 0},
      {d128_long + "softcap", DType::f8e4m3, DType::bf16, false, 128, 128, 0},
      {d128_long + "window_right=5", DType::f8e4m3, DType::bf16, false, 128, 128, 0},
      {d128, DType::f8e4m3, DType::bf16, false, 128, 128, 0},
      {d128 + "dtype_out=f16 dtype_kv=f8e5m2", DType::f8e5m2, DType::f16, false, 128, 128, 0},
      {d128 + "dtype_out=f32", DType::f8e4m3, DType::bf16, true, 128, 128, 0},
      {d128 + "mask=qk", DType::f8e4m3, DType::bf16, false, 128, 64, 0},
      {"len_q=64 len_kv=16385 dim_qk=128 dim_vo=128", DType::f8e4m3, DType::bf16, false, 128, 128,
       8},
      {"len_q=64 len_kv=16384", DType::f8e4m3, DType::bf16, false, 192, 128, 0},
      {"len_q=64 len_kv=16385", DType::f8e4m3, DType::bf16, false, 128, 128, 8},
      {"len_q=64 len_kv=20000 dim_qk=256 dim_vo=256", DType::f8e4m3, DType::bf16, false, 128, 64,
       0},
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
