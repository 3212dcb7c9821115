// Devices: opening, wrapping an engine's, facts, none at all, and losing one.
#include <cstdlib>

#include "support.hpp"

namespace attn::webgpu {
namespace {

using test::add_spec;
using test::fails;
using test::find_function;
using test::is_ok;

using DeviceTest = test::OnDevice;

Handles handles_of(Device& device) {
  return {.device = device.handle(),
          .queue = device.queue(),
          .instance = device.instance(),
          .lookup = find_function};
}

TEST_F(DeviceTest, TellsItsFacts) {
  const DeviceFacts& facts = device().facts();
  EXPECT_FALSE(facts.name.empty());
  EXPECT_NE(facts.backend, "unknown");
  EXPECT_GE(facts.max_storage_buffers, 8U);
  EXPECT_GE(facts.workgroup_bytes, 16384U);
  EXPECT_GE(facts.max_grid, 65535U);
  EXPECT_GE(facts.max_storage_binding_bytes, std::uint64_t{128} << 20);
  EXPECT_EQ(256 % facts.storage_alignment, 0U);
  EXPECT_EQ(256 % facts.uniform_alignment, 0U);
  EXPECT_NE(to_string(facts).find(facts.name), std::string::npos);
  if (facts.has_subgroups && facts.subgroup_size != 0) {
    EXPECT_EQ(facts.subgroup_size & (facts.subgroup_size - 1), 0U);
    EXPECT_LE(facts.subgroup_size, 128U);
  }
}

TEST_F(DeviceTest, IsChosenByName) {
  std::shared_ptr<Device> other;
  const std::string name = device().facts().name;
  ASSERT_TRUE(is_ok(Device::open(device().provider(), name.substr(1, 4), other)));
  EXPECT_TRUE(fails(Device::open(device().provider(), "no such name", other),
                    ErrorCode::unsupported, "no adapter is named 'no such name'; found "));
}

TEST_F(DeviceTest, SaysThatThereIsNoAdapter) {
  if (device().facts().backend != "vulkan") GTEST_SKIP() << "hides Vulkan's drivers only";
  setenv("VK_ICD_FILENAMES", "/nonexistent.json", 1);
  setenv("VK_DRIVER_FILES", "/nonexistent.json", 1);
  std::shared_ptr<Device> other;
  const core::Status status = Device::open(device().provider(), "", other);
  unsetenv("VK_ICD_FILENAMES");
  unsetenv("VK_DRIVER_FILES");
  EXPECT_TRUE(fails(status, ErrorCode::unsupported, "finds no adapter"));
  EXPECT_EQ(other, nullptr);
}

TEST_F(DeviceTest, OfTheProcessIsOne) {
  std::shared_ptr<Device> first;
  std::shared_ptr<Device> second;
  ASSERT_TRUE(is_ok(Device::process(first)));
  ASSERT_TRUE(is_ok(Device::process(second)));
  EXPECT_EQ(first, second);
  first->api().wgpuDeviceDestroy(first->handle());
  Buffer buffer;
  EXPECT_FALSE(Buffer::create(*first, 16, kStorageUsage, buffer).ok());
  ASSERT_TRUE(is_ok(Device::process(second))) << "after a loss, the device is opened again";
  EXPECT_NE(first, second);
  EXPECT_TRUE(is_ok(Buffer::create(*second, 16, kStorageUsage, buffer)));
}

TEST_F(DeviceTest, WrapsAnEngines) {
  std::shared_ptr<Device> wrapped;
  ASSERT_TRUE(is_ok(Device::wrap(handles_of(device()), wrapped)));
  DeviceFacts facts = wrapped->facts();  // all but what only the adapter tells
  facts.name = device().facts().name;
  facts.backend = device().facts().backend;
  facts.type = device().facts().type;
  facts.driver = device().facts().driver;
  facts.unrolls = device().facts().unrolls;  // these hang on the type
  facts.checks = device().facts().checks;
  facts.submission_flops = device().facts().submission_flops;
  EXPECT_EQ(facts, device().facts());
  Pipelines pipelines(*wrapped, test::sources());
  const Pipeline* pipeline = nullptr;
  ASSERT_TRUE(is_ok(pipelines.get(add_spec(2), pipeline)));
  test::Add add;
  ASSERT_TRUE(is_ok(add.create(*wrapped, 100)));
  const BoundDispatch dispatch = add.dispatch(*pipeline);
  ASSERT_TRUE(is_ok(submit(*wrapped, {&dispatch, 1})));
  EXPECT_EQ(test::wrong(*wrapped, add, 2), 0U);
}

TEST_F(DeviceTest, WrapsWithTheDevicesOwnQueue) {
  Handles handles = handles_of(device());
  handles.queue = nullptr;
  std::shared_ptr<Device> wrapped;
  ASSERT_TRUE(is_ok(Device::wrap(handles, wrapped)));
  EXPECT_TRUE(is_ok(wait(*wrapped)));
}

TEST_F(DeviceTest, RefusesHandlesThatLackSomething) {
  std::shared_ptr<Device> wrapped;
  EXPECT_TRUE(fails(Device::wrap({}, wrapped), ErrorCode::invalid_argument, "device: found null"));
  Handles handles = handles_of(device());
  handles.lookup = [](const char*) -> void* { return nullptr; };
  EXPECT_TRUE(fails(Device::wrap(handles, wrapped), ErrorCode::unsupported,
                    "the caller's lookup finds no"));
}

// A device that its engine destroys under us: each call answers, none aborts.
class LostTest : public test::OnDevice, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (device_ == nullptr) return;
    owner_ = device_;
    if (GetParam()) {
      ASSERT_TRUE(is_ok(test::open_beside(*owner_, device_)));
    }
    pipelines_ = std::make_unique<Pipelines>(device(), test::sources());
    ASSERT_TRUE(is_ok(pipelines_->get(add_spec(), pipeline_)));
    ASSERT_TRUE(is_ok(add_.create(device(), 64)));
    dispatch_ = add_.dispatch(*pipeline_);
  }
  void TearDown() override {
    add_ = {};
    pipelines_.reset();
    device_.reset();
    owner_.reset();
  }
  void lose() { device().api().wgpuDeviceDestroy(device().handle()); }
  static void expect_lost(const core::Status& status) {
    EXPECT_TRUE(fails(status, ErrorCode::device_error, "lost"));
  }

