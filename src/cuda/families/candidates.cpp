// Candidates of the tuner; see candidates.hpp.
#include "cuda/families/candidates.hpp"

#include <utility>

#include "cuda/families/tuned.hpp"
#include "cuda/host/occupancy.hpp"

namespace attn::cuda {
namespace {

// Limit of spills in bytes per thread, stored plus loaded. A few spills outside of the loops cost
// less than smaller tiles.
constexpr int kMostSpilled = 512;

}  // namespace

core::Status compile_candidates(const Family& family, Pass pass, const Problem& problem,
                                const DeviceFacts& facts, Binaries& binaries, int threads,
                                std::vector<TuneCandidate>& out) {
  const std::string key = family.tune_key(pass, problem);
  Tuned tuned("", facts.name);
  DeviceFacts with = facts;
  with.tuned = &tuned;
  std::vector<CudaPlan> plans;
  std::vector<Config> configs;
  for (std::string& tiles : family.tune_candidates(pass, problem, facts)) {
    tuned.use(key, tiles);
    core::Result<CudaPlan> plan =
        family.plan(pass, problem, with, core::best_access(pass, problem));
    if (!plan.ok()) return core::Status::unsupported("cuda: " + plan.reason());
    out.push_back({std::move(tiles), ""});
    plans.push_back(std::move(plan).value());
    for (const KernelSpec& spec : plans.back().specs()) configs.push_back(spec.config);
  }
  // A candidate that does not compile has a flaw. It is an error only if no candidate compiles.
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
        continue;
      }
      // A binary from our cache on disk has no log; in the log of one from NVRTC's cache there are
      // no figures. Such a candidate is measured.
      const ResourceReport report = read_resources(binary->log);
      if (!report.kernels.empty()) out[i].flaw = flaw_of(report, spec, facts, kMostSpilled);
    }
  }
  return some ? core::Status{} : status;
}

}  // namespace attn::cuda
