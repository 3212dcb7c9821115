// The kernels of sm80/ compile in f32 for every generation of devices, within the spills that
// docs/kernels/sm80.md allows.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cuda/families/make_plan.hpp"
#include "cuda/host/architectures.hpp"
#include "cuda/host/binaries.hpp"
#include "cuda/host/occupancy.hpp"
#include "cuda/host/ptxas_log.hpp"
#include "folder.hpp"

namespace attn::cuda::test {
namespace {

// Bytes that a thread spills, stores plus loads: in the forward; in the backward for dims up to 64,
// 128 and 256, where dK and dV take 64, 128 and 256 of a thread's registers.
constexpr int kMostSpilled = 540;
int most_spilled_of_backward(const KernelSpec& spec) {
  const std::int64_t dim = spec.config.get("dim_qk").value_or(0);
  return dim <= 64 ? 540 : dim <= 128 ? 2400 : 12200;
}

// Plain in each precision and dim; options where registers are scarcest; a 3090's last resort.
std::vector<std::string> problems() {
  std::vector<std::string> list;
  for (const char* precision : {"tf32x3", "tf32", "ieee"}) {
    for (const char* dims : {"", " dim_qk=128 dim_vo=128", " dim_qk=256 dim_vo=256"}) {
      list.push_back(std::string("dtype=f32 len_q=4096 len_kv=4096 precision=") + precision + dims);
    }
  }
  for (const char* dims : {"", " dim_qk=128 dim_vo=128", " dim_qk=256 dim_vo=256"}) {
    list.push_back(std::string("dtype=f32 len_q=4096 len_kv=4096 bias=hqk dtype_bias=f32 mask=qk "
                               "softcap alibi dropout") +
                   dims);
  }
  for (const char* dims : {"", " dim_qk=128 dim_vo=128", " dim_qk=256 dim_vo=256"}) {
    list.push_back(std::string("dtype=f32 len_q=64 len_kv=4096 page_size=16") + dims);
    list.push_back(std::string("dtype=f32 len_q=64 len_kv=4096 dtype_kv=i8 bias=hqk dtype_bias=f32 "
                               "mask=qk softcap alibi dropout") +
                   dims);
  }
  return list;
}

TEST(CudaF32Kernels, ConfigsCompileWithFewSpills) {
  std::string reason;
  const Nvrtc* const nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  const Folder folder;
  Binaries binaries(Cache(folder.path()), nvrtc->version(), nvrtc, "");
  for (const int capability : {80, 86, 89, 90, 120}) {
    const DeviceFacts& facts = *typical_facts(capability);
    std::vector<KernelSpec> specs;
    std::vector<Config> configs;
    for (const std::string& text : problems()) {
      // The others' instructions are those of 8.0: what differs is how much fits.
      if (capability != 80 && !text.ends_with("dropout dim_qk=256 dim_vo=256")) continue;
      const CudaPlan plan = make_plan(Pass::forward, parse_problem(text), facts).value();
      specs.push_back(plan.kernels[plan.main]);
      configs.push_back(specs.back().config);
    }
    const core::Status all = binaries.get_all(configs, capability, 0);
    ASSERT_TRUE(all.ok()) << all.message;
    for (const KernelSpec& spec : specs) {
      SCOPED_TRACE(std::to_string(capability) + " " + to_string(spec.config));
      const Binary* binary = nullptr;
      ASSERT_TRUE(binaries.get(spec.config, capability, binary).ok());
      EXPECT_EQ(flaw_of(read_resources(binary->log), spec, facts, kMostSpilled), "");
    }
  }
}

// The backward's kernels, with a gradient of a bias.
TEST(CudaF32Kernels, BackwardsCompileWithKnownSpills) {
  std::string reason;
  const Nvrtc* const nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  const Folder folder;
  Binaries binaries(Cache(folder.path()), nvrtc->version(), nvrtc, "");
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
  const core::Status all = binaries.get_all(configs, 80, 0);
  ASSERT_TRUE(all.ok()) << all.message;
  for (const KernelSpec& spec : specs) {
    SCOPED_TRACE(to_string(spec.config));
    const Binary* binary = nullptr;
    ASSERT_TRUE(binaries.get(spec.config, 80, binary).ok());
    const int most = most_spilled_of_backward(spec);
    EXPECT_EQ(flaw_of(read_resources(binary->log), spec, facts, most), "");
  }
}

}  // namespace
}  // namespace attn::cuda::test
