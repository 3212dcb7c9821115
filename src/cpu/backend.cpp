// Implements core::Backend on the CPU.
#include "cpu/backend.hpp"

#include <memory>

#include "cpu/host/launch.hpp"
#include "cpu/host/plan.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {
namespace {

class CpuBackend final : public core::Backend {
 public:
  const char* name() const override { return "cpu"; }
  Device device() const override { return Device::host; }

  bool usable(std::string& detail) const override {
    detail = std::string(target_name()) + " (usable: " + usable_target_names() + "), bf16 by " +
             to_string(bf16_problems_engine());
    const tuned::TunedFile& file = my_tuned_tiles();
    if (file.size() > 0) {
      detail += ", tiles of " + std::to_string(file.size()) + " kinds of problems by attn tune";
    }
    if (!file.problem().empty()) detail += ", " + file.problem();
    return true;
  }

  core::Result<core::PlanPointer> plan(Pass pass, const Problem& problem, core::Access,
                                       const core::Executor& executor) const override {
    const Engine bf16 = bf16_problems_engine();
    return core::PlanPointer(std::make_shared<const CpuPlan>(pass, problem, executor.threads, bf16,
                                                             tuned_tiles(pass, problem, bf16)));
  }

  core::Status prepare(const core::Plan&, const core::Executor&) const override {
    target_name();  // choosing the instruction set is all that a first call would add
    return {};
  }

  core::Status launch(const core::Plan& plan, const Arguments& arguments,
                      const core::Executor& executor) const override {
    target_name();
    cpu::launch(static_cast<const CpuPlan&>(plan), arguments, executor);
    return {};
  }

  core::Status merge(const MergeArguments& arguments,
                     const core::Executor& executor) const override {
    launch_merge(arguments, executor);
    return {};
  }
  core::Status merge_backward(const MergeBackwardArguments& arguments,
                              const core::Executor& executor) const override {
    launch_merge_backward(arguments, executor);
    return {};
  }
  core::Status rope(const RopeArguments& arguments, const core::Executor& executor) const override {
    launch_rope(arguments, executor);
    return {};
  }

  core::Status tune_key(Pass pass, const Problem& problem, const core::Executor&,
                        std::string& key) const override {
    const std::optional<Engine> engine = engine_with_tiles(pass, problem, bf16_problems_engine());
    if (!engine) return no_tiles();
    key = cpu::tune_key(pass, problem, *engine);
    return {};
  }
  core::Status tune_candidates(Pass pass, const Problem& problem, const core::Executor&,
                               std::vector<TuneCandidate>& candidates) const override {
    const std::optional<Engine> engine = engine_with_tiles(pass, problem, bf16_problems_engine());
    if (!engine) return no_tiles();
    for (const Tiles& tiles : candidate_tiles(pass, problem, *engine)) {
      candidates.push_back({to_string(tiles), ""});
    }
    return {};
  }
  core::Status tune_use(Pass pass, const Problem& problem, const std::string& tiles,
                        const core::Executor&) const override {
    const std::optional<Engine> engine = engine_with_tiles(pass, problem, bf16_problems_engine());
    if (!engine) return no_tiles();
    const std::optional<Tiles> parsed = parse_tiles(tiles);
    if (!parsed && !tiles.empty()) {
      return core::Status::invalid("cpu: tune_use: tiles: found '" + tiles +
                                   "'; accepted: tiles that tune_candidates() lists");
    }
    if (parsed) {
      const std::string why = misfit(pass, *engine, *parsed);
      if (!why.empty()) return core::Status::invalid("cpu: tune_use: " + tiles + ": " + why);
    }
    my_tuned_tiles().use(cpu::tune_key(pass, problem, *engine), tiles);
    return {};
  }
  core::Status tune_store(const core::Executor&, std::string& path) const override {
    path = my_tuned_tiles().path();
    return my_tuned_tiles().store();
  }

 private:
  static std::optional<Tiles> tuned_tiles(Pass pass, const Problem& problem, Engine bf16) {
    if (my_tuned_tiles().size() == 0) return std::nullopt;
    const std::optional<Engine> engine = engine_with_tiles(pass, problem, bf16);
    if (!engine) return std::nullopt;
    const auto found = my_tuned_tiles().find(cpu::tune_key(pass, problem, *engine));
    return found ? parse_tiles(*found) : std::nullopt;
  }
  static core::Status no_tiles() {
    return core::Status::unsupported(
        "cpu: tune: problems with few query rows have no tiles to choose");
  }
};

}  // namespace

const core::Backend& backend() {
  static const CpuBackend instance;
  return instance;
}

}  // namespace attn::cpu
