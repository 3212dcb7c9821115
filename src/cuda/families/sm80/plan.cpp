// Plans of the family sm80; see plan.hpp.
#include "cuda/families/sm80/plan.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/divide_up.hpp"
#include "core/signature.hpp"
#include "cuda/families/bias_gradient.hpp"
#include "cuda/families/cache_params.hpp"
#include "cuda/families/passes.hpp"
#include "cuda/families/sm80/decode_plan.hpp"
#include "cuda/families/sm80/forward_cache_plan.hpp"
#include "cuda/families/sm80/heuristics.hpp"
#include "cuda/families/sm80/score_config.hpp"
#include "cuda/families/sm80/search_space.hpp"
#include "cuda/families/sm80/tiles_text.hpp"
#include "cuda/families/sm80/value_slices.hpp"
#include "cuda/kernels/passes/backward_postprocess.cuh"
#include "cuda/kernels/passes/backward_preprocess.cuh"
#include "cuda/kernels/passes/sink_gradient.cuh"
#include "cuda/kernels/passes/uncovered_rows.cuh"

namespace attn::cuda::sm80 {
namespace {

// Ampere: cp.async and mma.sync of bf16.
constexpr int kMinCapability = 80;
// Kernels add tiles to lengths in 32 bits.
constexpr std::int64_t kMaxLength = (std::int64_t{1} << 30) - 1;
// passes/append_rows.cu counts rows in 32 bits.
constexpr std::int64_t kMaxNewRows = std::int64_t{1} << 32;

constexpr const char* kForwardEntry = "attn_forward";

// The parameters of a wide forward's launches.
using ValueSlices = std::array<device::Arguments, kMaxValueSlices>;
static_assert(sizeof(ValueSlices) <= sizeof(ParameterMemory));

core::Status set_value_slices(const ParameterSources& from, std::span<KernelLaunch> launches,
                              ParameterMemory& memory) {
  ValueSlices& slices = *std::construct_at(reinterpret_cast<ValueSlices*>(memory.bytes.data()));
  std::size_t n = 0;
  for (KernelLaunch& launch : launches) {
    if (launch.kernel->spec.entry != std::string_view(kForwardEntry)) continue;
    slices[n] = value_slice(from, n);
    launch.parameters = block_of(slices[n++]);
  }
  return {};
}

std::string no_tiles(Pass pass, const Problem& p, const DeviceFacts& facts) {
  const std::string device = "cuda:" + std::to_string(facts.ordinal) + ", " + to_string(facts) +
                             ", with " + std::to_string(facts.shared_per_block) +
                             " bytes of shared memory for a block";
  if (pass == Pass::backward && is_wide(p) && p.bias.given && p.dtype != DType::f32) {
    return "no tiles of the backward with a bias and head dims above 256 fit " + device +
           "; without a bias they do";
  }
  return "no tiles fit " + device;
}

std::string refusal(const Problem& p, const DeviceFacts& facts) {
  if (facts.capability() < kMinCapability) {
    return "needs compute capability 8.0 or later, cuda:" + std::to_string(facts.ordinal) + " is " +
           to_string(facts);
  }
  if (p.dtype == DType::f64) return "no kernel for f64 on CUDA; f32, f16 and bf16 are supported";
  if (p.len_q > kMaxLength || p.len_kv > kMaxLength) {
    return "found len_q=" + std::to_string(p.len_q) + " len_kv=" + std::to_string(p.len_kv) +
           "; kernels on CUDA take lengths below 2^30";
  }
  if (p.batch * p.len_new * p.heads_kv >= kMaxNewRows) {
    return "found " + std::to_string(p.batch * p.len_new * p.heads_kv) +
           " rows of k_new (batch * len_new * heads_kv); CUDA appends fewer than 2^32";
  }
  return {};
}

KernelSpec& add_main(CudaPlan& plan, const char* source, const char* entry, const Shape& shape,
                     const Tiles& tiles, std::int64_t blocks) {
  plan.main = plan.num_kernels;
  KernelSpec& spec = plan.add(source, entry, static_cast<unsigned>(32 * tiles.warps), blocks);
  spec.shared_bytes = static_cast<unsigned>(shared_bytes_of(shape, tiles));
  spec.config.set("tile_q", tiles.tile_q)
      .set("tile_kv", tiles.tile_kv)
      .set("warps", tiles.warps)
      .set("stages", tiles.stages)
      .set("blocks", tiles.blocks);
  return spec;
}

CudaPlan plan_forward(Pass pass, const Problem& p, const Shape& shape, const Tiles& tiles,
                      bool element_access) {
  CudaPlan plan(pass, p);
  const bool reads_cache = uses_forward_cache_kernel(pass, p);
  add_uncovered_rows(plan, p);
  add_append(plan, p);
  const std::int64_t blocks = core::divide_up(p.len_q, tiles.tile_q) * p.heads_q * p.batch;
  const auto add_slice = [&] {
    KernelSpec& main =
        add_main(plan, reads_cache ? "sm80/forward_cache.cu" : "sm80/forward.cu",
                 reads_cache ? kForwardCacheEntry : kForwardEntry, shape, tiles, blocks);
    set_problem(main.config, p, shape, element_access);
    main.config.set("q_in_registers", tiles.q_in_registers);
    if (reads_cache) main.config.set("kv_type", static_cast<int>(p.kv_type()));
  };
  for (std::int64_t first = 0; first < p.dim_vo; first += kMaxValueDim) add_slice();
  return plan;
}

// For narrow heads, dbias has its own kernel if at least this many sequences share the bias. In the
// main kernel, each dS would be a reduction of 4 bytes in global memory, which takes longer than
// the two matrix products of the separate kernel.
constexpr std::int64_t kManySharers = 16;

// Kernels: row statistics; then dk, dv and dq_accum; then dq, dbias and dsink.
CudaPlan plan_backward(const Problem& p, const Shape& shape, const Tiles& tiles,
                       const DeviceFacts& facts, bool element_access) {
  CudaPlan plan(Pass::backward, p);
  const bool packed_q = p.layout_q == Layout::packed;
  const bool needs_main = p.dq || p.dk || p.dv;
  // Not with softcap, because the main kernel's dS includes its derivative. Not with element
  // access, which is too rare for another kernel. The problem decides this, not the call's access,
  // so that the workspace is the same for every access.
  const bool many_additions = is_narrow(p) && p.bias.sharers(p.batch) >= kManySharers;
  const bool adds_bias = !p.softcap && p.dtype != DType::f32 && !many_additions &&
                         core::best_access(Pass::backward, p) != core::Access::element &&
                         can_sum_bias_gradient(p, facts);
  const bool separate_dbias = p.dbias && !adds_bias;
  plan.workspace = lay_out(p, {.tile_q = tiles.tile_q,
                               .dim = p.dq ? shape.dim_qk : 0,
                               .dq_semaphores = p.dq && p.deterministic ? 1 : 0,
                               .dq_ordered = p.dq && p.deterministic,
                               .splits = separate_dbias ? bias_gradient_splits(p, facts) : 1,
                               .dbias_accum = adds_bias});
  plan.workspace_bytes = plan.workspace.bytes;

  const std::int64_t tiles_q = core::divide_up(p.len_q, tiles.tile_q) * p.heads_q * p.batch;
  // Even without queries, there may be sums to set to zero: dq of packed rows that belong to no
  // sequence, or dbias.
  const std::int64_t least = plan.workspace.zeros_bytes() > 0 ? 1 : 0;
  KernelSpec& preprocess =
      plan.add("passes/backward_preprocess.cu", "attn_backward_preprocess",
               device::backward_preprocess::kThreads, std::max(tiles_q, least));
  preprocess.config.set("tile_q", tiles.tile_q);
  if (p.layout_kv == Layout::packed && (p.dk || p.dv) && !p.accumulate) {
    plan.add("passes/uncovered_rows.cu", "attn_uncovered_gradients",
             device::uncovered_rows::kThreads,
             core::divide_up(p.total_kv, device::uncovered_rows::kRows));
  }
  const std::int64_t blocks =
      needs_main ? core::divide_up(p.len_kv, tiles.tile_kv) * p.heads_kv * p.batch : 0;
  KernelSpec& main = add_main(plan, "sm80/backward.cu", "attn_backward", shape, tiles, blocks);
  set_problem(main.config, p, shape, element_access);
  main.config.set("chunk", tiles.chunk)
      .set("bias_gradient", adds_bias)
      .set("p_ds_in_smem", tiles.p_ds_in_smem)
      .set("split_dk_dv", tiles.split_dk_dv)
      .set("split_s_dp", tiles.split_s_dp)
      .set("kv_in_registers", tiles.kv_in_registers);
  if (p.dq) {
    const std::int64_t rows = packed_q ? p.total_q : p.len_q;
    plan.add("passes/backward_postprocess.cu", "attn_backward_postprocess",
             device::backward_postprocess::kThreads,
             core::divide_up(rows, device::backward_postprocess::kRows) * p.heads_q *
                 (packed_q ? 1 : p.batch))
        .config.set("sole_tile_q", 0)
        .set("sole_tile_kv", 0);
  }
  if (separate_dbias) add_bias_gradient(plan, p, facts, element_access);
  if (adds_bias) add_bias_gradient_convert(plan, p);
  if (p.dsink) {
    plan.add("passes/sink_gradient.cu", "attn_sink_gradient", device::sink_gradient::kThreads,
             p.heads_q);
  }
  return plan;
}

class Sm80 final : public Family {
 public:
  const char* name() const override { return "sm80"; }

