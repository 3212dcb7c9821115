// The CUDA plan: what a call launches. Made by a kernel family (families/family.hpp), a pure
// function of pass, problem, access and device facts, tested without a device.
#pragma once

#include <attn/problem.hpp>
#include <span>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "core/signature.hpp"
#include "cuda/host/modules.hpp"
#include "cuda/host/workspace.hpp"

namespace attn::cuda {

inline constexpr std::size_t kMaxKernels = 10;

class Family;

// sm80/decode.cu: blocks are tiles times splits.
struct DecodeGrid {
  std::int64_t tiles = 0;      // of rows, of all key heads and entries
  std::int64_t row_tiles = 1;  // of one key head of one entry
  std::int64_t tile_rows = 0;  // rows of a tile
  std::int64_t splits = 1;
  std::int64_t split_keys = 0;  // keys of a split; 0: what a tile sees is cut evenly
};

// Copies of rows in the workspace for rotary embedding (families/rotary.hpp): q and k, or k_new,
// after the rotation; gradients in f32 before the inverse rotation.
struct RotaryParts {
  Part q, k;
  Part dq, dk, dv;
};

// The kernels in order, each with a grid of blocks along x. A kernel's parameters are the common
// Arguments (kernels/shared/arguments.cuh), unless the family gives it a structure of its own.
struct CudaPlan final : core::Plan {
  struct Tensor {
    const char* name = "";
    TensorView Arguments::* view = nullptr;
  };
  using core::Plan::Plan;
  [[nodiscard]] PlanSummary summary() const override;

  // Appends a kernel with this number of blocks, and returns it for its constants.
  KernelSpec& add(const char* source, const char* entry, unsigned threads, std::int64_t num_blocks);

  // Inserts one before the others.
  void add_first(const KernelSpec& spec, std::int64_t num_blocks);

  std::array<KernelSpec, kMaxKernels> kernels{};
  std::array<std::int64_t, kMaxKernels> blocks{};  // 0: nothing to do
  Workspace workspace;
  bool rotates = false;  // rotary embedding by the first kernel, and in the backward the last
  RotaryParts rotary;
  DecodeGrid decode;
  int heads_at_once = 1;  // dynamic tile scheduler: query heads whose K and V share L2
  std::size_t num_kernels = 0;
  std::size_t main = 0;                           // the kernel that the summary describes
  std::array<Tensor, core::kMaxSlots> tensors{};  // that the call may follow
  std::size_t num_tensors = 0;
  const Family* family = nullptr;  // the one that made it
  const char* family_name = "";
  std::string refusals;  // "sm90: needs ..."; of the families that were asked before

  [[nodiscard]] std::span<const KernelSpec> specs() const { return {kernels.data(), num_kernels}; }
};

}  // namespace attn::cuda
