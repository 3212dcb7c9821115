// Backend: the interface between the chain (validate -> registry -> plan -> launch) and a folder of
// kernels. A backend that isn't built in is a stub whose usable() says why.
#pragma once

#include <attn/arguments.hpp>
#include <attn/cache.hpp>
#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <attn/tune.hpp>
#include <string>
#include <vector>

#include "core/interrupt.hpp"
#include "core/plan.hpp"
#include "core/result.hpp"
#include "core/status.hpp"

namespace attn::core {

// launch() calls `launched` for every kernel that it starts, in order, with the name in
// PlanSummary::kernels. For tests; called on the calling thread.
struct LaunchObserver {
  void (*launched)(void* user, const char* kernel) = nullptr;
  void* user = nullptr;
};

// Most threads of a Context.
inline constexpr std::int32_t kMaxThreads = 4096;

// Where a call runs. parallel_for runs body once for each worker in [0, workers), see
// attn::ParallelFor.
struct Executor {
  std::int32_t threads = 1;
  ParallelFor parallel_for = nullptr;  // never null when a backend is called
  void* user = nullptr;
  std::int32_t ordinal = 0;    // index of the device, for backends with several
  const char* cache_dir = "";  // of compiled kernels; "" = the default of ContextOptions::cache_dir
  // Null = the call can't be interrupted. If interrupt->stopped(), the backend returns early with
  // any status; src/api reports the interruption.
  Interrupt* interrupt = nullptr;
  const LaunchObserver* observer = nullptr;

  void report_launch(const char* kernel) const {
    if (observer != nullptr) observer->launched(observer->user, kernel);
  }
};

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual Device device() const = 0;
  // Whether it may be chosen automatically (the reference runs only if requested by name).
  [[nodiscard]] virtual bool automatic() const { return true; }
  // False for the stub of a backend that this build omits.
  [[nodiscard]] virtual bool built() const { return true; }
  // Whether it runs calls on host tensors if requested by name: it copies them to its device and
  // back.
  [[nodiscard]] virtual bool copies_host_tensors() const { return false; }
  // Whether it can run on this machine; `detail` names the device, or the reason why not.
  [[nodiscard]] virtual bool usable(std::string& detail) const = 0;
  // The index of the device for queries without tensors.
  [[nodiscard]] virtual std::int32_t current_ordinal() const { return 0; }

  // The plan of calls whose tensors allow `access`, or the reason why there is none. For problems
  // that validate_problem() accepted.
  [[nodiscard]] virtual Result<PlanPointer> plan(Pass pass, const Problem& problem, Access access,
                                                 const Executor& executor) const = 0;
  // prepare() and launch() require a plan that this backend made for an equal executor.
  virtual Status prepare(const Plan& plan, const Executor& executor) const = 0;
  // The arguments are validated, and their access_of() is the one that the plan was made for.
  // arguments.workspace has plan.workspace_bytes, 64-byte aligned. If it is null, the backend of a
  // device other than the host allocates memory on that device.
  virtual Status launch(const Plan& plan, const Arguments& arguments,
                        const Executor& executor) const = 0;

  virtual Status merge(const MergeArguments& arguments, const Executor& executor) const = 0;
  virtual Status merge_backward(const MergeBackwardArguments& arguments,
                                const Executor& executor) const = 0;
  virtual Status rope(const RopeArguments& arguments, const Executor& executor) const = 0;

  // The cache of compiled kernels in executor.cache_dir, see attn/cache.hpp. The defaults are for
  // backends without a cache. cache_build() requires problems that validate_problem() accepted.
  // `entries` may be null; cache_list() then fills in the folder alone.
  virtual Status cache_build(const CacheRequest&, const Executor&, CacheResult&) const {
    return no_cache();
  }
  virtual Status cache_list(const Executor&, std::string& /*folder*/,
                            std::vector<CacheEntry>* /*entries*/) const {
    return no_cache();
  }
  virtual Status cache_clear(const Executor&, std::int64_t& /*removed*/) const {
    return no_cache();
  }

  // Tuning, see attn/tune.hpp, for problems that plan() supports. The defaults are for backends
  // without tiles to tune.
  virtual Status tune_key(Pass, const Problem&, const Executor&, std::string& /*key*/) const {
    return no_tuning();
  }
  virtual Status tune_candidates(Pass, const Problem&, const Executor&,
                                 std::vector<TuneCandidate>& /*candidates*/) const {
    return no_tuning();
  }
  virtual Status tune_use(Pass, const Problem&, const std::string& /*tiles*/,
                          const Executor&) const {
    return no_tuning();
  }
  virtual Status tune_store(const Executor&, std::string& /*path*/) const { return no_tuning(); }

 private:
  [[nodiscard]] Status no_cache() const {
    return lacks("compiles no kernels at run time, so it has no cache of them");
  }
  [[nodiscard]] Status no_tuning() const { return lacks("has no tiles to choose by measuring"); }
  [[nodiscard]] Status lacks(std::string reason) const {
    if (!built()) static_cast<void>(usable(reason));
    return Status::unsupported(std::string(name()).append(": ").append(reason));
  }
};

}  // namespace attn::core
