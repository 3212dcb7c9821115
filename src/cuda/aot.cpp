// Binaries compiled ahead of time; see aot.hpp.
#include "cuda/aot.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "cuda/families/tuned.hpp"
#include "cuda/host/architectures.hpp"
#include "cuda/operations.hpp"

namespace attn::cuda {
namespace {

// Facts of a device of this machine, else of a common device; nullopt if neither is known.
std::optional<DeviceFacts> facts_for(int capability) {
  std::string reason;
  if (const Driver* driver = Driver::get(reason)) {
    for (int ordinal = 0; ordinal < driver->num_devices(); ++ordinal) {
      DeviceFacts facts;
      if (tuned_facts(*driver, ordinal, facts).ok() && facts.capability() == capability) {
        return facts;
      }
    }
  }
  const DeviceFacts* const typical = typical_facts(capability);
  return typical != nullptr ? std::optional(*typical) : std::nullopt;
}

std::vector<std::int32_t> own_architectures(const Driver& driver) {
  std::vector<std::int32_t> list;
  for (int ordinal = 0; ordinal < driver.num_devices(); ++ordinal) {
    const DeviceFacts* facts = nullptr;
    if (!device_facts(driver, ordinal, facts).ok()) continue;
    const int capability = facts->capability();
    if (std::find(list.begin(), list.end(), capability) == list.end()) list.push_back(capability);
  }
  return list;
}

// Compiles the binaries that are missing; adds to the counts of `result`.
core::Status build(std::span<const KernelSpec> kernels, int capability, int threads,
                   Binaries& binaries, CacheResult& result) {
  std::unordered_set<Config> distinct;
  for (const KernelSpec& kernel : kernels) distinct.insert(kernel.config);
  const std::vector<Config> configs(distinct.begin(), distinct.end());
  core::Status status = binaries.get_all(configs, capability, threads);
  if (!status.ok()) return status;
  for (const Config& config : configs) {
    const Binary* binary = nullptr;
    status = binaries.get(config, capability, binary);  // found, since get_all() succeeded
    if (!status.ok()) return status;
    if (!binary->kept) {
      return {ErrorCode::device_error, "cuda: cache_build: " + to_string(config) +
                                           " could not be written to " + binaries.cache().folder() +
                                           " (is the disk full?)"};
    }
    result.binaries += 1;
    result.compiled += binary->from == Binary::From::compiler ? 1 : 0;
  }
  return {};
}

}  // namespace

Wanted kernels_for(std::span<const CacheRequest::Call> calls, const DeviceFacts& facts,
                   FamilyChoice choice) {
  Wanted wanted;
  std::unordered_map<Config, std::vector<KernelSpec>> known;
  for (const auto& [pass, problem] : calls) {
    const core::Result<CudaPlan> plan = make_plan(pass, problem, facts, core::Access::tma, choice);
    if (!plan.ok()) {
      if (wanted.refused++ == 0) wanted.reason = plan.reason();
      continue;
    }
    for (const KernelSpec& spec : plan.value().specs()) {
      std::vector<KernelSpec>& same = known[spec.config];
      if (std::find(same.begin(), same.end(), spec) != same.end()) continue;
      same.push_back(spec);
      wanted.kernels.push_back(spec);
    }
  }
  return wanted;
}

core::Status build_ahead_of_time(const CacheRequest& request, const std::string& cache_root,
                                 CacheResult& result) {
  const auto refuse = [](const std::string& message) {
    return core::Status::invalid("cuda: cache_build: " + message);
  };
  if (request.calls.empty()) return refuse("calls: found none; accepted at least one");
  std::string reason;
  const Driver* driver = Driver::get(reason);
  std::vector<std::int32_t> architectures = request.architectures;
  if (architectures.empty() && driver != nullptr) architectures = own_architectures(*driver);
  if (architectures.empty()) {
    return refuse("architectures: found none, and no device here to take them from (" + reason +
                  "); accepted some of " + known_capabilities());
  }
  for (const std::int32_t capability : architectures) {
    if (facts_for(capability)) continue;
    return refuse("architecture: found " + std::to_string(capability) + "; accepted " +
                  known_capabilities());
  }
  const int driver_version = driver != nullptr ? driver->version() : 0;
  const Nvrtc* nvrtc = Nvrtc::get(driver_version, reason);
  if (nvrtc == nullptr) {
    return core::Status::unsupported("cuda: cache_build: nothing to compile with: " + reason);
  }
  // Not the instance of the process: binaries that it found or compiled may have been deleted from
  // disk.
  Binaries binaries(Cache(cache_root), driver_version, nvrtc, "");
  if (const std::string why = binaries.cache().unwritable(); !why.empty()) {
    return refuse("folder: found " + why + "; accepted one that can be written");
  }
  for (const std::int32_t capability : architectures) {
    Wanted wanted = kernels_for(request.calls, *facts_for(capability), family_choice());
    if (result.refused == 0) result.reason = wanted.reason;
    result.refused += wanted.refused;
    if (wanted.kernels.empty()) continue;
    wanted.kernels.insert(wanted.kernels.end(), operation_kernels().begin(),
                          operation_kernels().end());
    core::Status status = build(wanted.kernels, capability, request.threads, binaries, result);
    if (!status.ok()) return status;
  }
  if (result.binaries > 0) return {};
  return core::Status::unsupported("cuda: cache_build: no kernel to compile: " + result.reason);
}

}  // namespace attn::cuda
