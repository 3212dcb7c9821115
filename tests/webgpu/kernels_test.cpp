// The kernels of the case list: their number, and that the provider accepts them. Drivers compile
// at the first dispatch, so this test covers the language and the limits.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include "case_work.hpp"
#include "covering.hpp"
#include "support.hpp"
#include "webgpu/host/sources.hpp"

namespace attn::webgpu::test {
namespace {

// Bytes of workgroup memory: the guaranteed minimum, and larger sizes that devices have.
constexpr std::array<std::uint32_t, 3> kWorkgroupBytes{16384, 32768, 49152};

// Compiling pipelines dominates a short run on a slow device. Lower this limit, never raise it.
constexpr std::size_t kMostPipelines = 300;

class OfTheCaseList : public testing::TestWithParam<std::uint32_t> {};

TEST_P(OfTheCaseList, KernelsAreFew) {
  EXPECT_LE(kernels_of_list(core_facts(GetParam())).size(), kMostPipelines);
}

INSTANTIATE_TEST_SUITE_P(Kernels, OfTheCaseList, testing::ValuesIn(kWorkgroupBytes));

using Kernels = OnDevice;

// With ATTN_EVERY_KERNEL=1 all that devices with 16 KiB get, of the others a covering part.
TEST_F(Kernels, OfTheCaseListCompile) {
  const bool every = std::getenv("ATTN_EVERY_KERNEL") != nullptr;
  std::vector<KernelSpec> chosen;
  const auto choose = [&](const DeviceFacts& facts) {
    const std::vector<KernelSpec> all = kernels_of_list(facts);
    const std::vector<KernelSpec> more = every && chosen.empty() ? all : covering(all, chosen);
    chosen.insert(chosen.end(), more.begin(), more.end());
  };
  for (const std::uint32_t bytes : kWorkgroupBytes) {
    if (bytes <= device().facts().workgroup_bytes) choose(core_facts(bytes));
  }
  if (device().facts().has_subgroups) choose(with_subgroups(core_facts(kWorkgroupBytes[0])));
  EXPECT_FALSE(chosen.empty());
  Pipelines pipelines(device(), kernel_sources());
  const auto threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_TRUE(is_ok(pipelines.get_all(chosen, threads)));
  for (const KernelSpec& spec : chosen) {
    EXPECT_NE(pipelines.find(spec), nullptr) << to_string(spec);
  }
}

// A kernel that no call of the list reaches is one that no test reaches either.
TEST(KernelSources, AreAllUsedByTheCaseList) {
  const DeviceFacts facts = core_facts(kWorkgroupBytes[0]);
  std::vector<KernelSpec> kernels = kernels_of_list(facts);
  const std::vector<KernelSpec> more = kernels_of_list(with_subgroups(facts));
  kernels.insert(kernels.end(), more.begin(), more.end());
  for (const Source& source : kernel_sources()) {
    if (source.name.starts_with(kUnrolled)) continue;
    const bool used = std::ranges::any_of(
        kernels, [&](const KernelSpec& spec) { return source.name == spec.source; });
    EXPECT_TRUE(used || source.name == "probe" || source.name == "rate") << source.name;
  }
}

}  // namespace
}  // namespace attn::webgpu::test
