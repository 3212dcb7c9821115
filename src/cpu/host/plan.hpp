// The CPU plan: a pure function of pass, problem, threads and measured tiles. What a result's bits
// depend on (tiles, splits) never depends on the threads; what changes no bit (the backward's
// blocks, tasks and slots of sums) may.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>
#include <optional>
#include <span>

#include "core/plan.hpp"
#include "cpu/host/config.hpp"
#include "cpu/host/tiles.hpp"

namespace attn::cpu {

// One set of independent tasks.
enum class Step : std::uint8_t {
  append,         // decode: k_new and v_new into the cache
  rotate_q,       // rope, into the workspace
  rotate_k,       //
  scan_mask,      // the range of keys that each row of the mask leaves
  fill_gaps,      // packed: rows that no sequence covers
  pack_keys,      // bf16 engines: keys and values, into the workspace
  forward,        // o, or partial results of each split of the keys
  merge_splits,   //
  row_sums,       // backward: delta, and the keys that strips of rows see
  backward_kv,    // dk and dv
  backward_qkv,   // dk, dv and dq
  backward_q,     // dq
  bias_gradient,  //
  sink_gradient,  //
  rotate_dq,      // rope: gradients of the rotated q and k, rotated back
  rotate_dk,
};
// "forward", "backward_kv", ...
const char* to_string(Step step);

// What multiplies the problem's tiles; nothing where its plan has no tiles to choose: with few
// query rows.
std::optional<Engine> engine_with_tiles(Pass pass, const Problem& problem, Engine bf16);

struct CpuPlan final : core::Plan {
  // `bf16`: the engine for bf16 problems on this machine. `tuned`: tiles that were measured for the
  // problem; those that don't fit are passed over.
  CpuPlan(Pass pass, const Problem& problem, std::int32_t threads, Engine bf16,
          const std::optional<Tiles>& tuned = std::nullopt);
  [[nodiscard]] PlanSummary summary() const override;
  // In the order of their launch.
  [[nodiscard]] std::span<const Step> steps() const { return {steps_.data(), num_steps_}; }

  Config config;
  bool tuned = false;  // tiles were measured
  std::int32_t threads;
  std::int64_t scratch_bytes = 0;  // of one worker

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
