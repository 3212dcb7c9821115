// The CUDA plan: what a call launches. Made by a kernel family (families/family.hpp) as a pure
// function of pass, problem, access and device facts, so tests need no device.
#pragma once

#include <attn/problem.hpp>
#include <span>

#include "core/backend.hpp"
#include "core/plan.hpp"
#include "core/signature.hpp"
#include "cuda/host/loaded_kernels.hpp"
#include "cuda/host/modules.hpp"
#include "cuda/host/workspace.hpp"

namespace attn::cuda {

class Family;

// The grid of sm80/decode.cu: tiles x splits blocks.
struct DecodeGrid {
  std::int64_t tiles = 0;      // tiles of rows of all key heads and sequences
  std::int64_t row_tiles = 1;  // tiles of rows of one key head of one sequence
  std::int64_t tile_rows = 0;  // rows of a tile
  std::int64_t splits = 1;
  std::int64_t split_keys = 0;  // keys per split; 0: split the keys that a tile sees evenly
  bool cluster = false;         // the splits of a tile form a cluster
  bool wide = false;            // blocks of 8 warps instead of 4
};

// Copies in the workspace that the rope pass writes (families/rotary.hpp): q and k, or k_new,
// after the rotation; v and the block table of a cache that the forward copies; the products of
// descale_q and descale_k; gradients in f32 before the inverse rotation.
struct RotaryParts {
  Part q, k;
  Part v, table;
  Part descales;
  Part dq, dk, dv;
};

// sm90: what the parameters of a call need of the kernels' Configs, most of it of the main one's.
// Kept here because a look-up of a constant by its name takes 60 ns.
struct TmaTiles {
  std::int64_t q = 0;
  std::int64_t heads = 1;
  std::int64_t kv = 0;
  std::uint32_t qk_bytes = 0;  // bytes of a row of q and k in shared memory
  std::uint32_t vo_bytes = 0;  // likewise of v
  bool stores_o = false;       // by TMA
  bool stores_dbias = false;   // by TMA
};

// The kernels in order, each with a one-dimensional grid. A kernel's parameters are the common
// Arguments (kernels/shared/arguments.cuh), unless the family has its own structure for it.
struct CudaPlan final : core::Plan {
  struct Tensor {
    const char* name = "";
    TensorView Arguments::* view = nullptr;
  };
  using core::Plan::Plan;
  [[nodiscard]] PlanSummary summary() const override;

  // Appends a kernel with this number of blocks. The caller sets constants in the returned spec.
  KernelSpec& add(const char* source, const char* entry, unsigned threads, std::int64_t num_blocks);

  // Inserts a kernel before the others.
  void add_first(const KernelSpec& spec, std::int64_t num_blocks);

  std::array<KernelSpec, kMaxKernels> kernels{};
  std::array<std::int64_t, kMaxKernels> blocks{};  // 0: nothing to do
  Workspace workspace;
  // The rope pass runs first and writes copies for the other kernels; in a backward, it also runs
  // last.
  bool runs_on_copies = false;
  Problem on_copies;  // the problem that the family planned, if `runs_on_copies`
  RotaryParts rotary;
  DecodeGrid decode;
  TmaTiles tma;
  // What these kernels need. workspace_bytes also suffices for the plans of other families.
  std::int64_t scratch_bytes = 0;
  int heads_at_once = 1;  // dynamic tile scheduler: query heads whose K and V fit L2 together
  std::size_t num_kernels = 0;
  std::size_t main = 0;                           // the kernel that the summary describes
  std::array<Tensor, core::kMaxSlots> tensors{};  // whose pointers the call checks
  std::size_t num_tensors = 0;
  core::Access access = core::Access::element;  // of the calls
  const Family* family = nullptr;               // that made the plan
  const char* family_name = "";
  mutable LoadedKernels loaded;
  std::string refusals;  // why preferred families have no plan: "sm90: needs ..."

  [[nodiscard]] std::span<const KernelSpec> specs() const { return {kernels.data(), num_kernels}; }
};

}  // namespace attn::cuda
