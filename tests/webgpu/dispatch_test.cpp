// Dispatches: what they compute, what is refused before the provider sees it.
#include "support.hpp"

namespace attn::webgpu {
namespace {

using test::add_spec;
using test::fails;
using test::is_ok;

constexpr std::uint32_t kCount = 1000;

class DispatchTest : public test::OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (device_ == nullptr) return;
    pipelines_ = std::make_unique<Pipelines>(device(), test::sources());
    ASSERT_TRUE(is_ok(pipelines_->get(add_spec(3), pipeline_)));
    ASSERT_TRUE(is_ok(add_.create(device(), kCount)));
    dispatch_ = add_.dispatch(*pipeline_);
  }
  void TearDown() override {
    add_ = {};
    pipelines_.reset();
  }
  core::Status submit_it() { return submit(device(), {&dispatch_, 1}); }
  void expect_refused(const std::string& text) {
    EXPECT_TRUE(fails(submit_it(), ErrorCode::invalid_argument, text));
    EXPECT_TRUE(is_ok(wait(device())));
    EXPECT_EQ(test::wrong(device(), add_, 3), kCount) << "something was written";
  }

  std::unique_ptr<Pipelines> pipelines_;
  const Pipeline* pipeline_ = nullptr;
  test::Add add_;
  BoundDispatch dispatch_;
};

TEST_F(DispatchTest, Computes) {
  ASSERT_TRUE(is_ok(submit_it()));
  ASSERT_TRUE(is_ok(wait(device())));
  EXPECT_EQ(test::wrong(device(), add_, 3), 0);
}

TEST_F(DispatchTest, TellsItsTime) {
  double seconds = -1;
  ASSERT_TRUE(is_ok(submit(device(), {&dispatch_, 1}, &seconds)));
  EXPECT_EQ(test::wrong(device(), add_, 3), 0);
  if (device().facts().has_timestamps) {
    EXPECT_GT(seconds, 0);
    EXPECT_LT(seconds, 10);
  } else {
    EXPECT_EQ(seconds, 0);
  }
}

TEST_F(DispatchTest, RecordsIntoTheCallersEncoder) {
  const ProviderApi& api = device().api();
  WGPUCommandEncoder encoder = api.wgpuDeviceCreateCommandEncoder(device().handle(), nullptr);
  ASSERT_TRUE(is_ok(record(device(), {&dispatch_, 1}, encoder)));
  ASSERT_TRUE(is_ok(record(device(), {&dispatch_, 1}, encoder)));
  EXPECT_EQ(test::wrong(device(), add_, 3), kCount) << "submitted";
  WGPUCommandBuffer commands = api.wgpuCommandEncoderFinish(encoder, nullptr);
  api.wgpuQueueSubmit(device().queue(), 1, &commands);
  api.wgpuCommandBufferRelease(commands);
  api.wgpuCommandEncoderRelease(encoder);
  EXPECT_EQ(test::wrong(device(), add_, 3), 0);
  EXPECT_TRUE(fails(record(device(), {&dispatch_, 1}, nullptr), ErrorCode::invalid_argument,
                    "encoder: found null"));
}

TEST_F(DispatchTest, AnswersForEncodersThatCantBeRecordedInto) {
  std::shared_ptr<Device> engine;  // where an error that no scope catches aborts the process
  ASSERT_TRUE(is_ok(test::open_beside(device(), engine)));
  const ProviderApi& api = engine->api();
  Pipelines pipelines(*engine, test::sources());
  const Pipeline* pipeline = nullptr;
  ASSERT_TRUE(is_ok(pipelines.get(add_spec(3), pipeline)));
  test::Add add;
  ASSERT_TRUE(is_ok(add.create(*engine, kCount)));
  const BoundDispatch dispatch = add.dispatch(*pipeline);

  WGPUCommandEncoder encoder = api.wgpuDeviceCreateCommandEncoder(engine->handle(), nullptr);
  WGPUCommandBuffer commands = api.wgpuCommandEncoderFinish(encoder, nullptr);
  EXPECT_FALSE(record(*engine, {&dispatch, 1}, encoder).ok()) << "finished";
  api.wgpuCommandBufferRelease(commands);
  api.wgpuCommandEncoderRelease(encoder);

  encoder = api.wgpuDeviceCreateCommandEncoder(engine->handle(), nullptr);
  WGPUComputePassEncoder pass = api.wgpuCommandEncoderBeginComputePass(encoder, nullptr);
  static_cast<void>(record(*engine, {&dispatch, 1}, encoder));  // Finish reports it at the latest
  static_cast<void>(engine->scopes().run("ending a pass", [&] {
    api.wgpuComputePassEncoderEnd(pass);
    api.wgpuComputePassEncoderRelease(pass);
  }));
  EXPECT_FALSE(
      engine->scopes()
          .run("finishing", [&] { commands = api.wgpuCommandEncoderFinish(encoder, nullptr); })
          .ok());
  api.wgpuCommandBufferRelease(commands);
  api.wgpuCommandEncoderRelease(encoder);
  ASSERT_TRUE(is_ok(submit(*engine, {&dispatch, 1}))) << "the device is as it was";
  EXPECT_EQ(test::wrong(*engine, add, 3), 0U);
}

