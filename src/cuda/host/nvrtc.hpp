// Nvrtc: NVIDIA's run-time compiler, opened at run time. The search order is: the file or folder in
// ATTN_NVRTC, and nothing else if that is set; the library's name (already loaded by the process,
// then on the loader's path); CUDA_HOME and CUDA_PATH; /usr/local/cuda; pip wheels (nvidia/*/lib)
// in the folder of libattn's package.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.hpp"
#include "cuda/host/sources.hpp"

namespace attn::cuda {

// 12.0 is the first version with C++20.
inline constexpr int kNeededNvrtcMajor = 12;

struct Compiled {
  core::Status status;  // if not ok, the message contains the compiler's log
  std::string cubin;
  std::string log;  // set on success too: registers and spills (ptxas -v), warnings
};

class Nvrtc {
 public:
  struct Opened;
  // `driver_version` as in Driver::version(). Skips compilers of a later major version, because the
  // driver can't load their binaries. 0 accepts any version.
  static Opened open(int driver_version);
  // The same from a list of library names and paths.
  static Opened open(std::span<const std::string> libraries, int driver_version);
  // The compiler of this process for that driver, opened by the first call; null with the reason.
  static const Nvrtc* get(int driver_version, std::string& reason);
  // Where open() looks, in order.
  static std::vector<std::string> candidates();

  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  [[nodiscard]] int version() const { return version_; }  // 13000 for 13.0
  [[nodiscard]] const std::string& path() const { return path_; }
  // Compute capabilities it compiles for: 80, 90, ...
  [[nodiscard]] const std::vector<int>& capabilities() const { return capabilities_; }

  // Compiles for an architecture such as "sm_90a". Thread-safe.
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

// The architecture to compile for on a device of this compute capability: its own, else the nearest
// lower one of the same major version, which is binary-compatible. For 90 it is "sm_90a", because
// sm90 kernels use instructions of that architecture only. Empty if the compiler knows none.
std::string choose_architecture(int capability, std::span<const int> known);

}  // namespace attn::cuda
