// The CUDA plan; see plan.hpp.
#include "cuda/host/plan.hpp"

#include <limits>
#include <string>

#include "cuda/host/table.hpp"

namespace attn::cuda {
namespace {

// Ampere: cp.async and mma.sync of bf16.
constexpr int kLeastCapability = 80;
// Kernels add tiles to lengths in 32 bits.
constexpr std::int64_t kMaxLength = (std::int64_t{1} << 30) - 1;
constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::int32_t>::max();

bool is_f8(DType dtype) {
  return dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}

std::int64_t divide_up(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

// Blocks of the forward. Does not overflow: the rows of all heads are at most 2^57.
std::int64_t blocks_of(const Problem& p, const Tiles& tiles) {
  return divide_up(p.len_q, tiles.tile_q) * p.heads_q * p.batch;
}

std::string refusal(Pass pass, const Problem& p, const DeviceFacts& facts) {
  if (facts.capability() < kLeastCapability) {
    return "needs compute capability 8.0 or later, cuda:" + std::to_string(facts.ordinal) + " is " +
           to_string(facts);
  }
  if (is_f8(p.dtype) || is_f8(p.kv_type())) return "no kernel for f8 types on CUDA yet";
  if (p.dtype == DType::f64) return "no kernel for f64 on CUDA; f16 and bf16 are supported";
  if (p.dtype == DType::f32) return "no kernel for f32 on CUDA yet; f16 and bf16 are supported";
  if (p.kv_type() != p.dtype) return "no kernel for k and v of another type than q on CUDA yet";
  if (p.page_size > 0) return "no kernel for paged caches on CUDA yet";
  if (p.len_new > 0) return "no kernel that appends to a cache on CUDA yet";
  if (p.rope != Rope::none) return "no kernel with rotary embedding on CUDA yet";
  if (pass == Pass::backward) return "no kernel for the backward on CUDA yet";
  if (p.len_q > kMaxLength || p.len_kv > kMaxLength) {
    return "found len_q=" + std::to_string(p.len_q) + " len_kv=" + std::to_string(p.len_kv) +
           "; kernels on CUDA take lengths below 2^30";
  }
  const Shape shape = shape_of(pass, p);
  const auto tiles = choose_tiles(shape, facts);
  if (!tiles) {
    return "no tiles fit cuda:" + std::to_string(facts.ordinal) + ", " + to_string(facts) +
           ", with " + std::to_string(facts.shared_per_block) +
           " bytes of shared memory for a block";
  }
  if (blocks_of(p, *tiles) > kMaxBlocks) {
    return "found " + std::to_string(divide_up(p.len_q, tiles->tile_q)) + " tiles of queries of " +
           std::to_string(p.heads_q) + " heads of " + std::to_string(p.batch) +
           " entries; a grid has fewer than 2^31 of them";
  }
  return {};
}

// A kernel of the plan: `blocks` along x.
KernelSpec& add(DevicePlan& plan, const char* source, const char* entry, unsigned threads,
                std::int64_t blocks) {
  KernelSpec& spec = plan.kernels[plan.num_kernels];
  spec.config = Config(source);
  spec.entry = entry;
  spec.threads = threads;
  plan.blocks[plan.num_kernels++] = static_cast<unsigned>(blocks);
  return spec;
}

// The constants of the main kernels.
void set_constants(Config& config, const Problem& p, const Shape& shape, const Tiles& tiles) {
  config.set("dtype", static_cast<int>(p.dtype))
      .set("dim_qk", shape.dim_qk)
      .set("dim_vo", shape.dim_vo)
      .set("tile_q", tiles.tile_q)
      .set("tile_kv", tiles.tile_kv)
      .set("warps", tiles.warps)
      .set("stages", tiles.stages)
      .set("blocks", tiles.blocks)
      .set("q_in_registers", tiles.q_in_registers)
      .set("softcap", shape.softcap)
      .set("alibi", shape.alibi)
      .set("bias_type", p.bias.given ? static_cast<int>(p.bias_type()) : 0)
      .set("mask", shape.mask)
      .set("dropout", shape.dropout);
}

// What is printed: of the main kernel.
void describe(DevicePlan& plan, const char* name, const Config& config, const Tiles& tiles,
              std::int64_t tasks) {
  plan.plan.kernel = name;
  plan.plan.tile_q = tiles.tile_q;
  plan.plan.tile_kv = tiles.tile_kv;
  plan.plan.tasks = tasks;
  for (std::size_t i = 0; i < config.size() && i < plan.plan.config.size(); ++i) {
    plan.plan.config[i] = config[i];
  }
}

DevicePlan plan_forward(const Problem& p, const DeviceFacts& facts) {
  DevicePlan plan;
  const Shape shape = shape_of(Pass::forward, p);
  const auto tiles = choose_tiles(shape, facts);
  if (!tiles) return plan;  // check_support() refused
  KernelSpec& forward = add(plan, "portable/forward.cu", "attn_forward",
                            static_cast<unsigned>(32 * tiles->warps), blocks_of(p, *tiles));
  set_constants(forward.config, p, shape, *tiles);
  forward.shared_bytes = static_cast<unsigned>(shared_bytes_of(shape, *tiles));
  describe(plan, "cuda_forward", forward.config, *tiles, blocks_of(p, *tiles));
  return plan;
}

}  // namespace

core::Capability check_support(Pass pass, const Problem& problem, const DeviceFacts& facts) {
  std::string reason = refusal(pass, problem, facts);
  const bool supported = reason.empty();
  return {supported, std::move(reason)};
}

DevicePlan make_plan(Pass pass, const Problem& problem, const DeviceFacts& facts) {
  if (pass == Pass::backward) return {};
  return plan_forward(problem, facts);
}

}  // namespace attn::cuda
