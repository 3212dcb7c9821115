// Plans of calls, without a device: what is refused with which message, and how much scratch memory
// a call needs.
#include "webgpu/host/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "case_work.hpp"
#include "core/access.hpp"
#include "dry_run.hpp"
#include "webgpu/host/run.hpp"
#include "webgpu/passes/attention.hpp"

namespace attn::webgpu::test {
namespace {

DeviceFacts least_facts() {
  return core_facts(16384);
}

Problem long_problem(DType dtype, std::int64_t len) {
  Problem p;
  p.dtype = dtype;
  p.batch = 1;
  p.heads_q = p.heads_kv = 1;
  p.len_q = p.len_kv = len;
  p.dim_qk = p.dim_vo = 64;
  p.lse = true;
  return p;
}

std::string reason(const Problem& problem, const DeviceFacts& facts, Pass pass = Pass::forward) {
  return make_plan(pass, problem, facts).reason();
}

TEST(Support, RefusesTooSmallWorkgroupMemory) {
  DeviceFacts facts = least_facts();
  EXPECT_EQ(reason(long_problem(DType::f32, 100), facts), "");
  facts.workgroup_bytes = 8192;
  EXPECT_EQ(reason(long_problem(DType::f32, 100), facts),
            "the device has 8192 bytes of workgroup memory; needed are 16384");
}

TEST(Support, RefusesTypesThatTheLanguageLacks) {
  EXPECT_EQ(reason(long_problem(DType::f64, 100), least_facts()),
            "no kernel for f64 on WebGPU; accepted f32, f16 and bf16");
}

TEST(Support, RefusesLengthsThat32BitsCannotCount) {
  const std::int64_t most = std::int64_t{1} << 28;
  EXPECT_EQ(reason(long_problem(DType::f32, most + 1), least_facts()),
            "sequences of more than 2^28 rows");
}

TEST(Support, TakesEveryDimWithTheLeastWorkgroupMemory) {
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::decode}) {
    for (const auto& [dim_qk, dim_vo] : {std::pair{512, 512}, {257, 1}, {1, 257}}) {
      Problem problem = long_problem(DType::f16, 100);
      problem.dim_qk = dim_qk;
      problem.dim_vo = dim_vo;
      problem.dropout = true;
      problem.rope = dim_qk == 512 && pass != Pass::decode ? Rope::half : Rope::none;
      problem.dq = problem.dk = problem.dv = pass == Pass::backward;
      EXPECT_EQ(reason(problem, least_facts(), pass), "") << dim_qk << " " << dim_vo;
    }
  }
}

TEST(Support, RefusesAHeadThatCannotBeBound) {
  DeviceFacts facts = least_facts();
  facts.max_storage_binding_bytes = 1 << 20;
  const std::string found = reason(long_problem(DType::f32, 65536), facts);
  EXPECT_NE(found.find("this device binds at most 1048576 at once"), std::string::npos) << found;
}

TEST(Support, RefusesMoreSplitsThanAGridHas) {
  Problem problem = long_problem(DType::f32, 100);
  problem.len_q = 1;
  problem.split_keys = 1;
  DeviceFacts facts = least_facts();
  facts.max_grid = 64;
  const std::string found = reason(problem, facts, Pass::decode);
  EXPECT_NE(found.find("splits: found 100; this device's grids have at most 64"), std::string::npos)
      << found;
}

// Lengths past the grid's limit are cut, not refused. Copies and prepare.wgsl count in two
// dimensions.
TEST(Support, CutsWhatIsLongerThanAGrid) {
  DeviceFacts facts = least_facts();
  facts.max_grid = 8;
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::decode}) {
    Problem problem = long_problem(DType::f32, 4096);
    problem.dq = problem.dk = problem.dv = pass == Pass::backward;
    Work work;
    const core::Status status = work_of_problem(WebGpuPlan(pass, problem, facts), work);
    EXPECT_TRUE(status.ok()) << status.message;
    for (const Dispatch& dispatch : work.dispatches) {
      const std::string_view source = dispatch.spec.source;
      if (source == "prepare" || source == "copy") continue;
      EXPECT_LE(dispatch.grid[0], 8u) << to_string(dispatch.spec);
    }
  }
}

