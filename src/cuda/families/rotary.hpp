// Rotary embedding inside attention, and f8 queries where a family has no kernel for them: by
// passes/rope.cu before and after the kernels of any family. Families plan the problem without
// either. Their q, k and gradients are copies in the workspace.
//
//   f8 q       q -> a copy in bf16, or f16 if o is f16; the family's kernels read f8 k and v.
//              descale_q becomes a factor of descale_k. Where the products would not have the shape
//              of descale_k, or the family's kernel rounds k times its descale, the copy is
//              q times descale_q, rounded
//   forward    q, k -> rotated copies; the family's kernels. k and v that are paged or of an 8-bit
//              type are both copied, in the type of q. The copy of a paged cache has its pages in
//              the order of the keys, and a block table in which missing pages stay missing
//   decode     q, k_new -> rotated copies; the family's kernels. Cached keys are rotated already
//   backward   q, k -> rotated copies; the family's kernels write dq and dk in f32; the last pass
//              rotates them by the negative angle, rounds once and stores them. dv is a copy too
//              if gradients accumulate or non-finite elements are replaced: the last pass does it.
#pragma once

#include <attn/arguments.hpp>
#include <span>
#include <string>

#include "cuda/families/rope_params.hpp"
#include "cuda/host/launch.hpp"
#include "cuda/host/plan.hpp"

namespace attn::cuda {

// Why passes/rope.cu can't write the copies; "" if it can.
std::string rotary_refusal(Pass pass, const Problem& problem);
// The problem that the family plans.
Problem problem_on_copies(Pass pass, const Problem& problem);
// Adds the rope kernels and the copies to the family's plan.
void add_rotary(Pass pass, const Problem& problem, CudaPlan& plan);

// The tensors and parameters of a call of such a plan.
class RotaryCall {
 public:
  RotaryCall(const CudaPlan& plan, const Arguments& arguments, void* workspace);
  RotaryCall(const RotaryCall&) = delete;
  RotaryCall& operator=(const RotaryCall&) = delete;

  // The arguments with q, k (or k_new) and gradients replaced by the copies.
  [[nodiscard]] const Arguments& tensors() const { return tensors_; }
  // `common` must be computed from tensors(). Removes accumulation and the replacement of
  // non-finite elements from it, because the last pass does both.
  void take_gradients(device::Arguments& common);
  // Sets the parameters of the rope kernels, and of the kernels that write dbias and dsink.
  void set_parameters(std::span<KernelLaunch> launches);

 private:
  void set_cache_jobs();
  void set_queries_descale(std::span<KernelLaunch> launches);

  const CudaPlan& plan_;
  const Arguments& given_;
  Arguments tensors_;
  device::Arguments common_;  // with the caller's options for gradients
  device::rope::Params before_;
  device::rope::Params after_;
};

}  // namespace attn::cuda
