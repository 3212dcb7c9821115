// The CUDA backend as an implementation of core::Backend.
#include "cuda/backend.hpp"

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/aot.hpp"
#include "cuda/call.hpp"
#include "cuda/families/candidates.hpp"
#include "cuda/families/tuned.hpp"
#include "cuda/host/scratch.hpp"
#include "cuda/operations.hpp"

namespace attn::cuda {
namespace {

// "NVIDIA H200 (9.0, 132 SMs, 139.8 GiB) and 3 more, CUDA driver 13.0, NVRTC 13.0"
std::string describe_machine(const Driver& driver) {
  const DeviceFacts* facts = nullptr;
  const core::Status status = device_facts(driver, 0, facts);
  std::string text = status.ok() ? to_string(*facts) : status.message;
  if (driver.num_devices() > 1) {
    text += " and " + std::to_string(driver.num_devices() - 1) + " more";
  }
  text += ", CUDA driver " + version_text(driver.version());
  if (status.ok()) {
    const Tuned& tuned = Tuned::of(facts->name);
    if (tuned.size() > 0) {
      text += ", tiles of " + std::to_string(tuned.size()) + " kernels by attn tune";
    }
    if (!tuned.problem().empty()) text += ", " + tuned.problem();
  }
  std::string reason;
  const Nvrtc* nvrtc = Nvrtc::get(driver.version(), reason);
  if (nvrtc == nullptr) return text + "; only kernels compiled ahead: " + reason;
  return text + ", NVRTC " + version_text(nvrtc->version());
}

// The family that runs the problem, if it has tiles to tune.
core::Status family_to_tune(Pass pass, const Problem& problem, const DeviceFacts& facts,
                            const Family*& family) {
  const core::Result<CudaPlan> plan =
      make_plan(pass, problem, facts, core::Access::tma, family_choice());
  if (!plan.ok()) return core::Status::unsupported("cuda: tune: " + plan.reason());
  family = plan.value().family;
  const bool copies_f8 = core::is_f8(problem.dtype) && plan.value().runs_on_copies;
  if (!copies_f8 && !family->tune_key(pass, problem).empty()) return {};
  return core::Status::unsupported(std::string("cuda: tune: the kernels of ") + family->name() +
                                   ", which runs this " + to_string(pass) +
                                   ", have no tiles to tune; accepted forwards without a cache and "
                                   "with more than 16 queries, or backwards with "
                                   "ATTN_CUDA_FAMILY=sm80");
}

class CudaBackend final : public core::Backend {
 public:
  const char* name() const override { return "cuda"; }
  Device device() const override { return Device::cuda; }

  bool usable(std::string& detail) const override {
    const Driver* driver = Driver::get(detail);
    if (driver == nullptr) return false;
    detail = describe_machine(*driver);
    return true;
  }

  std::int32_t current_ordinal() const override {
    std::string reason;
    const Driver* driver = Driver::get(reason);
    return driver != nullptr ? CurrentContext::current_ordinal(*driver) : 0;
  }

  core::Result<core::PlanPointer> plan(Pass pass, const Problem& problem, core::Access access,
                                       const core::Executor& executor) const override {
    using Planned = core::Result<core::PlanPointer>;
    DeviceFacts facts;
    core::Status status = facts_of(executor.ordinal, facts);
    if (!status.ok()) return Planned::none(std::move(status.message));
    core::Result<CudaPlan> made = make_plan(pass, problem, facts, access, family_choice());
    if (!made.ok()) return Planned::none(made.reason());
    return core::PlanPointer(std::make_shared<const CudaPlan>(std::move(made).value()));
  }

  core::Status prepare(const core::Plan& plan, const core::Executor& executor) const override {
    std::string reason;
    const Driver& driver = *Driver::get(reason);
    Modules& modules = Modules::of(driver, executor.cache_dir);
    const CurrentContext context(driver, executor.ordinal);
    if (!context.status().ok()) return context.status();
    std::array<const Kernel*, kMaxKernels> kernels{};
    return modules.load_all(context, static_cast<const CudaPlan&>(plan).specs(), kernels);
  }

