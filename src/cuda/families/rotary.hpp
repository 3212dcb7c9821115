// Rotary embedding inside attention, by passes/rope.cu before and after the kernels of any family.
// Families plan the problem without it: their q, k and gradients are copies in the workspace.
//
//   forward    q, k -> rotated copies; the family's kernels
//   decode     q, k_new -> rotated copies; the family's kernels. Cached keys are rotated already
//   backward   q, k -> rotated copies; the family's kernels write dq and dk in f32; these are
//   rotated
//              by the negative angle, rounded once and stored. dv is a copy too where gradients
//              accumulate or non-finite elements are replaced, which the last pass then does.
#pragma once

#include <attn/arguments.hpp>
#include <span>
#include <string>

#include "cuda/families/rope_params.hpp"
#include "cuda/host/launch.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda {

// Why passes can't do it; "" if they can.
std::string rotary_refusal(Pass pass, const Problem& problem);
// What the family plans.
Problem without_rope(Pass pass, const Problem& problem);
// Adds passes and copies to the family's plan.
void add_rotary(Pass pass, const Problem& problem, CudaPlan& plan);

// The tensors and parameters of a call of such a plan.
class RotaryCall {
 public:
  RotaryCall(const CudaPlan& plan, const Arguments& arguments, void* workspace);
  RotaryCall(const RotaryCall&) = delete;
  RotaryCall& operator=(const RotaryCall&) = delete;

  // With the copies in place of q, k (or k_new) and gradients.
  [[nodiscard]] const Arguments& tensors() const { return tensors_; }
  // `common`: of these tensors. Leaves to the last pass what it does.
  void take_gradients(device::Arguments& common);
  // Parameters of the passes, and of the kernels that write dbias and dsink.
  void set_parameters(std::span<KernelLaunch> launches);

 private:
  const CudaPlan& plan_;
  const Arguments& given_;
  Arguments tensors_;
  device::Arguments common_;  // as the caller's gradients are to be written
  device::rope::Params before_;
  device::rope::Params after_;
};

}  // namespace attn::cuda
