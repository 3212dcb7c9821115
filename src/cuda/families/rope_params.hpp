// Parameters of passes/rope.cu, for the passes around attention and for the operation rope.
#pragma once

#include <attn/arguments.hpp>
#include <cstdint>

#include "cuda/host/modules.hpp"
#include "cuda/kernels/passes/rope.cuh"

namespace attn::cuda {

// The kernel, which serves every type and shape.
KernelSpec rope_kernel();

// Which pairs turn, and by how much.
struct Rotation {
  Rope style = Rope::half;
  std::int64_t rot_dim = 0;
  double base = 10000.0;
  std::int64_t offset = 0;
  TensorView cos, sin;  // where given, instead of base
};
void set_rotation(const Rotation& rotation, device::rope::Params& params);

// A job for tensors [batch, rows, heads, dim] or [total, heads, dim]. rot_dim 0: nothing turns, the
// elements are converted and stored.
device::rope::Job rope_job(const TensorView& from, const TensorView& to,
                           const TensorView& positions, Rope style, std::int64_t rot_dim,
                           device::rope::RowKind kind);

// Blocks for the rows of one tensor.
std::int64_t rope_blocks(std::int64_t batch, std::int64_t rows, std::int64_t heads);

}  // namespace attn::cuda
