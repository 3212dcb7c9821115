// Family: the kernels of one generation of instructions, and what the host knows of them.
// make_plan.hpp asks them in order.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "cuda/host/launch.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda {

// Memory for the parameters of a call's launches. Tensor maps in it have to be 64-byte aligned.
struct alignas(64) ParameterMemory {
  std::array<std::byte, kMaxParameterBytes> bytes;
};

// What the parameters of a call are computed from. The tensors were validated.
struct ParameterSources {
  const Driver& driver;
  const CudaPlan& plan;
  const Arguments& tensors;
  const device::Arguments& common;
  void* workspace;  // plan.workspace_bytes
};

class Family {
 public:
  virtual ~Family() = default;
  // As in explain() and in the names of folders.
  [[nodiscard]] virtual const char* name() const = 0;
  // The plan of calls whose tensors allow `access`, or why this family has none: a pure function.
  // The problem has no rotary embedding, which passes do for every family (rotary.hpp).
  // Tensors, name and limits of the grid are left to make_plan().
  [[nodiscard]] virtual core::Result<CudaPlan> plan(Pass pass, const Problem& problem,
                                                    const DeviceFacts& facts,
                                                    core::Access access) const = 0;
  // For launches of this family's plan, one per kernel, each with the common Arguments as its
  // parameters: gives kernels that take another structure theirs, built in `memory`.
  virtual core::Status set_parameters(const ParameterSources& /*from*/,
                                      std::span<KernelLaunch> /*launches*/,
                                      ParameterMemory& /*memory*/) const {
    return {};
  }

  // Tuning (attn/tune.hpp), of problems that plan() takes. The key of the choice that problems like
  // this share; empty: its kernels have no tiles to choose.
  [[nodiscard]] virtual std::string tune_key(Pass, const Problem&) const { return {}; }
  // The tiles worth measuring, which fit the device by the model of tune_misfit(); as text.
  [[nodiscard]] virtual std::vector<std::string> tune_candidates(Pass, const Problem&,
                                                                 const DeviceFacts&) const {
    return {};
  }
  // Why these tiles can't be taken on the device; empty where they can.
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
