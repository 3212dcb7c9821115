// Devices: the facts that plans depend on, the context that a call runs in, and the check that a
// pointer is memory of the device.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/host/driver.hpp"

namespace attn::cuda {

class Tuned;

// Shared memory that the driver reserves per block, in bytes (8.0 and later).
inline constexpr std::int64_t kReservedShared = 1024;
// Blocks of a grid, by CUDA's limit of its x dimension.
inline constexpr std::int64_t kMaxBlocks = (std::int64_t{1} << 31) - 1;

// Plans and compilation are pure functions of these facts. Sizes in bytes.
struct DeviceFacts {
  std::string name;
  int ordinal = 0;
  int major = 0;  // compute capability
  int minor = 0;
  int num_sms = 0;
  int registers_per_sm = 0;
  int threads_per_sm = 0;
  std::int64_t shared_per_sm = 0;
  std::int64_t shared_per_block = 0;  // the opt-in limit, static plus dynamic
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  // Tiles that were measured on the device (families/tuned.hpp); null: none.
  const Tuned* tuned = nullptr;

  // 90 for 9.0.
  [[nodiscard]] int capability() const { return 10 * major + minor; }
};

// "NVIDIA H200 (9.0, 132 SMs, 139.8 GiB)"
std::string to_string(const DeviceFacts& facts);

// Queries the driver.
core::Status read_facts(const Driver& driver, int ordinal, DeviceFacts& facts);
// The same, queried once per process. `facts` stays valid until the process ends.
core::Status device_facts(const Driver& driver, int ordinal, const DeviceFacts*& facts);

// Makes a context of the device current during its lifetime. If the thread's current context
// belongs to the device, it is used (PyTorch and all users of the CUDA runtime use the primary
// context). Otherwise it is the primary context, which is retained once and never released.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, int ordinal);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  [[nodiscard]] const core::Status& status() const { return status_; }
  // Unique in the process. Never reused, even if a new context gets the address of a destroyed one.
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] const Driver& driver() const { return driver_; }

  // The ordinal of the thread's current context; 0 if there is none.
  static int current_ordinal(const Driver& driver);

 private:
  core::Status enter();

  const Driver& driver_;
  int ordinal_;
  std::uint64_t id_ = 0;
  bool pushed_ = false;
  core::Status status_;
};

// Returns invalid_argument if `pointer`, the data of tensor `name`, is not memory of the device.
// Managed memory counts as memory of every device.
core::Status check_pointer(const Driver& driver, const char* name, const void* pointer,
                           int ordinal);

}  // namespace attn::cuda
