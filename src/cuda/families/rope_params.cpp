// Parameters of passes/rope.cu; see rope_params.hpp.
#include "cuda/families/rope_params.hpp"

#include <cmath>

#include "core/divide_up.hpp"
#include "core/strided.hpp"
#include "core/validate.hpp"
#include "cuda/host/arguments.hpp"

namespace attn::cuda {
namespace {

static_assert(2 * device::rope::kMaxPairs == core::kMaxDim);

// x modulo 1 in units of 2^-64.
unsigned long long fraction_of(long double x) {
  const long double scaled = std::ldexp(x - std::floor(x), 64);
  return scaled < 0x1p64L ? static_cast<unsigned long long>(scaled) : 0;
}

// The kernel's chunks of 8 elements begin at multiples of 8 within a vector.
bool chunks_are_aligned(Rope style, std::int64_t rot_dim) {
  const std::int64_t pairs = rot_dim / 2;
  return style == Rope::half ? pairs % 8 == 0 : rot_dim % 8 == 0;
}

}  // namespace

KernelSpec rope_kernel() {
  KernelSpec spec;
  spec.config = Config("passes/rope.cu");
  spec.entry = "attn_rope";
  spec.threads = device::rope::kThreads;
  return spec;
}

void set_rotation(const Rotation& rotation, device::rope::Params& params) {
  constexpr long double kTwoPi = 6.283185307179586476925286766559L;
  params.interleaved = rotation.style == Rope::interleaved ? 1 : 0;
  params.offset = rotation.offset;
  if (rotation.cos.given()) {
    params.cosines = static_cast<const char*>(rotation.cos.address());
    params.sines = static_cast<const char*>(rotation.sin.address());
    params.cosines_stride = core::stride_bytes(rotation.cos, 0);
    params.sines_stride = core::stride_bytes(rotation.sin, 0);
    params.table_rows = static_cast<int>(rotation.cos.shape[0]);
    return;
  }
  const auto base = static_cast<long double>(rotation.base);
  for (std::int64_t m = 0; m < rotation.rot_dim / 2; ++m) {
    const auto exponent =
        static_cast<long double>(-2 * m) / static_cast<long double>(rotation.rot_dim);
    params.frequency[m] = fraction_of(std::pow(base, exponent) / kTwoPi);
  }
}

device::rope::Job rope_job(const TensorView& from, const TensorView& to,
                           const TensorView& positions, Rope style, std::int64_t rot_dim,
                           device::rope::RowKind kind) {
  device::rope::Job job;
  job.from = device_rows(from);
  job.to = device_rows(to);
  if (!chunks_are_aligned(style, rot_dim)) job.from.vector = job.to.vector = 0;
  job.positions = device_indices(positions);
  const bool packed = from.rank == 3;
  const std::size_t first = packed ? 0 : 1;
  job.num_rows = from.shape[first];
  job.heads = static_cast<int>(from.shape[first + 1]);
  job.dim = static_cast<int>(from.shape[first + 2]);
  job.pairs = static_cast<int>(rot_dim / 2);
  job.kind = kind;
  job.packed = packed ? 1 : 0;
  job.blocks =
      static_cast<unsigned>(rope_blocks(packed ? 1 : from.shape[0], job.num_rows, job.heads));
  return job;
}

std::int64_t rope_blocks(std::int64_t batch, std::int64_t rows, std::int64_t heads) {
  return heads == 0 ? 0 : batch * core::divide_up(rows, device::rope::kRows);
}

}  // namespace attn::cuda
