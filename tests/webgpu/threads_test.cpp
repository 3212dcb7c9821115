// Four threads on one device: build, allocate, submit, wait and read, each its own errors.
#include <thread>

#include "support.hpp"

namespace attn::webgpu {
namespace {

using test::add_spec;
using test::fails;
using test::is_ok;

using ThreadsTest = test::OnDevice;

TEST_F(ThreadsTest, ShareADevice) {
  Pipelines pipelines(device(), test::sources());
  const auto work = [&](std::uint32_t thread) {
    for (std::uint32_t round = 0; round < 15; ++round) {
      const std::uint32_t factor = 1 + (thread + round) % 5;
      const Pipeline* pipeline = nullptr;
      ASSERT_TRUE(is_ok(pipelines.get(add_spec(factor), pipeline)));
      test::Add add;
      ASSERT_TRUE(is_ok(add.create(device(), 500 + thread, thread)));
      BoundDispatch dispatch = add.dispatch(*pipeline);
      ASSERT_TRUE(is_ok(submit(device(), {&dispatch, 1})));
      EXPECT_EQ(test::wrong(device(), add, factor, thread), 0U);
      KernelSpec misspelt = add_spec();
      misspelt.constants[0].name = "FACTR";
      if (thread == 0) {  // the others see nothing of it
        EXPECT_TRUE(fails(pipelines.get(misspelt, pipeline), ErrorCode::device_error, "FACTR"));
      }
      ASSERT_TRUE(is_ok(wait(device())));
    }
  };
  std::vector<std::jthread> threads;
  for (std::uint32_t thread = 0; thread < 4; ++thread) threads.emplace_back(work, thread);
}

TEST_F(ThreadsTest, OpenTheProcesssDeviceOnce) {
  std::vector<std::shared_ptr<Device>> devices(4);
  {
    std::vector<std::jthread> threads;
    for (std::shared_ptr<Device>& one : devices) {
      threads.emplace_back([&one] { EXPECT_TRUE(is_ok(Device::process(one))); });
    }
  }
  for (const std::shared_ptr<Device>& one : devices) EXPECT_EQ(one, devices[0]);
}

}  // namespace
}  // namespace attn::webgpu
