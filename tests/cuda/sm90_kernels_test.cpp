// The kernels of the family sm90 compile for the Configs of docs/kernels/sm90_forward.md and
// sm90_backward.md: without a warning of ptxas (wgmma serialized, setmaxnreg ignored) and within
// the stack that the documents list.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "cuda/families/make_plan.hpp"
#include "cuda/families/sm90/bias_gradient_plan.hpp"
#include "cuda/host/occupancy.hpp"
#include "facts.hpp"
#include "kernel_reports.hpp"
#include "resource_record.hpp"

namespace attn::cuda::test {
namespace {

// Problems whose kernels attn_cuda_configs does not compile: it has those of the benchmark's cells.
struct Variant {
  const char* name;
  Pass pass;
  const char* problem;
  int max_stack_bytes;
};
constexpr Variant kVariants[] = {
    {"d64 packed", Pass::forward,
     "dtype=bf16 batch=4 layout_q=packed layout_kv=packed total_q=4096 total_kv=4096 len_q=4096 "
     "len_kv=4096 causal",
     128},
    {"d64 packed, dropout and softcap", Pass::forward,
     "dtype=bf16 batch=4 layout_q=packed layout_kv=packed total_q=4096 total_kv=4096 len_q=4096 "
     "len_kv=4096 dropout softcap",
     8},
    {"d128 f16", Pass::forward, "dtype=f16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128", 0},
    {"d128 ranges", Pass::forward, "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 kv_end",
     0},
    {"d128 padded, dropout", Pass::forward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 lengths_kv dropout", 0},
    {"d64 few keys", Pass::forward,
     "dtype=bf16 batch=64 heads_q=16 heads_kv=16 len_q=64 len_kv=64 causal", 0},
    {"d64 few keys, packed, softcap, dropout and ALiBi", Pass::forward,
     "dtype=bf16 batch=64 heads_q=16 heads_kv=4 layout_q=packed layout_kv=packed total_q=2048 "
     "total_kv=2048 len_q=32 len_kv=64 softcap dropout alibi",
     0},
    {"d128 few keys, padded, dropout", Pass::forward,
     "dtype=f16 batch=64 heads_q=16 heads_kv=16 len_q=64 len_kv=64 dim_qk=128 dim_vo=128 dropout "
     "lengths_q",
     0},
    {"d64 packed, heads in a tile, window", Pass::forward,
     "dtype=bf16 batch=64 heads_q=32 heads_kv=8 layout_q=packed layout_kv=packed total_q=2048 "
     "total_kv=8192 len_q=32 len_kv=4096 causal window_left=999",
     0},
    {"d128 heads in a tile, softcap, dropout and ALiBi", Pass::forward,
     "dtype=bf16 batch=64 heads_q=32 heads_kv=8 len_q=32 len_kv=4096 dim_qk=128 dim_vo=128 softcap "
     "dropout alibi",
     8},
    {"d64 mask", Pass::forward, "dtype=bf16 len_q=4096 len_kv=4096 mask=qk", 16},
    {"d128 mask", Pass::forward, "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 mask=qk",
     0},
    {"d64 f32 output", Pass::forward, "dtype=bf16 dtype_out=f32 len_q=4096 len_kv=4096 causal", 0},
    {"d128 f32 output", Pass::forward,
     "dtype=bf16 dtype_out=f32 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128", 0},
    {"d256 non-finite replaced", Pass::forward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=256 dim_vo=256 nonfinite_zero", 0},
    {"d512 f16", Pass::forward, "dtype=f16 len_q=4096 len_kv=4096 dim_qk=512 dim_vo=512 causal",
     24},
    {"d512 padded, softcap", Pass::forward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=512 dim_vo=512 lengths_kv softcap", 16},
    {"d512 packed, window", Pass::forward,
     "dtype=bf16 batch=4 layout_q=packed layout_kv=packed total_q=4096 total_kv=4096 len_q=4096 "
     "len_kv=4096 dim_qk=512 dim_vo=512 causal window_left=99",
     48},
    {"d320 ranges", Pass::forward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=320 dim_vo=320 kv_begin kv_end", 0},
    {"f32 d64", Pass::forward, "dtype=f32 len_q=4096 len_kv=4096", 0},
    {"f32 d64 packed, window", Pass::forward,
     "dtype=f32 batch=4 layout_q=packed layout_kv=packed total_q=4096 total_kv=4096 len_q=4096 "
     "len_kv=4096 causal window_left=99",
     0},
    {"f32 d64 softcap, dropout and ALiBi", Pass::forward,
     "dtype=f32 len_q=4096 len_kv=4096 softcap dropout alibi", 0},
    {"tf32 d64 causal", Pass::forward, "dtype=f32 precision=tf32 len_q=4096 len_kv=4096 causal", 0},
    {"tf32 d64 softcap, dropout and ALiBi", Pass::forward,
     "dtype=f32 precision=tf32 len_q=4096 len_kv=4096 softcap dropout alibi", 0},
    {"tf32 d128", Pass::forward,
     "dtype=f32 precision=tf32 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128", 0},
    {"f32 d128 causal", Pass::forward,
     "dtype=f32 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 causal", 48},
    {"f32 d128 ranges, padded", Pass::forward,
     "dtype=f32 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 kv_begin kv_end lengths_kv", 64},
    {"f32 d128 softcap, dropout and ALiBi", Pass::forward,
     "dtype=f32 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 softcap dropout alibi", 72},
    {"f8 d64, both types, f16 output", Pass::forward,
     "dtype=f8e5m2 dtype_kv=f8e4m3 dtype_out=f16 len_q=4096 len_kv=4096 causal", 0},
    {"f8 d64 packed, ALiBi", Pass::forward,
     "dtype=f8e4m3 batch=4 layout_q=packed layout_kv=packed total_q=4096 total_kv=4096 len_q=4096 "
     "len_kv=4096 causal alibi",
     0},
    {"f8 d64 mask", Pass::forward, "dtype=f8e4m3 len_q=4096 len_kv=4096 mask=qk causal", 0},
    {"f8 d128 ranges, softcap", Pass::forward,
     "dtype=f8e5m2 len_q=512 len_kv=512 dim_qk=128 dim_vo=128 kv_begin softcap", 0},
    {"f8 d128 long rows, ranges, softcap", Pass::forward,
     "dtype=f8e5m2 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 kv_begin softcap", 40},
    {"f8 d128 bias, f32 output", Pass::forward,
     "dtype=f8e4m3 dtype_out=f32 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 bias=hqk", 0},
    {"f8 d64 long rows", Pass::forward, "dtype=f8e4m3 len_q=20000 len_kv=20000 causal", 0},
    {"f8 d128 long rows", Pass::forward,
     "dtype=f8e4m3 len_q=20000 len_kv=20000 dim_qk=128 dim_vo=128 causal", 48},
    {"f8 d256 padded", Pass::forward,
     "dtype=f8e4m3 len_q=1024 len_kv=1024 dim_qk=256 dim_vo=256 lengths_kv window_left=99", 0},
    {"f8 d256 long rows, padded", Pass::forward,
     "dtype=f8e4m3 len_q=4096 len_kv=4096 dim_qk=256 dim_vo=256 lengths_kv window_left=99", 504},
    {"d64 short rows", Pass::backward,
     "dtype=bf16 batch=32 heads_q=32 heads_kv=32 len_q=512 len_kv=512", 0},
    {"d64 short rows f16, window", Pass::backward,
     "dtype=f16 batch=32 heads_q=32 heads_kv=32 len_q=512 len_kv=512 causal window_left=99", 0},
    {"d64 short rows, ALiBi, f32 gradients", Pass::backward,
     "dtype=bf16 batch=32 heads_q=32 heads_kv=32 len_q=512 len_kv=512 alibi dtype_grad=f32", 0},
    {"d64 short rows, softcap", Pass::backward,
     "dtype=f16 batch=32 heads_q=32 heads_kv=32 len_q=512 len_kv=512 softcap causal", 16},
    {"d64 short rows, dropout", Pass::backward,
     "dtype=bf16 batch=32 heads_q=32 heads_kv=32 len_q=512 len_kv=512 dropout", 40},
    {"d64 f16", Pass::backward, "dtype=f16 len_q=4096 len_kv=4096 dim_qk=64 dim_vo=64", 0},
    {"d128 f16", Pass::backward, "dtype=f16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128", 0},
    {"d64 window", Pass::backward, "dtype=bf16 len_q=4096 len_kv=4096 causal window_left=99", 0},
    {"d128 window", Pass::backward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 causal window_left=99", 0},
    {"d128 accumulate", Pass::backward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 causal accumulate", 0},
    {"d64 packed, window", Pass::backward,
     "dtype=bf16 batch=4 layout_q=packed layout_kv=packed total_q=4096 total_kv=4096 len_q=4096 "
     "len_kv=4096 causal window_left=99",
     0},
    {"d128 packed", Pass::backward,
     "dtype=bf16 batch=4 layout_q=packed layout_kv=packed total_q=4096 total_kv=4096 len_q=4096 "
     "len_kv=4096 dim_qk=128 dim_vo=128",
     0},
    {"d64 ranges", Pass::backward, "dtype=bf16 len_q=4096 len_kv=4096 kv_begin causal", 0},
    {"d128 ranges", Pass::backward,
     "dtype=f16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 kv_begin kv_end", 0},
    {"d64 softcap", Pass::backward, "dtype=bf16 len_q=4096 len_kv=4096 softcap causal", 16},
    {"d64 dropout", Pass::backward, "dtype=bf16 len_q=4096 len_kv=4096 dropout", 48},
    {"d128 softcap and ALiBi", Pass::backward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 softcap alibi kv_end", 16},
    {"d128 dropout", Pass::backward,
     "dtype=f16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 dropout lengths_kv", 0},
    {"d64 bias", Pass::backward, "dtype=bf16 len_q=4096 len_kv=4096 bias=hqk dtype_bias=bf16", 8},
    {"d64 bias, its gradient stored", Pass::backward,
     "dtype=bf16 batch=2 len_q=4096 len_kv=4096 bias=bhqk dtype_bias=bf16 dbias causal", 8},
    {"d64 bias, its gradient summed", Pass::backward,
     "dtype=bf16 batch=8 len_q=1024 len_kv=1024 bias=hqk dtype_bias=bf16 dbias accumulate", 8},
    {"d64 bias with a mask, its gradient summed", Pass::backward,
     "dtype=bf16 batch=8 len_q=1024 len_kv=1024 bias=hqk dtype_bias=bf16 dbias mask=bk accumulate",
     96},
    {"d128 bias and mask", Pass::backward,
     "dtype=f16 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 bias=hqk dtype_bias=f16 mask=qk "
     "lengths_kv",
     0},
    {"d64 dbias, f16", Pass::backward,
     "dtype=f16 batch=4 len_q=4096 len_kv=4096 bias=qk dtype_bias=f16 dbias causal", 0},
    {"d64 dbias, partial sums", Pass::backward,
     "dtype=bf16 batch=16 len_q=512 len_kv=512 bias=qk dtype_bias=bf16 dbias deterministic", 0},
    {"d128 dbias, partial sums of an f32 bias", Pass::backward,
     "dtype=bf16 batch=16 len_q=512 len_kv=512 dim_qk=128 dim_vo=128 bias=qk dbias", 0},
    {"d128 dbias, f32", Pass::backward,
     "dtype=bf16 batch=4 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 bias=qk dbias", 0},
    {"d64 dbias, mask", Pass::backward,
     "dtype=bf16 batch=8 len_q=1024 len_kv=1024 bias=b/4hqk dtype_bias=bf16 dbias mask=b/2k", 0},
    {"d128 dbias, mask and f32", Pass::backward,
     "dtype=bf16 batch=4 len_q=4096 len_kv=4096 dim_qk=128 dim_vo=128 bias=qk dbias mask=bhk", 0},
    {"d192 window, f16", Pass::backward,
     "dtype=f16 len_q=4096 len_kv=4096 dim_qk=192 dim_vo=128 causal window_left=99", 0},
    {"d192 deterministic", Pass::backward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=192 dim_vo=192 causal deterministic accumulate", 0},
    {"d256 deterministic, f16", Pass::backward,
     "dtype=f16 len_q=4096 len_kv=4096 dim_qk=256 dim_vo=256 deterministic", 0},
    {"d256 window, f32 gradients", Pass::backward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=256 dim_vo=256 causal window_left=99 dtype_grad=f32",
     0},
    {"d256 packed", Pass::backward,
     "dtype=bf16 batch=4 layout_q=packed layout_kv=packed total_q=4096 total_kv=4096 len_q=4096 "
     "len_kv=4096 dim_qk=256 dim_vo=256 causal",
     8},
    {"d256 softcap, dropout and ALiBi", Pass::backward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=256 dim_vo=256 softcap dropout alibi", 24},
    {"d192 dropout, ranges", Pass::backward,
     "dtype=f16 len_q=4096 len_kv=4096 dim_qk=192 dim_vo=192 dropout kv_begin kv_end", 0},
    {"d256 bias and mask", Pass::backward,
     "dtype=bf16 len_q=4096 len_kv=4096 dim_qk=256 dim_vo=256 bias=hqk mask=qk lengths_kv", 0}};

// The plan's main kernel, or the one that computes dbias after it.
const KernelSpec& tested_kernel(const CudaPlan& plan) {
  for (const KernelSpec& spec : plan.specs()) {
    if (std::string_view(spec.entry) == sm90::kBiasGradientEntry) return spec;
  }
  return plan.kernels[plan.main];
}

// Compiling all of them takes minutes, so each test takes one of kShards, which run in parallel.
constexpr std::size_t kShards = 4;

class CudaSm90Kernels : public testing::TestWithParam<std::size_t> {};

TEST_P(CudaSm90Kernels, CompileWithoutWarningsOrMoreStack) {
  std::string reason;
  const Nvrtc* const nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  std::vector<Variant> variants;
  std::vector<KernelSpec> specs;  // that plans choose for them
  std::vector<Config> configs;
  for (std::size_t i = GetParam(); i < std::size(kVariants); i += kShards) {
    const Variant& variant = variants.emplace_back(kVariants[i]);
    const CudaPlan plan = make_plan(variant.pass, parse_problem(variant.problem), h200(),
                                    core::Access::tma, FamilyChoice::sm90)
                              .value();
    EXPECT_STREQ(plan.family_name, "sm90") << variant.name << ": " << plan.refusals;
    configs.push_back(specs.emplace_back(tested_kernel(plan)).config);
  }
  std::vector<ResourceReport> reports;
  const core::Status all = kernel_reports(*nvrtc, configs, 90, reports);
  ASSERT_TRUE(all.ok()) << all.message;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(std::string(to_string(variants[i].pass)) + " " + variants[i].name);
    const ResourceReport& report = reports[i];
    ASSERT_EQ(report.kernels.size(), 1u);
    EXPECT_LE(report.kernels[0].stack_bytes, variants[i].max_stack_bytes);
    EXPECT_EQ(report.notes, std::vector<std::string>{});
    const bool has_sums = specs[i].config.get("accumulate_tiles") > 1;
    EXPECT_EQ(flaw_of(report, specs[i], h200(), has_sums ? kMostSpilledWithSums : kMostSpilled),
              "");
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, CudaSm90Kernels, testing::Range(std::size_t{0}, kShards));

}  // namespace
}  // namespace attn::cuda::test
