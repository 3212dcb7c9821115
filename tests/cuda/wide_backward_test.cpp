// Head dims above 256: what is refused; the plans of the backward, and that its kernels compile
// within the spills that docs/kernels/sm80.md allows.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/families/make_plan.hpp"
#include "cuda/host/architectures.hpp"
#include "cuda/host/occupancy.hpp"
#include "kernel_reports.hpp"

namespace attn::cuda::test {
namespace {

TEST(CudaWide, RefusesWithReasons) {
  const auto reason = [](Pass pass, const char* text, int capability = 90) {
    return make_plan(pass, parse_problem(text), *typical_facts(capability)).reason();
  };
  const char* const f32 = "dtype=f32 dim_qk=257 dim_vo=64 len_q=8 len_kv=8 bias=qk dbias";
  for (const int capability : {90, 100}) EXPECT_EQ(reason(Pass::backward, f32, capability), "");
  EXPECT_EQ(reason(Pass::backward, f32, 80),
            "no tiles fit cuda:0, " + to_string(*typical_facts(80)) +
                ", with 166912 bytes of shared memory for a block");
  for (const char* text : {"dtype=bf16 dim_qk=512 dim_vo=300 len_q=8 len_kv=8",
                           "dtype=bf16 dim_qk=512 dim_vo=512 len_q=8 len_kv=8 rope=half"}) {
    EXPECT_EQ(reason(Pass::forward, text), "");
  }
}

// Above dim 256 a backward's block has the keys whose dk and dv its registers hold.
TEST(CudaWideBackward, PlansOfGenerations) {
  const auto plan_of = [](const std::string& options, const DeviceFacts& facts) {
    const Problem problem =
        parse_problem("dtype=bf16 dim_qk=512 dim_vo=300 len_q=99 len_kv=99 " + options);
    return make_plan(Pass::backward, problem, facts);
  };
  struct Expected {
    int capability, tile_q, tile_kv, warps, split_s_dp;
  };
  for (const Expected& expected :
       {Expected{90, 64, 32, 8, 1}, Expected{80, 32, 32, 8, 1}, Expected{120, 32, 16, 4, 0}}) {
    const DeviceFacts& facts = *typical_facts(expected.capability);
    const core::Result<CudaPlan> planned = plan_of("causal", facts);
    ASSERT_TRUE(planned.ok()) << planned.reason();
    const Config& config = planned.value().kernels[planned.value().main].config;
    EXPECT_EQ(config.get("dim_qk"), 512);
    EXPECT_EQ(config.get("dim_vo"), 512);
    EXPECT_EQ(config.get("stages"), 1);
    EXPECT_EQ(config.get("tile_q"), expected.tile_q) << facts.name;
    EXPECT_EQ(config.get("tile_kv"), expected.tile_kv) << facts.name;
    EXPECT_EQ(config.get("warps"), expected.warps) << facts.name;
    EXPECT_EQ(config.get("split_s_dp"), expected.split_s_dp) << facts.name;
    EXPECT_EQ(config.get("shared_entries"), 0) << facts.name;
    EXPECT_TRUE(plan_of("mask=qk softcap alibi dropout", facts).ok()) << facts.name;
    const core::Result<CudaPlan> biased =
        plan_of("batch=4 bias=b/2hqk dtype_bias=f32 mask=b/2qk dbias softcap", facts);
    if (expected.capability == 120) {
      EXPECT_EQ(biased.reason(),
                "no tiles of the backward with a bias and head dims above 256 fit cuda:0, " +
                    to_string(facts) + ", with 101376 bytes of shared memory for a block; " +
                    "without a bias they do");
      continue;
    }
    ASSERT_TRUE(biased.ok()) << biased.reason();
    for (const KernelSpec& spec : biased.value().specs()) {
      EXPECT_LE(spec.shared_bytes, facts.shared_per_block) << to_string(spec.config);
      EXPECT_EQ(spec.config.get("shared_entries").value_or(1), 1) << to_string(spec.config);
    }
  }
}

// attn_cuda_configs has the plain ones; here are those with most options.
TEST(CudaWideBackward, ConfigsCompileWithFewSpills) {
  std::string reason;
  const Nvrtc* const nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  for (const int capability : {90, 120}) {
    const DeviceFacts& facts = *typical_facts(capability);
    const std::string bias = capability == 120 ? "" : "bias=hqk dtype_bias=f32";
    const std::string text =
        "dtype=bf16 dim_qk=512 dim_vo=512 len_q=99 len_kv=99 mask=qk softcap alibi dropout " + bias;
    const CudaPlan plan = make_plan(Pass::backward, parse_problem(text), facts).value();
    const KernelSpec& spec = plan.kernels[plan.main];
    SCOPED_TRACE(to_string(spec.config));
    std::vector<ResourceReport> reports;
    const core::Status status = kernel_reports(*nvrtc, {spec.config}, capability, reports);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(flaw_of(reports[0], spec, facts, kMostSpilled), "");
  }
}

// In f32 only where a block has 200 KB of shared memory. ieee spills most.
TEST(CudaWideBackward, KernelsInF32Compile) {
  constexpr int kMostSpilledInF32 = 1200;
  std::string reason;
  const Nvrtc* const nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  const DeviceFacts& facts = *typical_facts(90);
  for (const char* const options : {"", " precision=ieee", " precision=tf32 bias=qk dbias"}) {
    const std::string text =
        std::string("dtype=f32 dim_qk=512 dim_vo=512 len_q=99 len_kv=99") + options;
    const CudaPlan plan = make_plan(Pass::backward, parse_problem(text), facts).value();
    const KernelSpec& spec = plan.kernels[plan.main];
    SCOPED_TRACE(to_string(spec.config));
    std::vector<ResourceReport> reports;
    const core::Status status = kernel_reports(*nvrtc, {spec.config}, 90, reports);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(flaw_of(reports[0], spec, facts, kMostSpilledInF32), "");
  }
}

}  // namespace
}  // namespace attn::cuda::test
