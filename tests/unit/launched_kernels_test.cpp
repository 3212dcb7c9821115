// What launch starts is what plan() and explain() print, over the case list.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "api/state.hpp"
#include "harness/case.hpp"
#include "harness/inputs.hpp"

namespace attn {
namespace {

using Names = std::vector<std::string>;

void append_name(void* names, const char* kernel) {
  static_cast<Names*>(names)->emplace_back(kernel);
}

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text.append(" ").append(name);
  return text;
}

// Runs every `every`-th case on the backend, or as few as ATTN_CASE_LIMIT says (emulators,
// sanitizers). `aligned`: only those where tensors must be aligned to allow the access that
// questions without tensors assume, and are. Results are not looked at.
void check_launches(const char* backend, std::size_t every, bool aligned = false) {
  ContextOptions options;
  options.backend = backend;
  options.threads = 1;
  Context context(options);
  Names launched;
  const core::LaunchObserver observer{append_name, &launched};
  context.state().executor.observer = &observer;
  const std::vector<harness::Case> list = harness::case_list();
  const char* limit = std::getenv("ATTN_CASE_LIMIT");  // a number, or "all"
  const std::size_t most = limit != nullptr ? std::strtoul(limit, nullptr, 10) : 0;
  if (most > 0) every = std::max(every, list.size() / most);
  std::size_t ran = 0;
  for (std::size_t n = 0; n < list.size(); n += every) {
    const harness::Case& c = list[n];
    if (!supports(context, c.pass, c.problem).supported) continue;
    const std::string name = harness::to_string(c);
    const Names planned = plan(context, c.pass, c.problem).kernels;
    EXPECT_NE(explain(context, c.pass, c.problem).find("\nkernels:" + joined(planned) + "\n"),
              std::string::npos)
        << name;
    harness::Inputs inputs(c);
    const core::Access best = core::best_access(c.pass, c.problem);
    if (aligned && (best == core::Access::element ||
                    core::access_of(c.pass, c.problem, inputs.arguments) != best)) {
      continue;
    }
    harness::OutputSet outputs(c, DType::none);
    outputs.give(inputs.arguments);
    launched.clear();
    switch (c.pass) {
      case Pass::forward: forward(context, c.problem, inputs.arguments); break;
      case Pass::backward: backward(context, c.problem, inputs.arguments); break;
      case Pass::decode: decode(context, c.problem, inputs.arguments); break;
    }
    EXPECT_EQ(joined(launched), joined(planned)) << name;
    ++ran;
  }
  EXPECT_GT(ran * every, list.size() / 16) << ran << " of " << list.size() << " cases ran";
}

TEST(LaunchedKernels, Cpu) {
  check_launches("cpu", 4);
}

TEST(LaunchedKernels, Reference) {
  check_launches("reference", 12);
}

// On whatever device the machine has; pipelines take seconds each on a software device, so few. Its
// plans are those of aligned tensors: launch adds copies of tensors that are not.
TEST(LaunchedKernels, WebGpu) {
  if (std::getenv("ATTN_CASE_LIMIT") != nullptr) GTEST_SKIP() << "pipelines take too long here";
  Context context;
  const std::vector<BackendInfo> all = backends(context);
  const auto webgpu = std::ranges::find(all, "webgpu", &BackendInfo::name);
  if (webgpu == all.end() || !webgpu->usable) GTEST_SKIP() << "no WebGPU device";
  check_launches("webgpu", 311, true);
}

}  // namespace
}  // namespace attn
