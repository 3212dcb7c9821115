// Family: the kernels for one instruction set, and their host side. make_plan.hpp tries the
// families in order.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cuda/host/launch.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda {

// Memory for the parameters of a call's launches. Aligned for tensor maps.
struct alignas(64) ParameterMemory {
  std::array<std::byte, 2 * kMaxParameterBytes> bytes;
};

// The inputs of set_parameters(). The tensors are validated.
struct ParameterSources {
  const Driver& driver;
  const CudaPlan& plan;
  const Problem& problem;  // that the family planned, without rotary embedding
  const Arguments& tensors;
  const device::Arguments& common;
  void* workspace;  // plan.workspace_bytes
};

class Family {
 public:
  virtual ~Family() = default;
  // The name in explain() and of the folders.
  [[nodiscard]] virtual const char* name() const = 0;
  // The plan of calls whose tensors allow `access`, or why this family has none. A pure function.
  // The problem has no rotary embedding: separate kernels apply it for every family (rotary.hpp).
  // make_plan() fills in tensors and the family's name, and checks the limits of the grid.
  [[nodiscard]] virtual core::Result<CudaPlan> plan(Pass pass, const Problem& problem,
                                                    const DeviceFacts& facts,
                                                    core::Access access) const = 0;
  // `launches` has one launch per kernel of the plan, with the common Arguments as parameters. For
  // kernels with another parameter structure, builds it in `memory` and sets it in their launch.
  virtual core::Status set_parameters(const ParameterSources& /*from*/,
                                      std::span<KernelLaunch> /*launches*/,
                                      ParameterMemory& /*memory*/) const {
    return {};
  }

  // Tuning (attn/tune.hpp), for problems that plan() supports. The key under which problems share
  // their tiles; empty: the problem's kernels have no tiles to tune.
  [[nodiscard]] virtual std::string tune_key(Pass, const Problem&) const { return {}; }
  // The tiles worth measuring, as text. They fit the device according to tune_misfit().
  [[nodiscard]] virtual std::vector<std::string> tune_candidates(Pass, const Problem&,
                                                                 const DeviceFacts&) const {
    return {};
  }
  // Why these tiles can't be used on the device; empty if they can.
  [[nodiscard]] virtual std::string tune_misfit(Pass, const Problem&, const std::string& /*tiles*/,
                                                const DeviceFacts&) const {
    return "no tiles to choose";
  }

 protected:
  Family() = default;
  Family(const Family&) = default;
  Family& operator=(const Family&) = default;
};

}  // namespace attn::cuda
