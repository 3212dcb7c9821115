// Operations; see operations.hpp.
#include "cuda/operations.hpp"

#include <array>
#include <initializer_list>
#include <optional>
#include <string>

#include "core/divide_up.hpp"
#include "cuda/families/rope_params.hpp"
#include "cuda/host/arguments.hpp"
#include "cuda/host/launch.hpp"
#include "cuda/kernels/passes/merge.cuh"

namespace attn::cuda {
namespace {

// cvt to bf16 needs compute capability 8.0.
constexpr int kMinCapability = 80;
struct Named {
  const char* name;
  const TensorView& view;
};
using Tensors = std::initializer_list<Named>;

// A launch of an operation: a kernel and the number of blocks.
struct Operation {
  const char* name;
  const KernelSpec& kernel;
  std::int64_t blocks;
  ParameterBlock parameters;
};

KernelSpec spec_of(const char* source, const char* entry, int threads) {
  KernelSpec spec;
  spec.config = Config(source);
  spec.entry = entry;
  spec.threads = static_cast<unsigned>(threads);
  return spec;
}

core::Status unsupported(const char* operation, const std::string& why) {
  return core::Status::unsupported(std::string("cuda: ") + operation + ": " + why);
}

core::Status check(const Operation& operation, const Tensors& tensors, const Driver& driver,
                   int ordinal) {
  const DeviceFacts* facts = nullptr;
  core::Status status = device_facts(driver, ordinal, facts);
  if (!status.ok()) return status;
  if (facts->capability() < kMinCapability) {
    return unsupported(operation.name, "needs compute capability 8.0 or later, cuda:" +
                                           std::to_string(ordinal) + " is " + to_string(*facts));
  }
  if (operation.blocks > kMaxBlocks) {
    return unsupported(operation.name, "found " + std::to_string(operation.blocks) +
                                           " blocks; a grid has fewer than 2^31 of them");
  }
  for (const auto& [name, view] : tensors) {
    if (!view.given()) continue;
    if (view.dtype == DType::f64) {
      return unsupported(operation.name,
                         "no kernel for f64 on CUDA; f32, f16 and bf16 are supported");
    }
    status = check_pointer(driver, name, view.address(), ordinal);
    if (!status.ok()) return status;
  }
  return {};
}

core::Status launch(const Operation& operation, const Tensors& tensors,
                    const std::optional<void*>& stream, const core::Executor& executor) {
  if (operation.blocks == 0) return {};
  std::string reason;
  const Driver& driver = *Driver::get(reason);
  const CurrentContext context(driver, executor.ordinal);
  if (!context.status().ok()) return context.status();
  core::Status status = check(operation, tensors, driver, executor.ordinal);
  if (!status.ok()) return status;
  const Kernel* kernel = nullptr;
  const abi::Stream queue = stream_of(stream.value_or(nullptr));
  status = find_or_load(Modules::of(driver, executor.cache_dir), context, {&operation.kernel, 1},
                        queue, {&kernel, 1});
  if (!status.ok()) return status;
  status = launch_kernel(
      context, {kernel, {static_cast<unsigned>(operation.blocks)}, operation.parameters}, queue);
  if (status.ok()) executor.report_launch(operation.kernel.entry);
  return status;
}

// A warp processes a row with 8 elements per lane, so at most 256 elements.
core::Status check_dim(const char* operation, const TensorView& o) {
  constexpr std::int64_t kMost = 256;
  const std::int64_t dim = o.shape[static_cast<std::size_t>(o.rank - 1)];
  if (dim <= kMost) return {};
  return unsupported(operation, "elements of a row: found " + std::to_string(dim) +
                                    "; accepted up to 256 on CUDA");
}

// o is [batch, rows, heads, dim] or [rows, heads, dim].
device::merge::Sizes sizes_of(const TensorView& o) {
  const bool packed = o.rank == 3;
  const std::size_t first = packed ? 0 : 1;
  device::merge::Sizes sizes;
  sizes.batch = packed ? 1 : static_cast<int>(o.shape[0]);
  sizes.rows = static_cast<int>(o.shape[first]);
  sizes.heads = static_cast<int>(o.shape[first + 1]);
  sizes.dim = static_cast<int>(o.shape[first + 2]);
  return sizes;
}

}  // namespace

const KernelSpec& merge_kernel() {
  return operation_kernels()[0];
}
const KernelSpec& merge_backward_kernel() {
  return operation_kernels()[1];
}

std::span<const KernelSpec> operation_kernels() {
  static const std::array kKernels{
      spec_of("passes/merge.cu", "attn_merge", device::merge::kThreads),
      spec_of("passes/merge.cu", "attn_merge_backward", device::merge::kThreads), rope_kernel()};
  return kKernels;
}

std::int64_t merge_blocks(const device::merge::Sizes& sizes) {
  // The output has an element for each line, so the product does not overflow.
  const std::int64_t lines = std::int64_t{sizes.batch} * sizes.rows * sizes.heads;
  return core::divide_up(lines, device::merge::kLines);
}

device::merge::Params merge_params(const MergeArguments& a) {
  return {.o1 = device_rows(a.o1),
          .lse1 = device_statistics(a.lse1),
          .o2 = device_rows(a.o2),
          .lse2 = device_statistics(a.lse2),
          .o = device_rows(a.o),
          .lse = device_statistics(a.lse),
          .sizes = sizes_of(a.o)};
}

device::merge::BackwardParams merge_params(const MergeBackwardArguments& a) {
  return {.o1 = device_rows(a.o1),
          .lse1 = device_statistics(a.lse1),
          .o2 = device_rows(a.o2),
          .lse2 = device_statistics(a.lse2),
          .o = device_rows(a.o),
          .dout = device_rows(a.dout),
          .dlse = device_statistics(a.dlse),
          .dout1 = device_rows(a.dout1),
          .dlse1 = device_statistics(a.dlse1),
          .dout2 = device_rows(a.dout2),
          .dlse2 = device_statistics(a.dlse2),
          .sizes = sizes_of(a.o)};
}

device::rope::Params rope_params(const RopeArguments& a) {
  const bool packed = a.x.rank == 3;
  const std::int64_t dim = a.x.shape[packed ? 2 : 3];
  const std::int64_t rot_dim = a.rot_dim == 0 ? dim : a.rot_dim;
  device::rope::Params params;
  set_rotation({a.style, rot_dim, a.base, a.pos_offset, a.cos, a.sin}, params);
  params.jobs[0] = rope_job(a.x, a.out, a.positions, a.style, rot_dim, device::rope::kQueries);
  params.inverse = a.inverse ? 1 : 0;
  params.every_row = 1;
  // Positions count from the start of a sequence. A packed tensor without cu_len has no sequences,
  // so its rows are counted from the start of the tensor.
  device::Arguments& lengths = params.common;
  lengths.packed_q = packed ? 1 : 0;
  lengths.batch = packed ? 0 : static_cast<int>(a.x.shape[0]);
  lengths.max_len_q = lengths.total_q = static_cast<int>(a.x.shape[packed ? 0 : 1]);
  if (a.cu_len.given()) {
    lengths.batch = static_cast<int>(a.cu_len.shape[0] - 1);
    lengths.cu_len_q = {static_cast<const int*>(a.cu_len.address()), a.cu_len.strides[0]};
  }
  return params;
}

core::Status run(const MergeArguments& a, const core::Executor& executor) {
  if (core::Status status = check_dim("merge", a.o); !status.ok()) return status;
  const device::merge::Params params = merge_params(a);
  return launch(
      {"merge", merge_kernel(), merge_blocks(params.sizes), block_of(params)},
      {{"o1", a.o1}, {"lse1", a.lse1}, {"o2", a.o2}, {"lse2", a.lse2}, {"o", a.o}, {"lse", a.lse}},
      a.stream, executor);
}

core::Status run(const MergeBackwardArguments& a, const core::Executor& executor) {
  const bool writes = a.dout1.given() || a.dlse1.given() || a.dout2.given() || a.dlse2.given();
  if (!writes) return {};
  if (core::Status status = check_dim("merge_backward", a.o); !status.ok()) return status;
  const device::merge::BackwardParams params = merge_params(a);
  return launch(
      {"merge_backward", merge_backward_kernel(), merge_blocks(params.sizes), block_of(params)},
      {{"o1", a.o1},
       {"lse1", a.lse1},
       {"o2", a.o2},
       {"lse2", a.lse2},
       {"o", a.o},
       {"lse", a.lse},
       {"dout", a.dout},
       {"dlse", a.dlse},
       {"dout1", a.dout1},
       {"dlse1", a.dlse1},
       {"dout2", a.dout2},
       {"dlse2", a.dlse2}},
      a.stream, executor);
}

core::Status run(const RopeArguments& a, const core::Executor& executor) {
  const bool packed = a.x.rank == 3;
  const std::int64_t heads = a.x.shape[packed ? 1 : 2];
  if (heads > device::rope::kMaxHeads) {
    return unsupported("rope",
                       "heads: found " + std::to_string(heads) + "; accepted up to 2^23 on CUDA");
  }
  const std::int64_t blocks =
      rope_blocks(packed ? 1 : a.x.shape[0], a.x.shape[packed ? 0 : 1], heads);
  const device::rope::Params params = rope_params(a);
  return launch({"rope", operation_kernels()[2], blocks, block_of(params)},
                {{"x", a.x},
                 {"out", a.out},
                 {"positions", a.positions},
                 {"cu_len", a.cu_len},
                 {"cos", a.cos},
                 {"sin", a.sin}},
                a.stream, executor);
}

}  // namespace attn::cuda
