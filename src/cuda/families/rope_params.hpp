// Parameters of passes/rope.cu, for rotary embedding inside attention and for attn::rope.
#pragma once

#include <attn/arguments.hpp>
#include <cstdint>

#include "cuda/host/modules.hpp"
#include "cuda/kernels/passes/rope.cuh"

namespace attn::cuda {

// The kernel. One Config serves every type and shape.
KernelSpec rope_kernel();

// Which pairs are rotated, and by which angle.
struct Rotation {
  Rope style = Rope::half;
  std::int64_t rot_dim = 0;
  double base = 10000.0;
  std::int64_t offset = 0;
  TensorView cos, sin;  // if given, they replace base
};
void set_rotation(const Rotation& rotation, device::rope::Params& params);

// A job for tensors [batch, rows, heads, dim] or [total, heads, dim]. With rot_dim 0, nothing
// is rotated; elements are converted and stored.
device::rope::Job rope_job(const TensorView& from, const TensorView& to,
                           const TensorView& positions, Rope style, std::int64_t rot_dim,
                           device::rope::RowKind kind);

// The number of blocks for one tensor.
std::int64_t rope_blocks(std::int64_t batch, std::int64_t rows, std::int64_t heads);

}  // namespace attn::cuda
