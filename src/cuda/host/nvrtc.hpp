// Nvrtc: NVIDIA's run-time compiler, opened at run time. It is searched in this order: the file
// that ATTN_NVRTC names; its name (what the process has loaded, then the loader's path); CUDA_HOME
// and CUDA_PATH; /usr/local/cuda; the pip wheels (nvidia/*/lib) in the folder that has libattn's
// package.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "cuda/host/sources.hpp"

namespace attn::cuda {

// C++20 came with 12.0.
inline constexpr int kNeededNvrtcMajor = 12;

struct Compiled {
  core::Status status;  // not ok: the message has the compiler's log
  std::string cubin;
  std::string log;  // also of a success: registers and spills (ptxas -v), warnings
};

class Nvrtc {
 public:
  struct Opened;
  // `driver_version` as of Driver::version(): a compiler of a later major version makes binaries
  // that the driver can't load, so it is passed over; 0 takes any.
  static Opened open(int driver_version);
  // The same from a list of library names and paths.
  static Opened open(std::span<const std::string> libraries, int driver_version);
  // The process's compiler for that driver, opened by the first call; null with the reason.
  static const Nvrtc* get(int driver_version, std::string& reason);
  // Where open() looks, in order.
  static std::vector<std::string> candidates();

  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  [[nodiscard]] int version() const { return version_; }  // 13000 of 13.0
  [[nodiscard]] const std::string& path() const { return path_; }
  // Compute capabilities it compiles for: 80, 90, ...
  [[nodiscard]] const std::vector<int>& capabilities() const { return capabilities_; }

  // Compiles for "sm_90a". May be called by many threads at once.
  [[nodiscard]] Compiled compile(const Unit& unit, std::string_view config_header,
                                 std::span<const std::string> options,
                                 const std::string& architecture) const;

 private:
  struct Api;
  Nvrtc();

  std::unique_ptr<Api> api_;
  std::string path_;
  int version_ = 0;
  std::vector<int> capabilities_;
};

struct Nvrtc::Opened {
  std::unique_ptr<const Nvrtc> nvrtc;  // null: see reason
  std::string reason;
};

// The architecture to compile for on a device of this compute capability: "sm_90a" for 90, whose
// kernels use what only it has; the capability's own, else the nearest below of the same major
// version, whose binaries run there too. Empty: the compiler knows none.
std::string choose_architecture(int capability, std::span<const int> known);

}  // namespace attn::cuda
