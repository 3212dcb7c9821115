// The kernels that the case list's calls choose are compiled by the provider. Drivers compile at
// the first dispatch; what is seen here is the language and the limits.
#include <algorithm>
#include <cstdlib>
#include <thread>

#include "case_work.hpp"
#include "covering.hpp"
#include "support.hpp"
#include "webgpu/host/sources.hpp"

namespace attn::webgpu::test {
namespace {

// Pipelines are what a short run on a slow device pays for. To be lowered, never raised.
constexpr std::size_t kMostKernels = 1400;

using Kernels = OnDevice;

// With ATTN_EVERY_KERNEL=1 all that devices with 16 KiB get, of the others a covering part.
TEST_F(Kernels, OfTheCaseListCompile) {
  const bool every = std::getenv("ATTN_EVERY_KERNEL") != nullptr;
  std::vector<KernelSpec> chosen;
  for (const std::uint32_t bytes : {16384u, 32768u, 49152u}) {
    if (bytes > device().facts().workgroup_bytes) continue;
    const std::vector<KernelSpec> all = kernels_of_list(core_facts(bytes));
    EXPECT_LE(all.size(), kMostKernels);
    const std::vector<KernelSpec> more = every && chosen.empty() ? all : covering(all, chosen);
    chosen.insert(chosen.end(), more.begin(), more.end());
  }
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
  const std::vector<KernelSpec> kernels = kernels_of_list(core_facts(16384));
  for (const Source& source : kernel_sources()) {
    const bool used = std::ranges::any_of(
        kernels, [&](const KernelSpec& spec) { return source.name == spec.source; });
    const bool operation = source.name.starts_with("merge") || source.name == "probe";
    EXPECT_TRUE(used || operation) << source.name;
  }
}

}  // namespace
}  // namespace attn::webgpu::test
