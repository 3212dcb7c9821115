// Mirror: a copy of a call's memory on a device. A case's blocks are copied with guards, gaps and
// poison, so an error that shows on the host also shows on the device. They are copied back, so the
// host reads the results and checks the guards. The benchmark and `attn run` copy plain tensors.
#pragma once

#include <vector>

#include "device.hpp"
#include "storage.hpp"

namespace attn::harness {

class Mirror {
 public:
  explicit Mirror(DeviceQueue& queue) : queue_(queue) {}
  ~Mirror();
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Copies it to the device. Exact queues (device.hpp) do not copy guards, nor `scratch` blocks, so
  // initcheck detects a read before the first write.
  void add(Storage& storage, bool scratch = false);
  // Copies the call's remaining tensors, each separately. Outputs are copied back.
  void add_tensors(Pass pass, const Problem& problem, const Arguments& host);
  // The same arguments on the device: every pointer into an added block points to the same byte of
  // its copy, and the stream is the queue's.
  [[nodiscard]] Arguments arguments(Pass pass, const Problem& problem, const Arguments& host) const;
  [[nodiscard]] std::int64_t bytes() const;  // size of all copies
  [[nodiscard]] int count() const { return static_cast<int>(copies_.size()); }
  // Waits for the work and copies back all blocks that may have been written.
  void download();

 private:
  struct Copy {
    unsigned char* host;
    std::int64_t bytes;
    unsigned char* device;  // address of host[0]'s copy
    void* memory;
    bool comes_back;
  };
  void add(unsigned char* host, std::int64_t bytes, std::int64_t front, bool uploaded,
           bool comes_back);
  [[nodiscard]] Copy* find(const void* host);
  [[nodiscard]] void* moved(const void* host) const;

  DeviceQueue& queue_;
  std::vector<Copy> copies_;
};

}  // namespace attn::harness
