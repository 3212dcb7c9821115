// Implements scopes.hpp.
#include "webgpu/host/scopes.hpp"

#include <atomic>
#include <cctype>

#include "webgpu/host/device.hpp"

namespace attn::webgpu {
namespace {

// wgpu-native aborts the process at the last one.
constexpr WGPUErrorFilter kFilters[] = {WGPUErrorFilter_OutOfMemory, WGPUErrorFilter_Validation,
                                        WGPUErrorFilter_Internal};

struct Popped {
  std::atomic<bool> done = false;
  bool failed = false;  // the scope itself could not be popped
  WGPUErrorType type = WGPUErrorType_NoError;
  std::string message;
};

void on_popped(WGPUPopErrorScopeStatus status, WGPUErrorType type, WGPUStringView message,
               void* result, void*) {
  auto& popped = *static_cast<Popped*>(result);
  popped.failed = status != WGPUPopErrorScopeStatus_Success;
  popped.type = type;
  popped.message = text_of(message);
  popped.done = true;
}

core::Status pop(const Device& device, Popped& popped) {
  WGPUPopErrorScopeCallbackInfo callback = WGPU_POP_ERROR_SCOPE_CALLBACK_INFO_INIT;
  callback.mode = WGPUCallbackMode_WaitAnyOnly;
  callback.callback = on_popped;
  callback.userdata1 = &popped;
  return device.wait_for(device.api().wgpuDevicePopErrorScope(device.handle(), callback),
                         popped.done);
}

bool says_lost(std::string_view message) {
  return message.find("device is lost") != std::string_view::npos ||
         message.find("device was lost") != std::string_view::npos ||
         message.find("Device is lost") != std::string_view::npos ||
         message.find("Device lost") != std::string_view::npos;
}

}  // namespace

Scopes::Open::Open(Scopes& scopes, std::string_view tried) : scopes_(scopes), tried_(tried) {
  for (const WGPUErrorFilter filter : kFilters) {
    if (filter == WGPUErrorFilter_Internal && scopes_.device_.provider().native()) break;
    scopes_.device_.api().wgpuDevicePushErrorScope(scopes_.device_.handle(), filter);
    ++depth_;
  }
}

Scopes::Open::~Open() {
  // Needed only if body() threw.
  while (depth_ > 0) {
    Popped ignored;
    --depth_;
    static_cast<void>(pop(scopes_.device_, ignored));
  }
}

core::Status Scopes::Open::close() {
  const Device& device = scopes_.device_;
  core::Status first;
  while (depth_ > 0) {
    Popped popped;
    --depth_;
    core::Status waited = pop(device, popped);
    if (!first.ok()) continue;
    if (!waited.ok()) {
      first = std::move(waited);
    } else if (popped.failed || popped.type != WGPUErrorType_NoError) {
      if (says_lost(popped.message)) device.mark_lost(popped.message);
      const bool memory = popped.type == WGPUErrorType_OutOfMemory;
      first.code = memory ? ErrorCode::out_of_memory : ErrorCode::device_error;
      first.message = "webgpu: while ";
      first.message.append(tried_).append(": ").append(popped.message);
    }
  }
  core::Status lost = device.alive();
  if (!lost.ok()) return lost;
  return first;
}

std::string shader_line(std::string_view label, std::string_view message) {
  const auto number = [&](std::size_t& at) {
    const std::size_t begin = at;
    while (at < message.size() && std::isdigit(static_cast<unsigned char>(message[at])) != 0) ++at;
    return message.substr(begin, at - begin);
  };
  // Formats of the position: "wgsl:12:5" (naga), ":12:5" (tint).
  for (std::size_t at = message.find(':'); at != std::string_view::npos;
       at = message.find(':', at)) {
    const std::string_view line = number(++at);
    if (line.empty() || at >= message.size() || message[at] != ':') continue;
    const std::string_view column = number(++at);
    if (column.empty()) continue;
    std::string text(label);
    text.append(":").append(line).append(":").append(column).append(": ");
    return text;
  }
  return {};
}

}  // namespace attn::webgpu
