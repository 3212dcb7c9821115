// CellRun: a cell with its tensors in host or device memory, ready to be called and timed.
#pragma once

#include <attn/attn.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "bench/cells.hpp"
#include "bench/inputs.hpp"
#include "harness/device.hpp"
#include "harness/place.hpp"
#include "harness/webgpu.hpp"

namespace attn::bench {

// The device that cells run on. At most one is open; cells on the host open none.
struct Opened {
  explicit Opened(const harness::Place& place);

  std::unique_ptr<harness::DeviceQueue> cuda;
  std::unique_ptr<harness::WebgpuQueue> webgpu;
  // The device of the tensors, for plan queries.
  Device device = Device::host;
};

class CellRun {
 public:
  virtual ~CellRun() = default;
  // The first call; for a backward, after the forward that it needs. Its results are in the inputs
  // when it returns.
  virtual void call_once() = 0;
  // Calls until the time budget is used, a few times at least; appends the seconds of each to
  // `out`.
  virtual void sample(double budget, std::vector<double>& out) = 0;
  // Memory that the call uses in addition to its tensors: workspace and what the backend kept.
  [[nodiscard]] virtual std::int64_t extra_bytes() const = 0;
};

// All arguments must outlive the run.
std::unique_ptr<CellRun> ready(Context& context, const Cell& cell, const Inputs& inputs,
                               const Opened& opened);

}  // namespace attn::bench
