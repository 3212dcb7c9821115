// Tiles worth measuring; see search_space.hpp.
#include "cuda/families/sm80/search_space.hpp"

#include <utility>

#include "cuda/families/sm80/tuned.hpp"
#include "cuda/host/occupancy.hpp"

namespace attn::cuda::sm80 {
namespace {

// Bytes of a thread, stored and loaded: a few outside of the loops cost less than smaller tiles do.
constexpr int kMostSpilled = 512;

constexpr device::BackwardSplit kSplits[] = {
    {}, {true, false, false}, {true, true, false}, {true, true, true}};

std::vector<Tiles> backward_candidates(const Shape& shape, const DeviceFacts& facts) {
  std::vector<Tiles> list;
  const bool wide = shape.dim_qk > kMaxValueDim;
  for (const int warps : {4, 8}) {
    for (const int tile_q : {32, 64, 128}) {
      for (const int tile_kv : wide ? std::array{16, 32} : std::array{64, 128}) {
        for (const int blocks : {1, 2}) {
          for (const int chunk : {16, 32}) {
            for (const device::BackwardSplit& split : kSplits) {
              for (const bool kv_in_registers : {false, true}) {
                if (split.p_ds_in_smem && kv_in_registers) continue;  // the same as without
                const Tiles tiles{.tile_q = tile_q,
                                  .tile_kv = tile_kv,
                                  .warps = warps,
                                  .stages = wide ? 1 : 2,
                                  .blocks = blocks,
                                  .chunk = chunk,
                                  .p_ds_in_smem = split.p_ds_in_smem,
                                  .split_dk_dv = split.split_dk_dv,
                                  .split_s_dp = split.split_s_dp,
                                  .kv_in_registers = kv_in_registers};
                if (misfit(shape, tiles, facts).empty()) list.push_back(tiles);
              }
            }
          }
        }
      }
    }
  }
  return list;
}

}  // namespace

std::vector<Tiles> candidate_tiles(const Shape& shape, const DeviceFacts& facts) {
  if (shape.pass == Pass::backward) return backward_candidates(shape, facts);
  std::vector<Tiles> list;
  for (const int warps : {4, 8}) {
    for (const int rows : {16, 32}) {
      for (const int tile_kv : {32, 64, 96, 128}) {
        for (const int stages : {1, 2, 3}) {
          for (const int blocks : {1, 2, 3, 4}) {
            for (const bool q_in_registers : {false, true}) {
              const Tiles tiles{warps * rows, tile_kv, warps, stages, blocks, q_in_registers};
              if (misfit(shape, tiles, facts).empty()) list.push_back(tiles);
            }
          }
        }
      }
    }
  }
  return list;
}

core::Status compile_candidates(Pass pass, const Problem& problem, const DeviceFacts& facts,
                                Binaries& binaries, int threads, std::vector<Candidate>& out) {
  const Shape shape = shape_of(pass, problem);
  Tuned tuned("", facts.name);
  DeviceFacts with = facts;
  with.tuned = &tuned;
  std::vector<CudaPlan> plans;
  std::vector<Config> configs;
  for (const Tiles& tiles : candidate_tiles(shape, facts)) {
    tuned.use(shape, tiles);
    core::Result<CudaPlan> plan =
        family().plan(pass, problem, with, core::best_access(pass, problem));
    if (!plan.ok()) return core::Status::unsupported("cuda: " + plan.reason());
    out.push_back({tiles, ""});
    plans.push_back(std::move(plan).value());
    for (const KernelSpec& spec : plans.back().specs()) configs.push_back(spec.config);
  }
  // One that does not compile is a flaw of its own, unless none does.
  core::Status status = binaries.get_all(configs, facts.capability(), threads);
  bool some = status.ok();
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const KernelSpec& spec : plans[i].specs()) {
      const Binary* binary = nullptr;
      const core::Status one = binaries.get(spec.config, facts.capability(), binary);
      some = some || one.ok();
      if (!out[i].flaw.empty()) continue;
      if (!one.ok()) {
        out[i].flaw = one.message.substr(0, one.message.find('\n'));
      } else if (!binary->log.empty()) {  // from the disk: not known
        out[i].flaw = flaw_of(read_resources(binary->log), spec, facts, kMostSpilled);
      }
    }
  }
  return some ? core::Status{} : status;
}

}  // namespace attn::cuda::sm80
