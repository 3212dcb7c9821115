// The CPU plan: a pure function of pass, problem, threads and measured tiles. Tiles and splits
// change the bits of a result, so they never depend on the number of threads. The backward's
// blocks, tasks and buffers of sums change no bits, so they may.
#pragma once

#include <array>
#include <attn/problem.hpp>
#include <cstdint>
#include <optional>
#include <span>

#include "core/plan.hpp"
#include "cpu/host/config.hpp"
#include "cpu/host/tiles.hpp"

namespace attn::cpu {

// A step is one set of independent tasks.
enum class Step : std::uint8_t {
  append,    // decode: k_new and v_new into the cache
  rotate_q,  // rope: a rotated copy in the workspace
  rotate_k,
  scan_mask,  // finds the range of keys that each row of the mask leaves
  fill_gaps,  // packed: rows that no sequence covers
  pack_keys,  // packs all keys and values into the workspace
  forward,    // o, or partial results of each split of the keys
  merge_splits,
  row_sums,      // backward: delta, and the range of keys that each strip of rows sees
  backward_kv,   // dk and dv
  backward_qkv,  // dk, dv and dq
  backward_q,    // dq
  bias_gradient,
  sink_gradient,
  rotate_dq,  // rope: rotates the gradients of the rotated q and k back
  rotate_dk,
};
// "forward", "backward_kv", ...
const char* to_string(Step step);

// The engine of the problem; nullopt if its plan has no tiles to choose (few query rows).
std::optional<Engine> engine_with_tiles(Pass pass, const Problem& problem, Engine bf16);

struct CpuPlan final : core::Plan {
  // `bf16`: the engine for bf16 problems on this machine. `tuned`: tiles that were measured for the
  // problem; they are ignored if they do not fit.
  CpuPlan(Pass pass, const Problem& problem, std::int32_t threads, Engine bf16,
          const std::optional<Tiles>& tuned = std::nullopt);
  [[nodiscard]] PlanSummary summary() const override;
  // In launch order.
  [[nodiscard]] std::span<const Step> steps() const { return {steps_.data(), num_steps_}; }

  Config config;
  bool tuned = false;  // the measured tiles are in use
  std::int32_t threads;
  std::int64_t scratch_bytes = 0;  // per worker

 private:
  template <class T>
  void size_workspace();
  void add(Step step) { steps_[num_steps_++] = step; }
  void add_rotations();
  void add_forward();
  void add_backward();

  std::array<Step, 12> steps_{};
  std::size_t num_steps_ = 0;
};

}  // namespace attn::cpu
