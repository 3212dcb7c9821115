// Replaces device.cpp in builds without the CUDA backend: no device exists.
#include "device.hpp"

namespace attn::harness {

struct DeviceQueue::State {};

namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::unsupported, "cuda: this build has no CUDA backend");
}

}  // namespace

DeviceQueue::DeviceQueue(std::int32_t, bool) {
  refuse();
}
StartUp time_start_up(std::int32_t) {
  refuse();
}
DeviceQueue::~DeviceQueue() = default;

// Never called: no object can exist.
std::int32_t DeviceQueue::ordinal() const {
  return 0;
}
bool DeviceQueue::exact() const {
  return false;
}
void* DeviceQueue::stream() const {
  return nullptr;
}
std::string DeviceQueue::device_name() const {
  return {};
}
std::string DeviceQueue::driver_version() const {
  return {};
}
std::int64_t DeviceQueue::l2_bytes() const {
  return 0;
}
std::int64_t DeviceQueue::free_bytes() const {
  return 0;
}
std::shared_ptr<const void> DeviceQueue::current() const {
  return {};
}
void* DeviceQueue::take(std::int64_t) {
  return nullptr;
}
void DeviceQueue::give_back(void*) {}
void DeviceQueue::upload(void*, const void*, std::int64_t) {}
void DeviceQueue::download(void*, const void*, std::int64_t) {}
void DeviceQueue::synchronize() {}
double DeviceQueue::pointer_seconds(const void*) const {
  return 0.0;
}
void DeviceQueue::mark() {}
std::vector<double> DeviceQueue::spans() {
  return {};
}

}  // namespace attn::harness
