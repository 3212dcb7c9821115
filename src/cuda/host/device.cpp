// Devices, contexts and pointers; see device.hpp.
#include "cuda/host/device.hpp"

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace attn::cuda {
namespace {

std::string device_text(int ordinal) {
  return "cuda:" + std::to_string(ordinal);
}

core::Status check_ordinal(const Driver& driver, int ordinal) {
  if (ordinal >= 0 && ordinal < driver.num_devices()) return {};
  return core::Status::invalid(
      "cuda: device: found " + device_text(ordinal) + "; accepted cuda:0" +
      (driver.num_devices() == 1 ? std::string() : " to " + device_text(driver.num_devices() - 1)));
}

// The primary context of each device in use. Never released, because a release at exit would run
// after the driver's own clean-up.
core::Status primary_context(const Driver& driver, int ordinal, abi::Context& context) {
  static std::mutex mutex;
  static auto& contexts = *new std::map<std::pair<const Driver*, int>, abi::Context>;
  const std::lock_guard<std::mutex> lock(mutex);
  abi::Context& kept = contexts[{&driver, ordinal}];
  if (kept == nullptr) {
    abi::Context retained = nullptr;
    const abi::Result result = driver.api().cuDevicePrimaryCtxRetain(&retained, ordinal);
    if (result != abi::kSuccess) {
      return driver.status(result, "cuDevicePrimaryCtxRetain",
                           "making a context on " + device_text(ordinal));
    }
    kept = retained;
  }
  context = kept;
  return {};
}

}  // namespace

std::string to_string(const DeviceFacts& facts) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), " (%d.%d, %d SMs, %.1f GiB)", facts.major, facts.minor,
                facts.num_sms, static_cast<double>(facts.memory_bytes) / (1 << 30));
  return facts.name + text.data();
}

core::Status read_facts(const Driver& driver, int ordinal, DeviceFacts& facts) {
  if (core::Status status = check_ordinal(driver, ordinal); !status.ok()) return status;
  const DriverApi& api = driver.api();
  const std::string tried = "reading the properties of " + device_text(ordinal);
  std::array<char, 256> name{};
  abi::Result result = api.cuDeviceGetName(name.data(), static_cast<int>(name.size()) - 1, ordinal);
  if (result != abi::kSuccess) return driver.status(result, "cuDeviceGetName", tried);
  std::size_t memory = 0;
  result = api.cuDeviceTotalMem_v2(&memory, ordinal);
  if (result != abi::kSuccess) return driver.status(result, "cuDeviceTotalMem", tried);
  const auto attribute = [&](int which) {
    int value = 0;
    if (result == abi::kSuccess) result = api.cuDeviceGetAttribute(&value, which, ordinal);
    return value;
  };
  DeviceFacts read;
  read.name = name.data();
  read.ordinal = ordinal;
  read.major = attribute(abi::kComputeCapabilityMajor);
  read.minor = attribute(abi::kComputeCapabilityMinor);
  read.num_sms = attribute(abi::kMultiprocessorCount);
  read.registers_per_sm = attribute(abi::kMaxRegistersPerMultiprocessor);
  read.threads_per_sm = attribute(abi::kMaxThreadsPerMultiprocessor);
  read.shared_per_sm = attribute(abi::kMaxSharedMemoryPerMultiprocessor);
  read.shared_per_block = attribute(abi::kMaxSharedMemoryPerBlockOptin);
  read.l2_bytes = attribute(abi::kL2CacheSize);
  read.memory_bytes = static_cast<std::int64_t>(memory);
  if (result != abi::kSuccess) return driver.status(result, "cuDeviceGetAttribute", tried);
  facts = std::move(read);
  return {};
}

core::Status device_facts(const Driver& driver, int ordinal, const DeviceFacts*& facts) {
  static std::mutex mutex;
  // Never freed: threads may use it until the process ends.
  static auto& known =
      *new std::map<std::pair<const Driver*, int>, std::unique_ptr<const DeviceFacts>>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find({&driver, ordinal});
  if (found != known.end()) {
    facts = found->second.get();
    return {};
  }
  auto read = std::make_unique<DeviceFacts>();
  if (core::Status status = read_facts(driver, ordinal, *read); !status.ok()) return status;
  facts = read.get();
  known.emplace(std::pair{&driver, ordinal}, std::move(read));
  return {};
}

