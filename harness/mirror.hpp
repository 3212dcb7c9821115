// Mirror: the memory of a call on a device. A case's storages are copied as they are, guards, gaps
// and poison included, so that what was wrong on the host side is wrong there too, and copied back,
// so that results are read and guards are checked where they always are. The benchmark and `attn
// run` copy plain tensors.
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

  // Copies it to the device. In exact queues (device.hpp) guards stay behind, and so does what is
  // `scratch`: reading it before it is written is then an access that initcheck sees.
  void add(Storage& storage, bool scratch = false);
  // Copies the tensors of the call that were not added before, each by itself. Those that it writes
  // come back.
  void add_tensors(Pass pass, const Problem& problem, const Arguments& host);
  // The same arguments on the device: every pointer into what was added points to the same byte of
  // its copy, and the work goes to the queue's stream.
  [[nodiscard]] Arguments arguments(Pass pass, const Problem& problem, const Arguments& host) const;
  [[nodiscard]] std::int64_t bytes() const;  // of the copies
  [[nodiscard]] int count() const { return static_cast<int>(copies_.size()); }
  // Waits for the work and copies back what may have been written.
  void download();

 private:
  struct Copy {
    unsigned char* host;
    std::int64_t bytes;
    unsigned char* device;  // of host[0]
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
