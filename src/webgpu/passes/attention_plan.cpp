// Implements attention_plan.hpp.
#include "webgpu/passes/attention_plan.hpp"

#include <numbers>

#include "webgpu/passes/geometry.hpp"

namespace attn::webgpu {
namespace {

constexpr std::uint32_t kSequenceWords = 8;  // of `info`, per sequence

void set_sizes(const Problem& p, AttentionPlan& plan) {
  AttentionParameters& common = plan.common;
  common.dim_qk = u32(p.dim_qk);
  common.dim_vo = u32(p.dim_vo);
  common.heads_q = u32(p.heads_q);
  common.packed =
      (p.layout_q == Layout::packed ? 1u : 0u) | (p.layout_kv == Layout::packed ? 2u : 0u);
  common.len_q = u32(p.len_q);
  common.len_kv = u32(p.len_kv);
  common.rows = u32(p.layout_q == Layout::packed ? p.total_q : p.batch * p.len_q);
  common.splits = 1;
  PrepareParameters& prepare = plan.prepare;
  prepare.batch = u32(p.batch);
  prepare.heads_q = common.heads_q;
  prepare.len_q = common.len_q;
  prepare.len_kv = common.len_kv;
  prepare.total_q = u32(p.total_q);
  prepare.total_kv = u32(p.total_kv);
  prepare.packed = common.packed;
  prepare.len_new = u32(p.len_new);
}

void set_score_modifiers(const Problem& p, AttentionParameters& to) {
  to.bias_type = p.bias.given ? 1 + number_of(p.bias_type()) : 0;
  to.mask_given = p.mask.given ? 1 : 0;
  constexpr auto kLog2E = std::numbers::log2e_v<float>;
  to.unit = p.bias.given ? 1.0f : kLog2E;
  to.to_log2 = p.bias.given ? kLog2E : 1.0f;
}

// Lays out `info`, which prepare.wgsl writes. No part starts at 0, because 0 means absent.
void lay_out_info(const Problem& p, AttentionPlan& plan) {
  AttentionParameters& common = plan.common;
  PrepareParameters& prepare = plan.prepare;
  std::uint64_t words = kSequenceWords;
  const auto reserve = [&](std::uint64_t n) {
    const std::uint64_t at = words;
    words += n;
    return static_cast<U32>(at);
  };
  const auto batch = static_cast<std::uint64_t>(p.batch);
  common.sequences_at = prepare.sequences_at = reserve(batch * kSequenceWords);
  if (p.alibi) common.slopes_at = prepare.slopes_at = reserve(batch * common.heads_q);
  if (p.sink) common.sinks_at = prepare.sinks_at = reserve(common.heads_q);
  common.key_ranges_at = prepare.key_ranges_at = reserve(std::uint64_t{common.rows} * 2);
  if (plan.path == AttentionPlan::Path::backward) {
    common.lse_delta_at = reserve(std::uint64_t{common.rows} * common.heads_q * 2);
  }
  for (PlannedKernel* kernel : {&plan.forward, &plan.dq, &plan.dkv, &plan.dbias}) {
    if (!kernel->runs) continue;
    kernel->tiles.tiles_at = reserve(batch * kernel->tiles.count_q(p) * 2);
    kernel->tiles.keys_at = reserve(batch * kernel->tiles.count_kv(p) * 2);
  }
  plan.info_bytes = words * 4;
}

}  // namespace

KernelSpec kernel_spec(const char* source, const char* entry) {
  KernelSpec spec;
  spec.source = source;
  spec.entry = entry == nullptr ? source : entry;
  return spec;
}

void add_input_constants(Pass pass, const Problem& p, KernelSpec& spec) {
  // Rotated rows stay in f32, so that they are not rounded again, and kernels read k and v in one
  // type. The keys of a cache were rotated when they were appended.
  const bool rotates = p.rope != Rope::none;
  const bool rotates_keys = rotates && pass != Pass::decode;
  spec.add_constant("TYPE_Q", number_of(rotates ? DType::f32 : p.dtype));
  spec.add_constant("TYPE_KV", number_of(rotates_keys ? DType::f32 : p.kv_type()));
  spec.add_constant("DROPOUT", p.dropout ? 1 : 0);
}

std::uint32_t score_options(const Problem& p, const DeviceFacts& facts) {
  // CPU drivers compile slowly, so one kernel serves all options there.
  const bool any = p.bias.given || p.mask.given || !facts.unrolls;
  return any ? 2 : p.softcap || p.alibi ? 1 : 0;
}

AttentionPlan plan_attention(Pass pass, const Problem& problem, const DeviceFacts& facts) {
  using Path = AttentionPlan::Path;
  AttentionPlan plan;
  plan.facts = facts;
  plan.path = pass == Pass::backward  ? Path::backward
              : takes_decode(problem) ? Path::decode
                                      : Path::forward;
  set_sizes(problem, plan);
  set_score_modifiers(problem, plan.common);
  switch (plan.path) {
    case Path::forward: plan_forward(pass, problem, plan); break;
    case Path::decode: plan_decode(pass, problem, plan); break;
    case Path::backward: plan_backward(problem, plan); break;
  }
  lay_out_info(problem, plan);
  return plan;
}

}  // namespace attn::webgpu
