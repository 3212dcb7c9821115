// Cases of the list as dispatches, and the kernels that the list's calls take.
#pragma once

#include <vector>

#include "dry_run.hpp"
#include "harness/case.hpp"

namespace attn::webgpu::test {

struct CaseWork {
  // Throws Error (unsupported) with the backend's reason. `with_forward`: a backward's o and lse
  // are those of the forward; without, they hold anything, which the dispatches do not depend on.
  CaseWork(const harness::Case& c, const DeviceFacts& facts, bool with_forward = true);
  // From the reference.
  [[nodiscard]] std::vector<Output> outputs(const harness::Case& c) const;

  harness::Inputs inputs;
  harness::OutputSet output_set;
  DryRun run;
};

// The distinct kernels of the case list's calls on tensors that are contiguous, and of the
// operations of operation_work.hpp, on such a device.
std::vector<KernelSpec> kernels_of_list(const DeviceFacts& facts);

}  // namespace attn::webgpu::test
