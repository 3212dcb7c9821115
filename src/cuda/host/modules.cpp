// Loaded kernels; see modules.hpp.
#include "cuda/host/modules.hpp"

#include <map>
#include <utility>
#include <vector>

namespace attn::cuda {
namespace {

std::string tried_for(const CurrentContext& context, const KernelSpec& spec) {
  return "loading " + std::string(spec.entry) + " of " + to_string(spec.config) +
         " on cuda:" + std::to_string(context.ordinal());
}

}  // namespace

std::size_t Modules::Hash::of(std::uint64_t context, const KernelSpec& spec) {
  // Ignores the other fields, because a Config has few entry points.
  return spec.config.hash() + static_cast<std::size_t>(context) * 0x9e3779b9;
}

Modules& Modules::of(const Driver& driver, std::string_view cache_root) {
  thread_local const Driver* last_driver = nullptr;
  thread_local std::string last_root;
  thread_local Modules* last = nullptr;
  if (last_driver == &driver && last_root == cache_root) return *last;
  static std::mutex mutex;
  static auto& all = *new std::map<Binaries*, std::unique_ptr<Modules>>;  // never freed
  std::string root(cache_root);
  Binaries& binaries = Binaries::of(root, driver.version());
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<Modules>& modules = all[&binaries];
  if (modules == nullptr) modules = std::make_unique<Modules>(binaries);
  last_driver = &driver;
  last_root = std::move(root);
  last = modules.get();
  return *last;
}

void Modules::find_all(const CurrentContext& context, std::span<const KernelSpec> specs,
                       std::span<const Kernel*> kernels) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const auto found = kernels_.find(KeyRef{context.id(), specs[i]});
    kernels[i] = found == kernels_.end() ? nullptr : found->second.get();
  }
}

core::Status Modules::load(const CurrentContext& context, const KernelSpec& spec,
                           const Kernel*& kernel) {
  kernel = find(context, spec);
  if (kernel != nullptr) return {};
  std::shared_ptr<Slot> slot;
  {
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    std::shared_ptr<Slot>& kept = slots_[context.id()][spec.config];
    if (kept == nullptr) kept = std::make_shared<Slot>();
    slot = kept;
  }
  // One thread loads this Config while others wait for it. Other Configs load concurrently.
  const std::lock_guard<std::mutex> loading(slot->mutex);
  kernel = find(context, spec);
  if (kernel != nullptr) return {};
  core::Status status;
  if (slot->module == nullptr) status = load_module(context, spec.config, *slot);
  if (!status.ok()) return status;
  auto loaded = std::make_unique<Kernel>();
  status = load_kernel(context, spec, slot->module, *loaded);
  if (!status.ok()) return status;
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  kernel = kernels_.emplace(Key{context.id(), spec}, std::move(loaded)).first->second.get();
  return {};
}

core::Status Modules::load_all(const CurrentContext& context, std::span<const KernelSpec> specs,
                               std::span<const Kernel*> kernels) {
  const DeviceFacts* facts = nullptr;
  core::Status status = device_facts(context.driver(), context.ordinal(), facts);
  if (!status.ok()) return status;
  std::vector<Config> configs;
  for (const KernelSpec& spec : specs) {
    if (find(context, spec) == nullptr) configs.push_back(spec.config);
  }
  status = binaries_.get_all(configs, facts->capability(), 0);
  for (std::size_t i = 0; i < specs.size() && status.ok(); ++i) {
    status = load(context, specs[i], kernels[i]);
  }
  return status;
}

core::Status Modules::load_module(const CurrentContext& context, const Config& config, Slot& slot) {
  const Driver& driver = context.driver();
  const DeviceFacts* facts = nullptr;
  core::Status status = device_facts(driver, context.ordinal(), facts);
  if (!status.ok()) return status;
  const Binary* binary = nullptr;
  status = binaries_.get(config, facts->capability(), binary);
  if (!status.ok()) return status;
  const auto load = [&] {
    return driver.api().cuModuleLoadData(&slot.module, binary->cubin.data());
  };
  abi::Result result = load();
  if (result == abi::kInvalidImage || result == abi::kNoBinaryForGpu) {
    const Binary* const refused = binary;
    status = binaries_.replace(config, facts->capability(), binary);
    if (!status.ok()) return status;
    if (binary != refused) result = load();
  }
  if (result == abi::kSuccess) return {};
  slot.module = nullptr;
  const bool from_disk = binary->from == Binary::From::disk;
  return driver.status(result, "cuModuleLoadData",
                       "loading " + to_string(config) + " (" + binary->architecture + ", " +
                           (from_disk ? "from " + binaries_.cache().folder() : "just compiled") +
                           ") on cuda:" + std::to_string(context.ordinal()) + ", " +
                           to_string(*facts));
}

core::Status Modules::load_kernel(const CurrentContext& context, const KernelSpec& spec,
                                  abi::Module module, Kernel& kernel) const {
  const Driver& driver = context.driver();
  const DriverApi& api = driver.api();
  kernel.spec = spec;
  const char* call = "cuModuleGetFunction";
  abi::Result result = api.cuModuleGetFunction(&kernel.function, module, spec.entry);
  int max_threads = 0;
  const auto attribute = [&](int which, int& value) {
    if (result != abi::kSuccess) return;
    call = "cuFuncGetAttribute";
    result = api.cuFuncGetAttribute(&value, which, kernel.function);
  };
  const auto set = [&](int which, int value) {
    if (result != abi::kSuccess) return;
    call = "cuFuncSetAttribute";
    result = api.cuFuncSetAttribute(kernel.function, which, value);
  };
  attribute(abi::kFunctionRegisters, kernel.registers);
  attribute(abi::kFunctionLocalBytes, kernel.local_bytes);
  attribute(abi::kFunctionStaticSharedBytes, kernel.static_shared_bytes);
  attribute(abi::kFunctionMaxThreads, max_threads);
  // The limit is never lowered: another KernelSpec may use the same function with more.
  int allowed = 0;
  attribute(abi::kFunctionMaxDynamicSharedBytes, allowed);
  if (spec.shared_bytes > static_cast<unsigned>(allowed)) {
    set(abi::kFunctionMaxDynamicSharedBytes, static_cast<int>(spec.shared_bytes));
  }
  if (spec.cluster > 8) set(abi::kFunctionNonPortableClusterAllowed, 1);
  if (result == abi::kSuccess) {
    call = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    result = api.cuOccupancyMaxActiveBlocksPerMultiprocessor(
        &kernel.blocks_per_sm, kernel.function, static_cast<int>(spec.threads), spec.shared_bytes);
  }
  if (result != abi::kSuccess) return driver.status(result, call, tried_for(context, spec));
  if (spec.threads > static_cast<unsigned>(max_threads) || kernel.blocks_per_sm < 1) {
    return {ErrorCode::internal,
            "cuda: no block fits, while " + tried_for(context, spec) + ": it has " +
                std::to_string(spec.threads) + " threads of " + std::to_string(kernel.registers) +
                " registers and " + std::to_string(spec.shared_bytes) + " + " +
                std::to_string(kernel.static_shared_bytes) + " bytes of shared memory"};
  }
  return {};
}

}  // namespace attn::cuda
