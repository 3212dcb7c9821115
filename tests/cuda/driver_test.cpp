// Opening the driver, its errors, devices, contexts and pointers, on a driver without a device.
#include "cuda/host/driver.hpp"

#include <cstdlib>

#include "cuda/host/device.hpp"
#include "fake.hpp"

namespace attn::cuda::test {
namespace {

class CudaDriver : public WithFakeDriver {};

TEST_F(CudaDriver, SaysWhyThereIsNone) {
  const Driver::Opened missing = Driver::open("libattn-no-such-driver.so.1");
  EXPECT_EQ(missing.driver, nullptr);
  EXPECT_EQ(missing.reason.find("no CUDA driver: libattn-no-such-driver.so.1: cannot open"), 0u)
      << missing.reason;

  const Driver::Opened other = Driver::open("libm.so.6");
  EXPECT_EQ(other.driver, nullptr);
  EXPECT_EQ(other.reason, "libm.so.6 is no CUDA driver: it has no cuInit");

  fake().version = 11080;
  const Driver::Opened old = Driver::open(ATTN_FAKE_DRIVER);
  EXPECT_EQ(old.driver, nullptr);
  EXPECT_EQ(old.reason,
            "the CUDA driver found is for CUDA 11.8; CUDA 12.0 (driver 525) or later is needed");

  fake().version = 12020;
  fake().init_result = abi::kNoDevice;
  EXPECT_EQ(Driver::open(ATTN_FAKE_DRIVER).reason,
            "the CUDA driver found is for CUDA 12.2; no CUDA device was found");
  fake().init_result = 999;
  EXPECT_EQ(Driver::open(ATTN_FAKE_DRIVER).reason,
            "the CUDA driver found is for CUDA 12.2; cuInit: CUDA_ERROR_FAKE (as the test asked)");
  fake().init_result = 0;
  fake().num_devices = 0;
  EXPECT_EQ(Driver::open(ATTN_FAKE_DRIVER).reason,
            "the CUDA driver found is for CUDA 12.2; no CUDA device was found");
}

TEST_F(CudaDriver, Opens) {
  const Driver::Opened opened = Driver::open(ATTN_FAKE_DRIVER);
  ASSERT_NE(opened.driver, nullptr) << opened.reason;
  EXPECT_EQ(opened.driver->version(), 13000);
  EXPECT_EQ(opened.driver->num_devices(), 2);
  EXPECT_EQ(version_text(12080), "12.8");
}

TEST_F(CudaDriver, ErrorsSayWhatWasTried) {
  const Driver& driver = fake_driver();
  EXPECT_TRUE(driver.status(0, "cuInit", "nothing").ok());
  const core::Status memory = driver.status(2, "cuMemAllocAsync", "making room");
  EXPECT_EQ(memory.code, ErrorCode::out_of_memory);
  EXPECT_EQ(
      memory.message,
      "cuda: cuMemAllocAsync: CUDA_ERROR_OUT_OF_MEMORY (as the test asked), while making room");
  const core::Status fork = driver.status(abi::kNotInitialized, "cuCtxGetCurrent", "a call");
  EXPECT_EQ(fork.code, ErrorCode::device_error);
  EXPECT_NE(fork.message.find("forked"), std::string::npos);
  EXPECT_EQ(driver.status(12345, "cuX", "y").message, "cuda: cuX: error 12345, while y");
}

TEST_F(CudaDriver, Facts) {
  DeviceFacts facts;
  ASSERT_TRUE(read_facts(fake_driver(), 1, facts).ok());
  EXPECT_EQ(to_string(facts), "Fake GPU (9.0, 132 SMs, 80.0 GiB)");
  EXPECT_EQ(facts.ordinal, 1);
  EXPECT_EQ(facts.capability(), 90);
  EXPECT_EQ(facts.shared_per_block, 232448);
  EXPECT_EQ(facts.l2_bytes, 50 << 20);
  EXPECT_EQ(facts.registers_per_sm, 65536);
  const core::Status refused = read_facts(fake_driver(), 2, facts);
  EXPECT_EQ(refused.code, ErrorCode::invalid_argument);
  EXPECT_EQ(refused.message, "cuda: device: found cuda:2; accepted cuda:0 to cuda:1");
  fake().failing = "cuDeviceGetAttribute";
  fake().failing_result = 999;
  const core::Status failed = read_facts(fake_driver(), 0, facts);
  EXPECT_EQ(failed.code, ErrorCode::device_error);
  EXPECT_NE(failed.message.find("while reading the properties of cuda:0"), std::string::npos);
  EXPECT_EQ(facts.ordinal, 1) << "unchanged by a failure";
}

TEST_F(CudaDriver, ContextsOfTheThreadOrTheDevice) {
  const Driver& driver = fake_driver();
  EXPECT_EQ(CurrentContext::current_ordinal(driver), 0);
  {
    const CurrentContext on_one(driver, 1);
    ASSERT_TRUE(on_one.status().ok()) << on_one.status().message;
    EXPECT_EQ(on_one.id(), 12u);
    EXPECT_EQ(CurrentContext::current_ordinal(driver), 1);
    const CurrentContext nested(driver, 0);
    EXPECT_EQ(nested.id(), 11u);
  }
  abi::Context none = nullptr;
  driver.api().cuCtxGetCurrent(&none);
  EXPECT_EQ(none, nullptr) << "as before";
  const int retained = fake().contexts_retained;
  own_context(77);
  EXPECT_EQ(CurrentContext(driver, 0).id(), 77u) << "the thread's own";
  EXPECT_EQ(CurrentContext(driver, 1).id(), 12u);
  EXPECT_EQ(fake().contexts_retained, retained) << "retained once";
  const int asked = fake().devices_asked;
  for (int n = 0; n < 3; ++n) EXPECT_EQ(CurrentContext(driver, 0).id(), 77u);
  EXPECT_EQ(fake().devices_asked, asked) << "the context's device is known";
  EXPECT_EQ(CurrentContext(driver, -1).status().code, ErrorCode::invalid_argument);
  fake().failing = "cuCtxGetCurrent";
  fake().failing_result = abi::kNotInitialized;
  EXPECT_EQ(CurrentContext(driver, 0).status().code, ErrorCode::device_error);
}

TEST_F(CudaDriver, Pointers) {
  const auto check = [](std::uint64_t address, int ordinal) {
    return check_pointer(fake_driver(), "k", reinterpret_cast<const void*>(address), ordinal);
  };
  const int asked = fake().attributes_asked;
  EXPECT_TRUE(check(kDeviceMemory + 64, 0).ok());
  EXPECT_EQ(fake().attributes_asked, asked + 2) << "of every tensor of every call";
  EXPECT_TRUE(check(2 * kDeviceMemory, 1).ok());
  EXPECT_TRUE(check(kManagedMemory, 0).ok());
  EXPECT_TRUE(check(kManagedMemory, 1).ok());
  const int on_stack = 0;
  const core::Status host = check(reinterpret_cast<std::uintptr_t>(&on_stack) & 0xffff, 0);
  EXPECT_EQ(host.code, ErrorCode::invalid_argument);
  EXPECT_EQ(host.message,
            "cuda: data of k: found a pointer that CUDA doesn't know (host memory?); accepted "
            "memory of cuda:0");
  EXPECT_EQ(check(kPinnedMemory, 1).message,
            "cuda: data of k: found page-locked host memory; accepted memory of cuda:1");
  EXPECT_EQ(check(2 * kDeviceMemory, 0).message,
            "cuda: data of k: found memory of cuda:1; accepted memory of cuda:0");
  fake().failing = "cuPointerGetAttributes";
  fake().failing_result = abi::kInvalidValue;
  EXPECT_EQ(check(kDeviceMemory, 0).code, ErrorCode::invalid_argument);
  fake().failing_result = abi::kIllegalAddress;
  EXPECT_EQ(check(kDeviceMemory, 0).code, ErrorCode::device_error);
}

}  // namespace
}  // namespace attn::cuda::test
