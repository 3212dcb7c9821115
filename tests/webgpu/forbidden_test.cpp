// What makes wgpu-native abort the process, besides functions that are never looked up (see
// provider_test.cpp): a table that counts shows that none of it is reached.
#include <stdexcept>

#include "support.hpp"
#include "webgpu/host/encoder.hpp"

namespace attn::webgpu {
namespace {

using test::fails;
using test::is_ok;

// What the counting functions hand on to.
ProviderApi* const real = new ProviderApi;

struct Counts {
  int depth = 0;  // of error scopes
  int most_scopes = 0;
  int popped_empty = 0;
  int internal_scopes = 0;
  int submits = 0;
  int without_callbacks = 0;  // devices requested without one for errors or loss
  int mapped_ranges = 0;
  bool spoil_mapped = false;  // makes buffers that are mapped at creation invalid
};
Counts counts;

void push(WGPUDevice device, WGPUErrorFilter filter) {
  counts.most_scopes = std::max(counts.most_scopes, ++counts.depth);
  counts.internal_scopes += filter == WGPUErrorFilter_Internal ? 1 : 0;
  real->wgpuDevicePushErrorScope(device, filter);
}

WGPUFuture pop(WGPUDevice device, WGPUPopErrorScopeCallbackInfo callback) {
  if (--counts.depth < 0) ++counts.popped_empty;
  return real->wgpuDevicePopErrorScope(device, callback);
}

void submit_counted(WGPUQueue queue, std::size_t count, const WGPUCommandBuffer* commands) {
  ++counts.submits;
  real->wgpuQueueSubmit(queue, count, commands);
}

WGPUFuture request(WGPUAdapter adapter, const WGPUDeviceDescriptor* descriptor,
                   WGPURequestDeviceCallbackInfo callback) {
  if (descriptor->uncapturedErrorCallbackInfo.callback == nullptr ||
      descriptor->deviceLostCallbackInfo.callback == nullptr) {
    ++counts.without_callbacks;
  }
  return real->wgpuAdapterRequestDevice(adapter, descriptor, callback);
}

WGPUBuffer create_buffer(WGPUDevice device, const WGPUBufferDescriptor* descriptor) {
  WGPUBufferDescriptor spoilt = *descriptor;
  if (counts.spoil_mapped && spoilt.mappedAtCreation != WGPU_FALSE) {
    spoilt.usage = WGPUBufferUsage_MapRead | WGPUBufferUsage_Storage;
  }
  return real->wgpuDeviceCreateBuffer(device, &spoilt);
}

void* mapped_range(WGPUBuffer buffer, std::size_t offset, std::size_t size) {
  ++counts.mapped_ranges;
  return real->wgpuBufferGetMappedRange(buffer, offset, size);
}

class ForbiddenTest : public testing::Test {
 protected:
  void SetUp() override {
    provider_ = test::provider_with([](ProviderApi& api) {
      *real = api;
      api.wgpuDevicePushErrorScope = push;
      api.wgpuDevicePopErrorScope = pop;
      api.wgpuQueueSubmit = submit_counted;
      api.wgpuAdapterRequestDevice = request;
      api.wgpuDeviceCreateBuffer = create_buffer;
      api.wgpuBufferGetMappedRange = mapped_range;
    });
    if (provider_ == nullptr) GTEST_SKIP() << "no WebGPU library";
    counts = {};
    const core::Status status = Device::open(*provider_, "", device_);
    if (status.code == ErrorCode::unsupported) GTEST_SKIP() << status.message;
    ASSERT_TRUE(is_ok(status));
    ASSERT_TRUE(is_ok(Buffer::create(*device_, 64, kStorageUsage, buffer_)));
    counts.submits = 0;
  }
  void TearDown() override {
    buffer_.reset();
    device_.reset();
    EXPECT_EQ(counts.depth, 0);
    EXPECT_EQ(counts.popped_empty, 0);
    EXPECT_EQ(counts.without_callbacks, 0);
    if (provider_ != nullptr && provider_->native()) {
      EXPECT_EQ(counts.internal_scopes, 0);
    }
  }

