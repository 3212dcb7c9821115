// Replaces webgpu.cpp in builds without the WebGPU backend: no device exists.
#include "webgpu.hpp"

namespace attn::harness {

struct WebgpuQueue::State {};
struct WebgpuCalls::State {};

WebgpuQueue::WebgpuQueue() {
  throw Error(ErrorCode::unsupported, "webgpu: this build has no WebGPU backend");
}
WebgpuQueue::~WebgpuQueue() = default;

// Never called: no queue can exist.
std::string WebgpuQueue::device_name() const {
  return {};
}
std::string WebgpuQueue::driver() const {
  return {};
}
std::int64_t WebgpuQueue::uncached_bytes() const {
  return 0;
}
void WebgpuQueue::warm_up() {}
double WebgpuQueue::seconds(std::span<const WebgpuCalls* const>) {
  return 0.0;
}
WebgpuCalls::WebgpuCalls(WebgpuQueue&, const Arguments&,
                         const std::vector<std::pair<Pass, Problem>>&) {}
WebgpuCalls::~WebgpuCalls() = default;
void WebgpuCalls::run() {}
void WebgpuCalls::download() {}
std::int64_t WebgpuCalls::bytes() const {
  return 0;
}
std::int64_t WebgpuCalls::extra_bytes() const {
  return 0;
}

}  // namespace attn::harness