CurrentContext::CurrentContext(const Driver& driver, int ordinal)
    : driver_(driver), ordinal_(ordinal), status_(enter()) {}

core::Status CurrentContext::enter() {
  const DriverApi& api = driver_.api();
  const auto failed = [&](abi::Result result, const char* call) {
    return driver_.status(result, call, "entering a context of " + device_text(ordinal_));
  };
  if (core::Status status = check_ordinal(driver_, ordinal_); !status.ok()) return status;
  abi::Context context = nullptr;
  abi::Result result = api.cuCtxGetCurrent(&context);
  if (result != abi::kSuccess) return failed(result, "cuCtxGetCurrent");
  unsigned long long id = 0;
  if (context != nullptr) {
    // Ids are never reused, so the device of the last seen context is cached per thread.
    thread_local unsigned long long known = 0;
    thread_local abi::Device known_device = -1;
    thread_local const Driver* known_driver = nullptr;
    result = api.cuCtxGetId(context, &id);
    if (result != abi::kSuccess) return failed(result, "cuCtxGetId");
    if (id != known || known_driver != &driver_) {
      result = api.cuCtxGetDevice(&known_device);
      if (result != abi::kSuccess) {
        known_driver = nullptr;
        return failed(result, "cuCtxGetDevice");
      }
      known = id;
      known_driver = &driver_;
    }
    id_ = id;
    if (known_device == ordinal_) return {};
  }
  core::Status status = primary_context(driver_, ordinal_, context);
  if (!status.ok()) return status;
  result = api.cuCtxPushCurrent_v2(context);
  if (result != abi::kSuccess) return failed(result, "cuCtxPushCurrent");
  pushed_ = true;
  result = api.cuCtxGetId(context, &id);
  if (result != abi::kSuccess) return failed(result, "cuCtxGetId");
  id_ = id;
  return {};
}

CurrentContext::~CurrentContext() {
  abi::Context popped = nullptr;
  if (pushed_) driver_.api().cuCtxPopCurrent_v2(&popped);
}

int CurrentContext::current_ordinal(const Driver& driver) {
  const DriverApi& api = driver.api();
  abi::Context context = nullptr;
  abi::Device device = 0;
  if (api.cuCtxGetCurrent(&context) != abi::kSuccess || context == nullptr) return 0;
  return api.cuCtxGetDevice(&device) == abi::kSuccess ? device : 0;
}

core::Status check_pointer(const Driver& driver, const char* name, const void* pointer,
                           int ordinal) {
  // For a pointer that CUDA doesn't know, this driver call succeeds and sets the values to zero.
  std::array<int, 3> attributes{abi::kPointerMemoryType, abi::kPointerDeviceOrdinal,
                                abi::kPointerIsManaged};
  unsigned type = 0;
  int device = -1;
  int managed = 0;
  std::array<void*, 3> values{&type, &device, &managed};
  const auto ask = [&](unsigned count) {
    return driver.api().cuPointerGetAttributes(count, attributes.data(), values.data(),
                                               reinterpret_cast<std::uintptr_t>(pointer));
  };
  abi::Result result = ask(2);  // two attributes only: this runs for each tensor of each call
  if (result == abi::kSuccess && type == abi::kMemoryDevice && device == ordinal) return {};
  if (result == abi::kSuccess) result = ask(3);
  std::string found;
  if (result != abi::kSuccess && result != abi::kInvalidValue) {
    return driver.status(result, "cuPointerGetAttributes",
                         std::string("looking at the pointer of ") + name);
  }
  if (result == abi::kSuccess && managed != 0) return {};
  if (result == abi::kInvalidValue || type == 0) {
    found = "a pointer that CUDA doesn't know (host memory?)";
  } else if (type != abi::kMemoryDevice) {
    found = "page-locked host memory";
  } else if (device != ordinal) {
    found = "memory of " + device_text(device);
  } else {
    return {};
  }
  return core::Status::invalid(std::string("cuda: data of ") + name + ": found " + found +
                               "; accepted memory of " + device_text(ordinal));
}

}  // namespace attn::cuda