  core::Status launch(const core::Plan& of_call, const Arguments& arguments,
                      const core::Executor& executor) const override {
    const auto& plan = static_cast<const CudaPlan&>(of_call);
    std::string reason;
    const Driver& driver = *Driver::get(reason);
    const CurrentContext context(driver, executor.ordinal);
    if (!context.status().ok()) return context.status();
    core::Status status = check_pointers(driver, plan, arguments, executor.ordinal);
    if (!status.ok()) return status;
    Modules& modules = Modules::of(driver, executor.cache_dir);
    DeviceCall call{context, arguments, plan, executor, {}, nullptr, arguments.workspace};
    call.stream = stream_of(arguments.stream.value_or(nullptr));
    const auto kernels = std::span(call.kernels).first(plan.num_kernels);
    if (!plan.loaded.find(modules, context.id(), kernels)) {
      status = find_or_load(modules, context, plan.specs(), call.stream, kernels);
      if (!status.ok()) return status;
      plan.loaded.keep(modules, context.id(), kernels);
    }
    if (arguments.workspace != nullptr || plan.scratch_bytes == 0) return run(call);
    const Scratch scratch(context, plan.scratch_bytes, call.stream);
    if (!scratch.status().ok()) return scratch.status();
    call.workspace = scratch.data();
    return run(call);
  }

  core::Status merge(const MergeArguments& arguments,
                     const core::Executor& executor) const override {
    return run(arguments, executor);
  }
  core::Status merge_backward(const MergeBackwardArguments& arguments,
                              const core::Executor& executor) const override {
    return run(arguments, executor);
  }
  core::Status rope(const RopeArguments& arguments, const core::Executor& executor) const override {
    return run(arguments, executor);
  }

  core::Status cache_build(const CacheRequest& request, const core::Executor& executor,
                           CacheResult& result) const override {
    return build_ahead_of_time(request, cache_root(executor), result);
  }
  core::Status cache_list(const core::Executor& executor, std::string& folder,
                          std::vector<CacheEntry>* entries) const override {
    const Cache cache(cache_root(executor));
    folder = cache.folder();
    if (entries != nullptr) *entries = cache.list();
    return {};
  }
  core::Status cache_clear(const core::Executor& executor, std::int64_t& removed) const override {
    std::string failed;
    removed = Cache(cache_root(executor)).clear(failed);
    if (failed.empty()) return {};
    return core::Status::invalid("cuda: cache_clear: found " + failed +
                                 "; accepted a folder that can be written");
  }

  core::Status tune_key(Pass pass, const Problem& problem, const core::Executor& executor,
                        std::string& key) const override {
    DeviceFacts facts;
    const Family* family = nullptr;
    core::Status status = facts_of(executor.ordinal, facts);
    if (status.ok()) status = family_to_tune(pass, problem, facts, family);
    if (status.ok()) key = family->tune_key(pass, problem);
    return status;
  }
  core::Status tune_candidates(Pass pass, const Problem& problem, const core::Executor& executor,
                               std::vector<TuneCandidate>& candidates) const override {
    DeviceFacts facts;
    const Family* family = nullptr;
    core::Status status = facts_of(executor.ordinal, facts);
    if (status.ok()) status = family_to_tune(pass, problem, facts, family);
    if (!status.ok()) return status;
    std::string reason;
    Binaries& binaries = Modules::of(*Driver::get(reason), executor.cache_dir).binaries();
    return compile_candidates(*family, pass, problem, facts, binaries, 0, candidates);
  }
  core::Status tune_use(Pass pass, const Problem& problem, const std::string& tiles,
                        const core::Executor& executor) const override {
    DeviceFacts facts;
    const Family* family = nullptr;
    core::Status status = facts_of(executor.ordinal, facts);
    if (status.ok()) status = family_to_tune(pass, problem, facts, family);
    if (!status.ok()) return status;
    const std::string why = tiles.empty() ? "" : family->tune_misfit(pass, problem, tiles, facts);
    if (!why.empty()) {
      return core::Status::invalid("cuda: tune_use: tiles: found '" + tiles + "': " + why +
                                   "; accepted: tiles that tune_candidates() lists");
    }
    Tuned::of(facts.name).use(family->tune_key(pass, problem), tiles);
    return {};
  }
  core::Status tune_store(const core::Executor& executor, std::string& path) const override {
    DeviceFacts facts;
    core::Status status = facts_of(executor.ordinal, facts);
    if (!status.ok()) return status;
    path = Tuned::of(facts.name).path();
    return Tuned::of(facts.name).store();
  }

 private:
  static std::string cache_root(const core::Executor& executor) {
    return *executor.cache_dir != '\0' ? executor.cache_dir : Cache::default_root();
  }

  static core::Status facts_of(std::int32_t ordinal, DeviceFacts& facts) {
    std::string reason;
    const Driver* driver = Driver::get(reason);
    if (driver == nullptr) return core::Status::unsupported("cuda: " + reason);
    return tuned_facts(*driver, ordinal, facts);
  }
};

}  // namespace

const core::Backend& backend() {
  static const CudaBackend instance;
  return instance;
}

}  // namespace attn::cuda