  core::Result<CudaPlan> plan(Pass pass, const Problem& problem, const DeviceFacts& facts,
                              core::Access access) const override {
    using Planned = core::Result<CudaPlan>;
    if (std::string why = refusal(problem, facts); !why.empty()) {
      return Planned::none(std::move(why));
    }
    if (uses_decode_kernel(pass, problem)) {
      if (std::string why = decode_refusal(problem, facts); !why.empty()) {
        return Planned::none(std::move(why));
      }
      return plan_decode(pass, problem, facts, access);
    }
    const Shape shape = shape_of(pass, problem);
    const auto tiles = choose_tiles(shape, facts);
    if (!tiles) return Planned::none(no_tiles(pass, problem, facts));
    const bool element_access = access == core::Access::element;
    if (pass == Pass::backward) {
      return plan_backward(problem, shape, *tiles, facts, element_access);
    }
    return plan_forward(pass, problem, shape, *tiles, element_access);
  }

  core::Status set_parameters(const ParameterSources& from, std::span<KernelLaunch> launches,
                              ParameterMemory& memory) const override {
    if (uses_forward_cache_kernel(from.plan.pass, from.problem)) {
      return set_forward_cache_params(from, launches, memory);
    }
    if (from.plan.pass != Pass::backward && is_wide(from.problem)) {
      return set_value_slices(from, launches, memory);
    }
    // Without queries a decode has no tiles, but appends new rows.
    if (from.plan.decode.tiles == 0 && from.problem.len_new == 0) return {};
    return set_decode_params(from, launches, memory);
  }

  std::string tune_key(Pass pass, const Problem& problem) const override {
    if (uses_decode_kernel(pass, problem)) return {};
    // The Shape does not tell this kernel from sm80/forward.cu.
    if (uses_forward_cache_kernel(pass, problem)) return {};
    return to_string(shape_of(pass, problem));
  }
  std::vector<std::string> tune_candidates(Pass pass, const Problem& problem,
                                           const DeviceFacts& facts) const override {
    std::vector<std::string> list;
    for (const Tiles& tiles : candidate_tiles(shape_of(pass, problem), facts)) {
      list.push_back(to_string(tiles));
    }
    return list;
  }
  std::string tune_misfit(Pass pass, const Problem& problem, const std::string& text,
                          const DeviceFacts& facts) const override {
    const std::optional<Tiles> tiles = parse_tiles(text);
    return tiles ? misfit(shape_of(pass, problem), *tiles, facts) : "can't read the tiles";
  }
};

}  // namespace

const Family& family() {
  static const Sm80 instance;
  return instance;
}

}  // namespace attn::cuda::sm80
