// CellRun: a cell made ready to be called and timed, on the host's memory or on a device's.
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

// The device that cells run on: at most one is open, none on the host.
struct Opened {
  explicit Opened(const harness::Place& place);

  std::unique_ptr<harness::DeviceQueue> cuda;
  std::unique_ptr<harness::WebgpuQueue> webgpu;
  // Of the tensors that questions about plans are asked for.
  Device device = Device::host;
};

class CellRun {
 public:
  virtual ~CellRun() = default;
  // The first call (of a backward: behind the forward that it needs). Its results are in the inputs
  // when it returns.
  virtual void call_once() = 0;
  // Calls until the budget is spent, and a few at least; adds the seconds of each to `out`.
  virtual void sample(double budget, std::vector<double>& out) = 0;
  // Memory that the call uses beside its tensors: its workspace and what the backend kept.
  [[nodiscard]] virtual std::int64_t extra_bytes() const = 0;
};

// All that is given must outlive the run.
std::unique_ptr<CellRun> ready(Context& context, const Cell& cell, const Inputs& inputs,
                               const Opened& opened);

}  // namespace attn::bench
