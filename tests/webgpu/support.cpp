// See support.hpp.
#include "support.hpp"

#include <array>

namespace attn::webgpu::test {
namespace {

constexpr std::string_view kAdd = R"(
struct Parameters {
  count: u32,
  offset: u32,
}
override FACTOR: u32 = 1u;
@group(0) @binding(0) var<uniform> parameters: Parameters;
@group(0) @binding(1) var<storage, read> a: array<u32>;
@group(0) @binding(2) var<storage, read> b: array<u32>;
@group(0) @binding(3) var<storage, read_write> c: array<u32>;

@compute @workgroup_size(64)
fn add(@builtin(global_invocation_id) id: vec3<u32>) {
  let i = id.x;
  if (i < parameters.count) {
    c[i] = a[i] + b[i] * FACTOR + parameters.offset;
  }
}
)";

constexpr std::string_view kBroken =
    "@group(0) @binding(1) var<storage, read_write> c: array<u32>;\n"
    "@compute @workgroup_size(1)\n"
    "fn broken() {\n"
    "  c[0] = nothing;\n"
    "}\n";

constexpr Source kSources[] = {{"add", kAdd}, {"broken", kBroken}};

}  // namespace

std::span<const Source> sources() {
  return kSources;
}

void OnDevice::SetUp() {
  std::string reason;
  const Provider* provider = Provider::get(reason);
  if (provider == nullptr) GTEST_SKIP() << reason;
  const core::Status status = Device::open(*provider, "", device_);
  if (status.code == ErrorCode::unsupported) GTEST_SKIP() << status.message;
  ASSERT_TRUE(is_ok(status));
}

KernelSpec add_spec(double factor) {
  KernelSpec spec;
  spec.source = "add";
  spec.entry = "add";
  spec.bindings = {Access::read, Access::read, Access::write};
  spec.num_bindings = 3;
  spec.constants[0] = {"FACTOR", factor};
  spec.num_constants = 1;
  return spec;
}

core::Status Add::create(Device& device, std::uint32_t words, std::uint32_t offset) {
  count = words;
  std::vector<std::uint32_t> values(words);
  std::array<Buffer*, 3> buffers{&a, &b, &c};
  for (std::uint32_t which = 0; which < 3; ++which) {
    for (std::uint32_t i = 0; i < words; ++i) values[i] = which < 2 ? i * (which + 1) : 0xdeadbeef;
    Buffer& buffer = *buffers[which];
    core::Status status = Buffer::create(device, 4 * words, kStorageUsage, buffer);
    if (status.ok()) {
      status = upload(device, buffer.handle(), 0, std::as_bytes(std::span(values)));
    }
    if (!status.ok()) return status;
  }
  const AddParameters values_of{words, offset, {}};
  core::Status status = Buffer::create(device, sizeof(values_of), kUniformUsage, parameters);
  if (!status.ok()) return status;
  return upload(device, parameters.handle(), 0, std::as_bytes(std::span(&values_of, 1)));
}

BoundDispatch Add::dispatch(const Pipeline& pipeline) const {
  BoundDispatch dispatch;
  dispatch.pipeline = &pipeline;
  const std::uint64_t bytes = std::uint64_t{4} * count;
  dispatch.bound[0] = {a.handle(), 0, bytes};
  dispatch.bound[1] = {b.handle(), 0, bytes};
  dispatch.bound[2] = {c.handle(), 0, bytes};
  dispatch.parameters = {parameters.handle(), 0, sizeof(AddParameters)};
  dispatch.grid = {(count + 63) / 64, 1, 1};
  return dispatch;
}

std::size_t wrong(Device& device, const Add& add, std::uint32_t factor, std::uint32_t offset) {
  std::vector<std::uint32_t> values(add.count);
  const core::Status status =
      download(device, add.c.handle(), 0, std::as_writable_bytes(std::span(values)));
  EXPECT_TRUE(is_ok(status));
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < add.count; ++i) count += values[i] != i + 2 * i * factor + offset;
  return count;
}

void* find_function(const char* name) {
  std::string reason;
  const Provider* provider = Provider::get(reason);
  if (provider == nullptr) return nullptr;
  const std::string_view wanted(name);
#define ATTN_FIND(function)                                                \
  if (wanted == #function) {                                               \
    return reinterpret_cast<void*>(provider->api().function); /* NOLINT */ \
  }
  ATTN_WEBGPU_FUNCTIONS(ATTN_FIND)
  ATTN_WEBGPU_NATIVE_FUNCTIONS(ATTN_FIND)
  ATTN_WEBGPU_DAWN_FUNCTIONS(ATTN_FIND)
#undef ATTN_FIND
  return nullptr;
}

core::Status open_beside(Device& device, std::shared_ptr<Device>& other) {
  const ProviderApi& api = device.api();
  WGPUAdapter adapter = nullptr;
  WGPURequestAdapterCallbackInfo on_adapter = WGPU_REQUEST_ADAPTER_CALLBACK_INFO_INIT;
  on_adapter.mode = WGPUCallbackMode_AllowSpontaneous;
  on_adapter.callback = [](WGPURequestAdapterStatus, WGPUAdapter got, WGPUStringView, void* to,
                           void*) { *static_cast<WGPUAdapter*>(to) = got; };
  on_adapter.userdata1 = &adapter;
  api.wgpuInstanceRequestAdapter(device.instance(), nullptr, on_adapter);
  if (adapter == nullptr) return core::Status::unsupported("no second adapter");
  WGPUDevice made = nullptr;
  WGPUDeviceDescriptor descriptor = WGPU_DEVICE_DESCRIPTOR_INIT;
  WGPURequestDeviceCallbackInfo on_device = WGPU_REQUEST_DEVICE_CALLBACK_INFO_INIT;
  on_device.mode = WGPUCallbackMode_AllowSpontaneous;
  on_device.callback = [](WGPURequestDeviceStatus, WGPUDevice got, WGPUStringView, void* to,
                          void*) { *static_cast<WGPUDevice*>(to) = got; };
  on_device.userdata1 = &made;
  api.wgpuAdapterRequestDevice(adapter, &descriptor, on_device);
  api.wgpuAdapterRelease(adapter);
  if (made == nullptr) return core::Status::unsupported("no second device");
  core::Status status =
      Device::wrap({.device = made, .instance = device.instance(), .lookup = find_function}, other);
  api.wgpuDeviceRelease(made);
  return status;
}

const Provider* provider_with(void (*change)(ProviderApi& api)) {
  std::string reason;
  const Provider* real = Provider::get(reason);
  if (real == nullptr) return nullptr;
  ProviderApi api = real->api();
  change(api);
  static auto& kept = *new std::vector<std::unique_ptr<const Provider>>;
  kept.push_back(Provider::from(api, real->kind()).provider);
  return kept.back().get();
}

testing::AssertionResult is_ok(const core::Status& status) {
  if (status.ok()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << to_string(status.code) << ": " << status.message;
}

testing::AssertionResult fails(const core::Status& status, ErrorCode code,
                               const std::string& text) {
  if (status.code != code) {
    return testing::AssertionFailure() << to_string(status.code) << ": " << status.message;
  }
  if (status.message.find(text) == std::string::npos) {
    return testing::AssertionFailure() << "no '" << text << "' in: " << status.message;
  }
  return testing::AssertionSuccess();
}

}  // namespace attn::webgpu::test
