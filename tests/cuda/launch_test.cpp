// Loading and launching, on a driver without a device and with the real compiler.
#include "cuda/host/launch.hpp"

#include <thread>

#include "cuda/host/scratch.hpp"
#include "fake.hpp"
#include "folder.hpp"

namespace attn::cuda::test {
namespace {

KernelSpec small_spec(int dim) {
  KernelSpec spec;
  spec.config = Config("passes/bias_gradient_sum.cu");
  spec.config.set("dtype_out", 3).set("dim", dim).set("has_dlse", false);
  spec.entry = "attn_bias_gradient_sum";
  spec.threads = 128;
  return spec;
}

class CudaLaunch : public WithFakeDriver {
 protected:
  void SetUp() override {
    WithFakeDriver::SetUp();
    std::string reason;
    const Nvrtc* nvrtc = Nvrtc::get(0, reason);
    if (nvrtc == nullptr) GTEST_SKIP() << reason;
    binaries.emplace(Cache(folder.path()), 0, nvrtc, "");
    modules.emplace(*binaries);
  }

  Folder folder;
  std::optional<Binaries> binaries;
  std::optional<Modules> modules;
};

TEST_F(CudaLaunch, LoadsOncePerContext) {
  const int before = fake().modules_loaded;
  const Kernel* kernel = nullptr;
  {
    const CurrentContext context(fake_driver(), 0);
    EXPECT_EQ(modules->find(context, small_spec(64)), nullptr);
    const core::Status status = modules->load(context, small_spec(64), kernel);
    ASSERT_TRUE(status.ok()) << status.message;
    EXPECT_EQ(modules->find(context, small_spec(64)), kernel);
    EXPECT_EQ(kernel->registers, 168);
    EXPECT_EQ(kernel->static_shared_bytes, 1024);
    EXPECT_EQ(kernel->blocks_per_sm, 1);
    EXPECT_EQ(fake().modules_loaded, before + 1);
    // Another size of block is another kernel of the same module.
    KernelSpec wide = small_spec(64);
    wide.threads = 256;
    wide.shared_bytes = 100000;
    const int set = fake().attributes_set;
    const Kernel* other = nullptr;
    ASSERT_TRUE(modules->load(context, wide, other).ok());
    EXPECT_NE(other, kernel);
    EXPECT_EQ(fake().attributes_set, set + 1);
    EXPECT_EQ(fake().modules_loaded, before + 1);
  }
  const CurrentContext second(fake_driver(), 1);
  const Kernel* there = nullptr;
  ASSERT_TRUE(modules->load(second, small_spec(64), there).ok());
  EXPECT_NE(there, kernel);
  EXPECT_EQ(fake().modules_loaded, before + 2);
  own_context(99);
  const CurrentContext own(fake_driver(), 0);
  EXPECT_EQ(modules->find(own, small_spec(64)), nullptr) << "another context of device 0";
}

TEST_F(CudaLaunch, OneForEachCacheFolder) {
  Modules& here = Modules::of(fake_driver(), folder.path());
  EXPECT_EQ(&Modules::of(fake_driver(), folder.path()), &here);
  EXPECT_EQ(here.binaries().cache().folder(), folder.path() + "/cuda");
  Modules& there = Modules::of(fake_driver(), folder.path() + "/other");
  EXPECT_NE(&there, &here);
  EXPECT_EQ(&Modules::of(fake_driver(), folder.path()), &here);
}

TEST_F(CudaLaunch, ManyThreads) {
  const int before = fake().modules_loaded;
  std::vector<std::thread> threads;
  std::array<const Kernel*, 8> kernels{};
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    threads.emplace_back([&, i] {
      const CurrentContext context(fake_driver(), 0);
      const core::Status status =
          modules->load(context, small_spec(static_cast<int>(i % 2) + 1), kernels[i]);
      EXPECT_TRUE(status.ok()) << status.message;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(fake().modules_loaded, before + 2);
  for (std::size_t i = 0; i < kernels.size(); ++i) EXPECT_EQ(kernels[i], kernels[i % 2]);
}

TEST_F(CudaLaunch, SaysWhatWasTried) {
  const CurrentContext context(fake_driver(), 0);
  const Kernel* kernel = nullptr;
  KernelSpec spec = small_spec(64);
  spec.entry = "missing";
  const core::Status missing = modules->load(context, spec, kernel);
  EXPECT_EQ(missing.code, ErrorCode::device_error);
  EXPECT_EQ(missing.message,
            "cuda: cuModuleGetFunction: CUDA_ERROR_FAKE (as the test asked), while loading missing "
            "of passes/bias_gradient_sum.cu dim=64 dtype_out=3 has_dlse=0 on cuda:0");
  spec = small_spec(64);
  spec.threads = 1024;
  EXPECT_EQ(modules->load(context, spec, kernel).code, ErrorCode::internal) << "too many threads";
  fake().failing = "cuModuleLoadData";
  fake().failing_result = abi::kOutOfMemory;
  const core::Status memory = modules->load(context, small_spec(63), kernel);
  EXPECT_EQ(memory.code, ErrorCode::out_of_memory);
  EXPECT_NE(memory.message.find("(sm_90a, just compiled) on cuda:0, Fake GPU (9.0"),
            std::string::npos)
      << memory.message;
  fake().failing = nullptr;
  EXPECT_TRUE(modules->load(context, small_spec(63), kernel).ok()) << "a failure is not kept";
}

// The checksum says that a file is whole, not that this driver can load it.
TEST_F(CudaLaunch, WhatTheDriverRefusesIsCompiledAnew) {
  std::string reason;
  const Nvrtc* nvrtc = Nvrtc::get(0, reason);
  const Cache cache(folder.path());
  const auto plant = [&](int dim) {
    BinaryKey key;
    ASSERT_TRUE(binary_key(small_spec(dim).config, "sm_90a", key).ok());
    ASSERT_TRUE(cache.store(key, nvrtc->version(), kRefusedImage));
  };
  plant(64);
  const CurrentContext context(fake_driver(), 0);
  const Kernel* kernel = nullptr;
  const core::Status status = modules->load(context, small_spec(64), kernel);
  EXPECT_TRUE(status.ok()) << status.message;
  const Binary* binary = nullptr;
  Binaries later(cache, 0, nullptr, "no NVRTC");
  ASSERT_TRUE(later.get(small_spec(64).config, 90, binary).ok());
  EXPECT_NE(binary->cubin, kRefusedImage) << "replaced on the disk too";

  // Refused again, and where nothing can compile: what was tried.
  fake().failing = "cuModuleLoadData";
  fake().failing_result = abi::kNoBinaryForGpu;
  plant(32);
  const core::Status again = modules->load(context, small_spec(32), kernel);
  EXPECT_EQ(again.code, ErrorCode::device_error);
  EXPECT_NE(again.message.find("(sm_90a, just compiled) on cuda:0"), std::string::npos)
      << again.message;
  fake().failing = nullptr;
  plant(32);
  Modules without(later);
  const core::Status none = without.load(context, small_spec(32), kernel);
  EXPECT_EQ(none.code, ErrorCode::device_error);
  EXPECT_NE(none.message.find("(sm_90a, from " + cache.folder() + ") on cuda:0"), std::string::npos)
      << none.message;
}

TEST_F(CudaLaunch, WithoutAFolderEveryProcessCompiles) {
  write_text(folder.path() + "/file", "");
  for (int process = 0; process < 2; ++process) {
    std::string reason;
    Binaries own(Cache(folder.path() + "/file"), 0, Nvrtc::get(0, reason), "");
    const Binary* binary = nullptr;
    ASSERT_TRUE(own.get(small_spec(64).config, 90, binary).ok());
    EXPECT_EQ(binary->from, Binary::From::compiler);
    EXPECT_FALSE(binary->kept);
  }
}

TEST_F(CudaLaunch, OnTheCallersStream) {
  const CurrentContext context(fake_driver(), 0);
  const Kernel* kernel = nullptr;
  KernelSpec spec = small_spec(64);
  spec.cluster = 2;
  spec.shared_bytes = 2048;
  const abi::Stream stream = stream_of(&spec);
  ASSERT_TRUE(find_or_load(*modules, context, {&spec, 1}, stream, {&kernel, 1}).ok());
  struct Parameters {
    int value = 3;
  };
  const int before = fake().launches;
  ASSERT_TRUE(launch(context, *kernel, {10, 2, 3}, stream, Parameters{}, true).ok());
  EXPECT_EQ(fake().launches, before + 1);
  EXPECT_EQ(fake().grid[0], 10u);
  EXPECT_EQ(fake().grid[2], 3u);
  EXPECT_EQ(fake().block[0], 128u);
  EXPECT_EQ(fake().shared_bytes, 2048u);
  EXPECT_EQ(fake().stream, &spec);
  EXPECT_EQ(fake().num_attributes, 2u);
  EXPECT_EQ(fake().first_attribute, abi::kLaunchClusterDimension);
  EXPECT_TRUE(launch(context, *kernel, {0, 2, 3}, stream, Parameters{}).ok());
  EXPECT_EQ(fake().launches, before + 1) << "an empty grid is nothing to do";
  fake().failing = "cuLaunchKernelEx";
  fake().failing_result = abi::kIllegalAddress;
  const core::Status status = launch(context, *kernel, {10, 2, 3}, stream, Parameters{});
  EXPECT_EQ(status.code, ErrorCode::device_error);
  EXPECT_NE(
      status.message.find("while launching attn_bias_gradient_sum of passes/bias_gradient_sum.cu"),
      std::string::npos);
  EXPECT_NE(status.message.find("with 10x2x3 blocks of 128 threads and 2048 bytes"),
            std::string::npos);
  EXPECT_NE(status.message.find("can't be used any more"), std::string::npos);
}

TEST_F(CudaLaunch, ScratchIsGivenBack) {
  const CurrentContext context(fake_driver(), 0);
  {
    const Scratch scratch(context, 1000, nullptr);
    EXPECT_TRUE(scratch.status().ok());
    EXPECT_EQ(scratch.data(), reinterpret_cast<void*>(kDeviceMemory));
    EXPECT_EQ(fake().allocations, 1);
    const Scratch none(context, 0, nullptr);
    EXPECT_EQ(none.data(), nullptr);
  }
  EXPECT_EQ(fake().allocations, 0);
  fake().failing = "cuMemAllocAsync";
  fake().failing_result = abi::kOutOfMemory;
  const Scratch refused(context, 1000, nullptr);
  EXPECT_EQ(refused.status().code, ErrorCode::out_of_memory);
  EXPECT_NE(refused.status().message.find("while taking a workspace of 1000 bytes on cuda:0"),
            std::string::npos);
}

TEST_F(CudaLaunch, ACaptureNeverCompiles) {
  const CurrentContext context(fake_driver(), 0);
  const Kernel* kernel = nullptr;
  fake().capturing = abi::kCaptureActive;
  const KernelSpec spec = small_spec(64);
  const auto find = [&] {
    return find_or_load(*modules, context, {&spec, 1}, nullptr, {&kernel, 1});
  };
  const core::Status refused = find();
  EXPECT_EQ(refused.code, ErrorCode::invalid_argument);
  EXPECT_NE(refused.message.find("accepted after prepare() or a first call outside of a capture"),
            std::string::npos)
      << refused.message;
  EXPECT_TRUE(binaries->cache().list().empty());
  fake().capturing = abi::kCaptureNone;
  ASSERT_TRUE(find().ok());
  fake().capturing = abi::kCaptureActive;
  const int loaded = fake().modules_loaded;
  ASSERT_TRUE(find().ok());
  EXPECT_TRUE(launch(context, *kernel, {1, 1, 1}, nullptr, 7).ok());
  EXPECT_EQ(fake().modules_loaded, loaded);
}

}  // namespace
}  // namespace attn::cuda::test
