// Driver: NVIDIA's library, opened at run time into a table of typed functions. If it is
// missing, too old or without a device, there is no Driver, but a reason.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/status.hpp"
#include "cuda/host/driver_abi.hpp"

namespace attn::cuda {

// CUDA 12.0 (driver 525) introduced tensor maps and context ids.
inline constexpr int kNeededDriver = 12000;

#if defined(_WIN32)
inline constexpr const char* kDriverFile = "nvcuda.dll";
#else
inline constexpr const char* kDriverFile = "libcuda.so.1";
#endif

// 12040 -> "12.4".
std::string version_text(int version);

struct DriverApi {
#define ATTN_CUDA_MEMBER(symbol, parameters) abi::Result(*symbol) parameters = nullptr;
  ATTN_CUDA_DRIVER_FUNCTIONS(ATTN_CUDA_MEMBER)
#undef ATTN_CUDA_MEMBER
};

class Driver {
 public:
  struct Opened;
  // Opens the library, checks its version and initializes it. Never throws.
  static Opened open(const char* library = kDriverFile);
  // The driver of this process, opened by the first call and never closed; null with the reason.
  static const Driver* get(std::string& reason);

  [[nodiscard]] const DriverApi& api() const { return api_; }
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] int num_devices() const { return num_devices_; }

  // Converts the result of the driver function `call`. `tried` describes the purpose ("loading
  // sm80/forward.cu on cuda:0").
  [[nodiscard]] core::Status status(abi::Result result, std::string_view call,
                                    std::string_view tried) const;

 private:
  Driver() = default;

  DriverApi api_;
  int version_ = 0;
  int num_devices_ = 0;
};

struct Driver::Opened {
  std::unique_ptr<const Driver> driver;  // null: see reason
  std::string reason;
};

}  // namespace attn::cuda
