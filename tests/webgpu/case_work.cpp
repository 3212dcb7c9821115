// Cases as dispatches; see case_work.hpp.
#include "case_work.hpp"

#include <algorithm>
#include <attn/attn.hpp>
#include <unordered_set>

#include "core/signature.hpp"
#include "harness/check.hpp"
#include "harness/throw_if_failed.hpp"
#include "operation_work.hpp"
#include "webgpu/host/plan.hpp"
#include "webgpu/passes/attention.hpp"

namespace attn::webgpu::test {
namespace {

struct HashSpec {
  std::size_t operator()(const KernelSpec& spec) const { return hash_value(spec); }
};

}  // namespace

CaseWork::CaseWork(const harness::Case& c, const DeviceFacts& facts, bool with_forward)
    : inputs(c), output_set(c, DType::none) {
  const std::string why = refusal(c.problem, facts);
  if (!why.empty()) throw Error(ErrorCode::unsupported, why);
  if (with_forward && c.pass == Pass::backward) harness::give_forward(c, inputs);
  run.add(inputs.tensors);
  run.add(output_set.tensors);
  Arguments& a = inputs.arguments;
  output_set.give(a);
  Arguments there = a;
  for (const core::Slot& slot : core::slots_of(c.pass, c.problem)) {
    there.*slot.view = slot.use != core::Use::ignored ? run.moved(a.*slot.view) : TensorView{};
  }
  if (a.seed.device != nullptr) there.seed = *a.seed.device;
  if (a.offset.device != nullptr) there.offset = *a.offset.device;
  harness::throw_if_failed(make_work(WebGpuPlan(c.pass, c.problem, facts), there, run.work));
}

std::vector<Output> CaseWork::outputs(const harness::Case& c) const {
  std::vector<Output> outputs;
  for (harness::Expected& x : harness::expected_of(c)) {
    const TensorView view = *output_set.find(x.name);
    outputs.push_back({x.name, view, std::move(x.values), std::move(x.tolerances)});
  }
  return outputs;
}

std::vector<KernelSpec> kernels_of_list(const DeviceFacts& facts) {
  std::unordered_set<KernelSpec, HashSpec> kernels;
  const auto insert = [&](const Work& work) {
    for (const Dispatch& dispatch : work.dispatches) kernels.insert(dispatch.spec);
  };
  for (const harness::Case& c : harness::case_list()) {
    if (!refusal(c.problem, facts).empty()) continue;
    Work work;
    if (work_of_problem(WebGpuPlan(c.pass, c.problem, facts), work).ok()) insert(work);
  }
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Operation& operation : operations(dtype, facts)) insert(operation.run.work);
  }
  std::vector<KernelSpec> sorted(kernels.begin(), kernels.end());
  std::ranges::sort(sorted, {}, [](const KernelSpec& spec) { return to_string(spec); });
  return sorted;
}

}  // namespace attn::webgpu::test