// A call runs the plan's kernels with the plan's constants, and no others, on tensors that allow
// the usual access. On other tensors it also copies.
TEST(Plan, HasTheKernelsOfTheCaseList) {
  const DeviceFacts facts = core_facts(32768);
  const std::vector<harness::Case> list = harness::case_list();
  std::size_t usual = 0;
  for (std::size_t n = 0; n < list.size(); n += 7) {
    const harness::Case& c = list[n];
    const core::Result<WebGpuPlan> plan = make_plan(c.pass, c.problem, facts);
    if (!plan.ok()) continue;
    const std::vector<KernelSpec>& planned = plan.value().kernels;
    const CaseWork call(c, facts, false);
    std::vector<KernelSpec> launched;
    for (const Dispatch& dispatch : call.run.work.dispatches) launched.push_back(dispatch.spec);
    // Problems with the access `element` do not say how their tensors lie.
    const core::Access access = core::best_access(c.pass, c.problem);
    if (access != core::Access::element &&
        core::access_of(c.pass, c.problem, call.inputs.arguments) == access) {
      EXPECT_TRUE(launched == planned) << to_string(c);
      ++usual;
      continue;
    }
    for (const KernelSpec& spec : launched) {
      const bool is_planned = std::ranges::find(planned, spec) != planned.end();
      EXPECT_TRUE(is_planned || spec.source == std::string_view("copy"))
          << to_string(c) << ": " << to_string(spec);
    }
  }
  EXPECT_GT(usual, list.size() / 7 / 4);
}

TEST(Memory, GrowsWithTheLengthAlone) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    std::uint64_t total = 0;
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      Problem problem = long_problem(dtype, 65536);
      problem.dq = problem.dk = problem.dv = pass == Pass::backward;
      Work work;
      const core::Status status = work_of_problem(WebGpuPlan(pass, problem, least_facts()), work);
      ASSERT_TRUE(status.ok()) << status.message;
      const Needs needs = needs_of(work);
      total += needs.info + needs.prepared + needs.staged + needs.parameters;
    }
    EXPECT_LT(total, std::uint64_t{64} << 20) << to_string(dtype);
    RecordProperty(std::string("bytes_") + to_string(dtype), std::to_string(total));
  }
}

// Dispatches of a kernel in the backward of the problem.
std::size_t count_of(std::string_view kernel, const Problem& problem, const DeviceFacts& facts) {
  Work work;
  const core::Status status = work_of_problem(WebGpuPlan(Pass::backward, problem, facts), work);
  EXPECT_TRUE(status.ok()) << status.message;
  return static_cast<std::size_t>(std::ranges::count_if(
      work.dispatches, [&](const Dispatch& dispatch) { return dispatch.spec.source == kernel; }));
}

class BiasGradients : public testing::Test {
 protected:
  BiasGradients() : problem(long_problem(DType::f32, 4097)), facts(core_facts(49152)) {
    facts.type = AdapterType::discrete;
    facts.submission_flops = 1e15;
    facts.max_storage_binding_bytes = std::uint64_t{1} << 31;
    problem.batch = 3;
    problem.heads_q = problem.heads_kv = 4;
    problem.dq = problem.dk = problem.dv = problem.dbias = true;
    problem.bias = {true, true, true, true, true};
  }
  // Dispatches of backward_q_bias if it computes dbias; 0 if bias_gradient does.
  [[nodiscard]] std::size_t made_with_dq() const {
    const std::size_t with_bias = count_of("backward_q_bias", problem, facts);
    EXPECT_EQ(count_of("bias_gradient", problem, facts) == 0, with_bias > 0);
    EXPECT_EQ(count_of("backward_q", problem, facts) > 0, problem.dq && with_bias == 0);
    return with_bias;
  }
  Problem problem;
  DeviceFacts facts;
};

TEST_F(BiasGradients, OfEveryPairComeWithDq) {
  EXPECT_EQ(made_with_dq(), 1u);
  problem.len_q = problem.len_kv = 1;
  EXPECT_EQ(made_with_dq(), 1u);
}

TEST_F(BiasGradients, OfAllEntriesComeWithDqWhereOneFillsTheDevice) {
  problem.bias.batch = false;
  EXPECT_EQ(made_with_dq(), 3u);
  problem.len_q = 1024;
  EXPECT_EQ(made_with_dq(), 0u);
  facts.type = AdapterType::cpu;
  EXPECT_EQ(made_with_dq(), 3u);
}

TEST_F(BiasGradients, OfOtherSumsHaveTheirOwnKernel) {
  problem.bias.head = false;
  EXPECT_EQ(made_with_dq(), 0u);
  problem.bias = {true, true, true, false, true};
  EXPECT_EQ(made_with_dq(), 0u);
  problem.bias = {true, true, true, true, false};
  EXPECT_EQ(made_with_dq(), 0u);
}

TEST_F(BiasGradients, HaveTheirOwnKernelBesideAMaskOrWithoutDq) {
  problem.mask = {true, false, false, true, true};
  EXPECT_EQ(made_with_dq(), 0u);
  problem.mask = {};
  problem.dq = false;
  EXPECT_EQ(made_with_dq(), 0u);
}

}  // namespace
}  // namespace attn::webgpu::test