  std::shared_ptr<Device> owner_;
  std::unique_ptr<Pipelines> pipelines_;
  const Pipeline* pipeline_ = nullptr;
  test::Add add_;
  BoundDispatch dispatch_;
};

TEST_P(LostTest, Submitting) {
  lose();
  expect_lost(submit(device(), {&dispatch_, 1}));
  expect_lost(device().alive());
  expect_lost(submit(device(), {&dispatch_, 1}));
}

TEST_P(LostTest, SubmittingWithTime) {
  lose();
  double seconds = 0;
  expect_lost(submit(device(), {&dispatch_, 1}, &seconds));
}

TEST_P(LostTest, Recording) {
  const ProviderApi& api = device().api();
  WGPUCommandEncoder encoder = api.wgpuDeviceCreateCommandEncoder(device().handle(), nullptr);
  lose();
  expect_lost(record(device(), {&dispatch_, 1}, encoder));
  api.wgpuCommandEncoderRelease(encoder);
}

TEST_P(LostTest, Building) {
  lose();
  const Pipeline* other = nullptr;
  expect_lost(pipelines_->get(add_spec(7), other));
  EXPECT_EQ(other, nullptr);
  const std::vector<KernelSpec> specs{add_spec(8), add_spec(9)};
  expect_lost(pipelines_->get_all(specs, 2));
}

TEST_P(LostTest, Allocating) {
  lose();
  Buffer buffer;
  expect_lost(Buffer::create(device(), 64, kStorageUsage, buffer));
}

TEST_P(LostTest, Uploading) {
  lose();
  std::vector<std::byte> few(64);
  expect_lost(upload(device(), add_.a.handle(), 0, few));
}

TEST_P(LostTest, UploadingMuch) {
  std::vector<std::byte> many(2 << 20);
  Buffer large;
  ASSERT_TRUE(is_ok(Buffer::create(device(), many.size(), kStorageUsage, large)));
  lose();
  expect_lost(upload(device(), large.handle(), 0, many));
}

TEST_P(LostTest, Downloading) {
  std::vector<std::byte> few(64);
  ASSERT_TRUE(is_ok(download(device(), add_.a.handle(), 0, few)));
  lose();
  expect_lost(download(device(), add_.a.handle(), 0, few));
}

TEST_P(LostTest, WhileWorkIsQueued) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(is_ok(submit(device(), {&dispatch_, 1})));
  lose();
  expect_lost(submit(device(), {&dispatch_, 1}));
}

TEST_P(LostTest, Waiting) {
  ASSERT_TRUE(is_ok(submit(device(), {&dispatch_, 1})));
  lose();
  // What was submitted before has run; the loss may show only when the device is used again.
  const core::Status status = wait(device());
  if (!status.ok()) expect_lost(status);
  std::vector<std::byte> few(64);
  expect_lost(download(device(), add_.c.handle(), 0, few));
  expect_lost(wait(device()));
}

INSTANTIATE_TEST_SUITE_P(Of, LostTest, testing::Values(false, true),
                         [](const auto& which) { return which.param ? "an_engine" : "ours"; });

}  // namespace
}  // namespace attn::webgpu
