// The CUDA driver, opened at run time; see driver.hpp.
#include "cuda/host/driver.hpp"

#include "platform/platform.hpp"

namespace attn::cuda {
namespace {

// The name of the first function that the library lacks, or null.
const char* load(void* library, DriverApi& api) {
  const char* missing = nullptr;
#define ATTN_CUDA_LOAD(symbol, parameters)                   \
  api.symbol = reinterpret_cast<abi::Result(*) parameters>(  \
      /* NOLINT */ platform::find_symbol(library, #symbol)); \
  if (api.symbol == nullptr && missing == nullptr) missing = #symbol;
  ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_CUDA_LOAD)
#undef ATTN_CUDA_LOAD
  return missing;
}

std::string needed() {
  return "CUDA " + version_text(kNeededDriver) + " (driver 525) or later is needed";
}

std::string error_text(const DriverApi& api, abi::Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (api.cuGetErrorName(result, &name) != abi::kSuccess || name == nullptr) {
    return "error " + std::to_string(result);
  }
  std::string message = name;
  if (api.cuGetErrorString(result, &text) == abi::kSuccess && text != nullptr) {
    message.append(" (").append(text).append(")");
  }
  return message;
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Driver::Opened Driver::open(const char* library) {
  std::string error;
  void* handle = platform::open_library(library, error);
  if (handle == nullptr) return {nullptr, "no CUDA driver: " + error};
  // The library stays loaded: a driver can't be unloaded safely once it has been initialized.
  std::unique_ptr<Driver> driver(new Driver);
  DriverApi& api = driver->api_;
  const char* missing = load(handle, api);
  if (api.cuDriverGetVersion == nullptr || api.cuInit == nullptr || api.cuGetErrorName == nullptr ||
      api.cuGetErrorString == nullptr || api.cuDeviceGetCount == nullptr) {
    return {nullptr, std::string(library) + " is no CUDA driver: it has no " + missing};
  }
  abi::Result result = api.cuDriverGetVersion(&driver->version_);
  if (result == abi::kStubLibrary) {
    return {nullptr, std::string(library) + " is the toolkit's stub for linking, no CUDA driver"};
  }
  if (result != abi::kSuccess) {
    return {nullptr, "cuDriverGetVersion: " + error_text(api, result)};
  }
  const std::string found = "the CUDA driver found is for CUDA " + version_text(driver->version_);
  if (driver->version_ < kNeededDriver) return {nullptr, found + "; " + needed()};
  if (missing != nullptr) {
    return {nullptr, found + " and has no " + missing + "; " + needed()};
  }
  result = api.cuInit(0);
  if (result == abi::kNoDevice) return {nullptr, found + "; no CUDA device was found"};
  if (result != abi::kSuccess) return {nullptr, found + "; cuInit: " + error_text(api, result)};
  result = api.cuDeviceGetCount(&driver->num_devices_);
  if (result != abi::kSuccess) {
    return {nullptr, found + "; cuDeviceGetCount: " + error_text(api, result)};
  }
  if (driver->num_devices_ == 0) return {nullptr, found + "; no CUDA device was found"};
  return {std::move(driver), ""};
}

const Driver* Driver::get(std::string& reason) {
  static const Opened& opened = *new Opened(open());  // never freed: used until the end
  if (opened.driver == nullptr) reason = opened.reason;
  return opened.driver.get();
}

core::Status Driver::status(abi::Result result, std::string_view call,
                            std::string_view tried) const {
  if (result == abi::kSuccess) return {};
  std::string message = "cuda: ";
  message.append(call).append(": ").append(error_text(api_, result));
  message.append(", while ").append(tried);
  if (result == abi::kNotInitialized) {
    message += "; a process forked after CUDA was initialized can't use it";
  } else if (result == abi::kIllegalAddress) {
    message += "; work queued earlier on this context failed, which can't be used any more";
  }
  return {result == abi::kOutOfMemory ? ErrorCode::out_of_memory : ErrorCode::device_error,
          std::move(message)};
}

}  // namespace attn::cuda