  const Provider* provider_ = nullptr;
  std::shared_ptr<Device> device_;
  Buffer buffer_;
};

TEST_F(ForbiddenTest, AFailedFinishIsNotSubmitted) {
  WGPUCommandEncoder encoder = nullptr;
  ASSERT_TRUE(is_ok(create_encoder(*device_, encoder)));
  // Past the end of the buffer.
  device_->api().wgpuCommandEncoderCopyBufferToBuffer(encoder, buffer_.handle(), 0,
                                                      buffer_.handle(), 1024, 64);
  EXPECT_TRUE(fails(finish_and_submit(*device_, "recording nonsense", encoder),
                    ErrorCode::device_error, "while recording nonsense"));
  EXPECT_EQ(counts.submits, 0);
  EXPECT_TRUE(is_ok(device_->alive()));
  std::vector<std::byte> bytes(64);
  EXPECT_TRUE(is_ok(download(*device_, buffer_.handle(), 0, bytes))) << "the next one works";
  EXPECT_EQ(counts.submits, 1);
}

TEST_F(ForbiddenTest, AnEncoderThatWasFinishedIsNotSubmitted) {
  WGPUCommandEncoder encoder = nullptr;
  ASSERT_TRUE(is_ok(create_encoder(*device_, encoder)));
  real->wgpuCommandBufferRelease(real->wgpuCommandEncoderFinish(encoder, nullptr));
  EXPECT_FALSE(finish_and_submit(*device_, "finishing twice", encoder).ok());
  EXPECT_EQ(counts.submits, 0);
}

TEST_F(ForbiddenTest, ScopesAreClosedWhereTheBodyThrows) {
  EXPECT_THROW(static_cast<void>(device_->scopes().run(
                   "throwing", [] { throw std::runtime_error("from inside"); })),
               std::runtime_error);
  EXPECT_EQ(counts.depth, 0);
  EXPECT_GE(counts.most_scopes, 2);
  EXPECT_TRUE(is_ok(device_->scopes().run("nothing", [] {})));
}

TEST_F(ForbiddenTest, ErrorsWithoutAScopeAreKept) {
  // Past the end of the buffer, outside of a scope: the next wait reports it.
  const std::uint32_t word = 0;
  device_->api().wgpuQueueWriteBuffer(device_->queue(), buffer_.handle(), 4096, &word, 4);
  EXPECT_TRUE(fails(wait(*device_), ErrorCode::device_error, "webgpu: "));
  EXPECT_TRUE(is_ok(wait(*device_)));
}

TEST_F(ForbiddenTest, ABufferThatWasNotMadeIsNotMapped) {
  Buffer large;
  ASSERT_TRUE(is_ok(Buffer::create(*device_, 2 << 20, kStorageUsage, large)));
  counts.spoil_mapped = true;
  const std::vector<std::byte> bytes(2 << 20);
  EXPECT_TRUE(fails(upload(*device_, large.handle(), 0, bytes), ErrorCode::device_error,
                    "while allocating staging memory"));
  EXPECT_EQ(counts.mapped_ranges, 0);
  counts.spoil_mapped = false;
  EXPECT_TRUE(is_ok(upload(*device_, large.handle(), 0, bytes)));
  EXPECT_EQ(counts.mapped_ranges, 1);
}

// The other device has the same instance: wgpu-native cannot recognize buffers of another instance.
TEST_F(ForbiddenTest, BuffersOfAnotherDevice) {
  std::shared_ptr<Device> other;
  ASSERT_TRUE(is_ok(test::open_beside(*device_, other)));
  counts.without_callbacks = 0;  // the engine's
  Buffer foreign;
  ASSERT_TRUE(is_ok(Buffer::create(*other, 64, kStorageUsage, foreign)));
  Pipelines pipelines(*device_, test::sources());
  const Pipeline* pipeline = nullptr;
  ASSERT_TRUE(is_ok(pipelines.get(test::add_spec(), pipeline)));
  test::Add add;
  ASSERT_TRUE(is_ok(add.create(*device_, 16)));
  counts.submits = 0;
  BoundDispatch dispatch = add.dispatch(*pipeline);
  dispatch.bound[0].buffer = foreign.handle();
  EXPECT_TRUE(fails(submit(*device_, {&dispatch, 1}), ErrorCode::device_error,
                    "while binding the memory of a call"));
  EXPECT_EQ(counts.submits, 0);
  std::vector<std::byte> bytes(16);
  EXPECT_TRUE(
      fails(upload(*device_, foreign.handle(), 0, bytes), ErrorCode::device_error, "webgpu: "));
  EXPECT_TRUE(
      fails(download(*device_, foreign.handle(), 0, bytes), ErrorCode::device_error, "webgpu: "));
}

}  // namespace
}  // namespace attn::webgpu
