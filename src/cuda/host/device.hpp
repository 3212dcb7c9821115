// Devices: what a plan needs to know of one, which context a call works in, and whether a pointer
// is memory of that device.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/host/driver.hpp"

namespace attn::cuda {

class Tuned;

// The facts that plans and compilation are pure functions of. Sizes in bytes.
struct DeviceFacts {
  std::string name;
  int ordinal = 0;
  int major = 0;  // compute capability
  int minor = 0;
  int num_sms = 0;
  int registers_per_sm = 0;
  int threads_per_sm = 0;
  std::int64_t shared_per_sm = 0;
  std::int64_t shared_per_block = 0;  // with opt-in: what a kernel may ask for, static and dynamic
  std::int64_t l2_bytes = 0;
  std::int64_t memory_bytes = 0;
  // Tiles that were measured on it (families/tuned.hpp); null: none.
  const Tuned* tuned = nullptr;

  // 90 of 9.0.
  [[nodiscard]] int capability() const { return 10 * major + minor; }
};

// "NVIDIA H200 (9.0, 132 SMs, 139.8 GiB)"
std::string to_string(const DeviceFacts& facts);

// Asks the driver.
core::Status read_facts(const Driver& driver, int ordinal, DeviceFacts& facts);
// The same, asked once in a process; `facts` points to memory that stays.
core::Status device_facts(const Driver& driver, int ordinal, const DeviceFacts*& facts);

// Makes a context of a device current while it lives: the thread's own where that is one of the
// device (PyTorch's and every runtime user's is the device's primary context), else the primary
// one, which is retained once and kept.
class CurrentContext {
 public:
  CurrentContext(const Driver& driver, int ordinal);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  [[nodiscard]] const core::Status& status() const { return status_; }
  // Unique in the process, also after a context at the same address was destroyed.
  [[nodiscard]] std::uint64_t id() const { return id_; }
  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] const Driver& driver() const { return driver_; }

  // The ordinal of the thread's current context; 0 where it has none.
  static int current_ordinal(const Driver& driver);

 private:
  core::Status enter();

  const Driver& driver_;
  int ordinal_;
  std::uint64_t id_ = 0;
  bool pushed_ = false;
  core::Status status_;
};

// invalid_argument where `pointer`, the tensor `name`, is not memory of the device (managed memory
// is memory of every device).
core::Status check_pointer(const Driver& driver, const char* name, const void* pointer,
                           int ordinal);

}  // namespace attn::cuda