TEST_F(DispatchTest, LaterOnesSeeWhatEarlierOnesWrote) {
  test::Add other;
  ASSERT_TRUE(is_ok(other.create(device(), kCount)));
  BoundDispatch second = other.dispatch(*pipeline_);
  second.bound[0].buffer = add_.c.handle();  // (i + 6 i) + 3 * 2 i
  const std::vector<BoundDispatch> both{dispatch_, second};
  ASSERT_TRUE(is_ok(submit(device(), both)));
  EXPECT_EQ(test::wrong(device(), other, 6), 0);
}

TEST_F(DispatchTest, LeavesOutEmptyGrids) {
  dispatch_.grid = {0, 1, 1};
  dispatch_.bound[0] = {};
  ASSERT_TRUE(is_ok(submit_it()));
  EXPECT_EQ(test::wrong(device(), add_, 3), kCount);
}

TEST_F(DispatchTest, RefusesGridsOverTheLimit) {
  dispatch_.grid = {1, device().facts().max_grid + 1, 1};
  expect_refused("grid: found " + std::to_string(device().facts().max_grid + 1));
}

TEST_F(DispatchTest, RefusesMisalignedOffsets) {
  dispatch_.bound[1].offset = 4;
  dispatch_.bound[1].size -= 4;
  if (device().facts().storage_alignment > 4) expect_refused("binding 2, offset: found 4");
  dispatch_ = add_.dispatch(*pipeline_);
  dispatch_.parameters.offset = 8;
  expect_refused("parameters, offset: found 8");
}

TEST_F(DispatchTest, RefusesTooSmallBuffers) {
  dispatch_.bound[0].size = add_.a.size() + 4;
  expect_refused("binding 1, last byte");
  dispatch_ = add_.dispatch(*pipeline_);
  dispatch_.bound[0].offset = std::uint64_t{1} << 40;
  expect_refused("binding 1, last byte");
  dispatch_ = add_.dispatch(*pipeline_);
  dispatch_.bound[0].offset = ~std::uint64_t{0} - 255;
  expect_refused("binding 1, last byte");
}

TEST_F(DispatchTest, RefusesSizesThatCantBeBound) {
  dispatch_.bound[2].size = 0;
  expect_refused("binding 3, size: found 0");
  dispatch_.bound[2].size = 6;
  expect_refused("binding 3, size: found 6");
  dispatch_.bound[2].size = device().facts().max_storage_binding_bytes + 4;
  expect_refused("binding 3, size");
}

TEST_F(DispatchTest, RefusesNullBuffers) {
  dispatch_.bound[1].buffer = nullptr;
  expect_refused("binding 2: found a null buffer");
  dispatch_ = add_.dispatch(*pipeline_);
  dispatch_.parameters = {};
  expect_refused("parameters: found a null buffer");
}

TEST_F(DispatchTest, RefusesBuffersWithoutTheUsage) {
  dispatch_.bound[0] = {add_.parameters.handle(), 0, 16};
  expect_refused("binding 1: found a buffer without usage Storage");
  dispatch_ = add_.dispatch(*pipeline_);
  dispatch_.parameters.buffer = add_.a.handle();
  expect_refused("parameters: found a buffer without usage Uniform");
}

TEST_F(DispatchTest, RefusesOneBufferReadAndWritten) {
  dispatch_.bound[0].buffer = add_.c.handle();
  expect_refused("binding 1 and binding 3: found one buffer, read and written");
}

TEST_F(DispatchTest, RefusesPipelinesOfOtherDevices) {
  std::shared_ptr<Device> other;
  ASSERT_TRUE(is_ok(Device::open(device().provider(), "", other)));
  EXPECT_TRUE(
      fails(submit(*other, {&dispatch_, 1}), ErrorCode::invalid_argument, "one of another device"));
}

}  // namespace
}  // namespace attn::webgpu
