// The kernels of sm80/ compile in f32 for every generation of devices, within the spills that
// docs/kernels/sm80.md allows.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "cuda/families/make_plan.hpp"
#include "cuda/host/architectures.hpp"
#include "cuda/host/occupancy.hpp"
#include "kernel_reports.hpp"

namespace attn::cuda::test {
namespace {

// Bytes that a thread of a backward spills, stores plus loads: for dims up to 64, 128 and 256,
// where dK and dV take 64, 128 and 256 of a thread's registers.
int most_spilled_of_backward(const KernelSpec& spec) {
  const std::int64_t dim = spec.config.get("dim_qk").value_or(0);
  return dim <= 64 ? 540 : dim <= 128 ? 1200 : 4300;
}

// Those that spill most, of each precision and of caches, and one that must not (ieee).
constexpr const char* kMostSpilling[] = {
    "",
    " dim_qk=256 dim_vo=256 precision=tf32",
    " dim_qk=256 dim_vo=256 precision=ieee",
    " page_size=16",
    " dtype_kv=i8",
};
// With few registers left and little shared memory: a 3090's last resort. An RTX 4090 has the same
// Configs and results; the assembler of 12.0 has others.
constexpr const char* kLastResorts[] = {
    " dim_qk=256 dim_vo=256 bias=hqk dtype_bias=f32 mask=qk softcap alibi dropout",
    " dim_qk=256 dim_vo=256 bias=hqk dtype_bias=f32 mask=qk softcap alibi dropout dtype_kv=i8",
};

void expect_few_spills(int capability, std::span<const char* const> problems) {
  std::string reason;
  const Nvrtc* const nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  const DeviceFacts& facts = *typical_facts(capability);
  std::vector<KernelSpec> specs;
  std::vector<Config> configs;
  for (const char* options : problems) {
    const std::string text = std::string("dtype=f32 len_q=4096 len_kv=4096") + options;
    const CudaPlan plan = make_plan(Pass::forward, parse_problem(text), facts).value();
    specs.push_back(plan.kernels[plan.main]);
    configs.push_back(specs.back().config);
  }
  std::vector<ResourceReport> reports;
  const core::Status all = kernel_reports(*nvrtc, configs, capability, reports);
  ASSERT_TRUE(all.ok()) << all.message;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(std::to_string(capability) + " " + to_string(specs[i].config));
    EXPECT_EQ(flaw_of(reports[i], specs[i], facts, kMostSpilled), "");
  }
}

TEST(CudaF32Kernels, ConfigsCompileWithFewSpills) {
  expect_few_spills(80, kMostSpilling);
}
TEST(CudaF32Kernels, LastResortsCompileWithFewSpills) {
  expect_few_spills(86, kLastResorts);
}
TEST(CudaF32Kernels, LastResortOf120CompilesWithFewSpills) {
  expect_few_spills(120, std::span(kLastResorts).last(1));
}

// The backward's kernels, with a gradient of a bias.
TEST(CudaF32Kernels, BackwardsCompileWithKnownSpills) {
  std::string reason;
  const Nvrtc* const nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  const DeviceFacts& facts = *typical_facts(80);
  std::vector<KernelSpec> specs;
  std::vector<Config> configs;
  for (const char* options :
       {"", " dim_qk=128 dim_vo=128", " precision=ieee", " precision=tf32 dim_qk=128 dim_vo=128",
        " bias=hqk dtype_bias=f32 mask=qk dbias", " dim_qk=256 dim_vo=256"}) {
    const std::string text = std::string("dtype=f32 dq dk dv len_q=4096 len_kv=4096") + options;
    const CudaPlan plan = make_plan(Pass::backward, parse_problem(text), facts).value();
    for (const KernelSpec& spec : plan.specs()) {
      specs.push_back(spec);
      configs.push_back(spec.config);
    }
  }
  std::vector<ResourceReport> reports;
  const core::Status all = kernel_reports(*nvrtc, configs, 80, reports);
  ASSERT_TRUE(all.ok()) << all.message;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    SCOPED_TRACE(to_string(specs[i].config));
    const int most = most_spilled_of_backward(specs[i]);
    EXPECT_EQ(flaw_of(reports[i], specs[i], facts, most), "");
  }
}

}  // namespace
}  // namespace attn::cuda::test
