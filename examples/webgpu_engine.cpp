// An engine that has its own WebGPU device: libattn records a forward and a backward into the
// engine's command encoder, on the engine's buffers. Exit code 77: WebGPU finds no GPU.
#include <webgpu.h>
#include <wgpu.h>  // wgpu-native's wgpuDevicePoll

#include <attn/attn.hpp>
#include <attn/webgpu.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

constexpr std::int64_t kLen = 96, kHeads = 4, kDim = 32, kCount = kLen * kHeads * kDim;
constexpr std::int64_t kBytes = kCount * 4;
constexpr WGPUBufferUsage kStorage = WGPUBufferUsage_Storage, kTo = WGPUBufferUsage_CopyDst;
constexpr WGPUCallbackMode kMode = WGPUCallbackMode_AllowSpontaneous;

// Releases all objects added to it on destruction.
struct Owner {
  std::vector<std::shared_ptr<void>> all;
  auto keep(auto handle, auto release) { return all.emplace_back(handle, release), handle; }
  WGPUBuffer make(WGPUDevice device, std::uint64_t bytes, WGPUBufferUsage usage) {
    const WGPUBufferDescriptor descriptor = {nullptr, {}, usage, bytes, 0};
    return keep(wgpuDeviceCreateBuffer(device, &descriptor), wgpuBufferRelease);
  }
};

int main() {
  constexpr auto give = [](auto, auto made, auto, void* to, void*) {
    *static_cast<decltype(made)*>(to) = made;
  };
  Owner own;
  WGPUAdapter adapter = nullptr;
  WGPUDevice device = nullptr;
  WGPUInstance instance = own.keep(wgpuCreateInstance(nullptr), wgpuInstanceRelease);
  wgpuInstanceRequestAdapter(instance, nullptr, {nullptr, kMode, give, &adapter, nullptr});
  if (adapter == nullptr) return 77;
  own.keep(adapter, wgpuAdapterRelease);
  wgpuAdapterRequestDevice(adapter, nullptr, {nullptr, kMode, give, &device, nullptr});
  own.keep(device, wgpuDeviceRelease);
  WGPUQueue queue = own.keep(wgpuDeviceGetQueue(device), wgpuQueueRelease);
  using A = attn::Arguments;
  A there, here;  // on the GPU; and the same on the host, to compare with
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::vector<float>> memory(9, std::vector<float>(kCount));
  auto values = memory.begin();
  for (const auto member :
       {&A::q, &A::k, &A::v, &A::o, &A::dout, &A::dq, &A::dk, &A::dv, &A::lse}) {
    for (float& x : *values) x = normal(random);
    const void* at = values->data();
    here.*member = attn::TensorView::contiguous(at, attn::DType::f32, {1, kLen, kHeads, kDim});
    if (member == &A::lse) here.lse = here.lse.contiguous(at, attn::DType::f32, {1, kHeads, kLen});
    there.*member = here.*member;
    (there.*member).device = attn::Device::webgpu;
    WGPUBuffer buffer = own.make(device, kBytes, kStorage | WGPUBufferUsage_CopySrc | kTo);
    (there.*member).data = buffer;
    wgpuQueueWriteBuffer(queue, buffer, 0, (values++)->data(), kBytes);
  }
  attn::Problem problem = attn::describe(there);
  problem.causal = true;

  const auto adopted = attn::webgpu::adopt({.device = device, .queue = queue, .adapter = adapter});
  WGPUCommandEncoder encoder =
      own.keep(wgpuDeviceCreateCommandEncoder(device, nullptr), wgpuCommandEncoderRelease);
  for (const attn::Pass pass : {attn::Pass::forward, attn::Pass::backward}) {
    attn::webgpu::Recording call(adopted, pass, problem, there);
    const attn::webgpu::Needs needs = call.needs();
    const auto scratch = [&](std::uint64_t bytes, WGPUBufferUsage usage) {
      return attn::webgpu::Range{own.make(device, bytes, kStorage | usage), 0, bytes};
    };
    call.use({.info = scratch(needs.info, 0),
              .prepared = scratch(needs.prepared, 0),
              .staged = scratch(needs.staged, 0),
              .parameters = scratch(needs.parameters, WGPUBufferUsage_Uniform | kTo)});
    for (int chunk = 0; chunk < call.num_chunks(); ++chunk) call.record(chunk, encoder);
  }
  WGPUBuffer result = own.make(device, kBytes, WGPUBufferUsage_MapRead | kTo);
  wgpuCommandEncoderCopyBufferToBuffer(encoder, static_cast<WGPUBuffer>(there.dq.data), 0, result,
                                       0, kBytes);
  WGPUCommandBuffer commands =
      own.keep(wgpuCommandEncoderFinish(encoder, nullptr), wgpuCommandBufferRelease);
  wgpuQueueSubmit(queue, 1, &commands);
  constexpr auto ignore = [](auto, auto, auto, auto) {};
  wgpuBufferMapAsync(result, WGPUMapMode_Read, 0, kBytes,
                     {nullptr, kMode, ignore, nullptr, nullptr});
  wgpuDevicePoll(device, 1, nullptr);
  const auto* found = static_cast<const float*>(wgpuBufferGetConstMappedRange(result, 0, kBytes));

  attn::Context context;
  attn::forward(context, problem, here);
  attn::backward(context, problem, here);
  const auto* expected = static_cast<const float*>(here.dq.data);
  bool right = true;
  for (int n = 0; n < kCount; ++n) right = right && std::fabs(found[n] - expected[n]) <= 1e-4f;
  std::printf("%s: dq is %s\n", describe(*adopted).c_str(), right ? "right" : "WRONG");
  return right ? 0 : 1;
}
