// The run-time compiler: where it is looked for, what it refuses, and, where one is there, what it
// makes of the embedded sources.
#include "cuda/host/nvrtc.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "cuda/host/config.hpp"
#include "folder.hpp"

namespace attn::cuda::test {
namespace {

const std::vector<std::string> kOptions{"--std=c++20", "-default-device"};

// A small kernel; constants that it does not read make binaries of their own all the same.
Config small_config() {
  Config config("passes/bias_gradient_sum.cu");
  config.set("dtype_out", 3).set("dim", 64).set("has_dlse", false);
  return config;
}

TEST(CudaNvrtc, SaysWhyThereIsNone) {
  const std::vector<std::string> missing{"libattn-no-such-nvrtc.so"};
  EXPECT_EQ(Nvrtc::open(missing, 0).reason,
            "no NVRTC, the compiler of CUDA kernels: install a CUDA toolkit or the pip package "
            "nvidia-cuda-nvrtc, or name libnvrtc.so in ATTN_NVRTC");
  const std::vector<std::string> other{"libm.so.6", "/nowhere/libnvrtc.so.12"};
  const std::string reason = Nvrtc::open(other, 0).reason;
  EXPECT_EQ(reason.find("no NVRTC, the compiler of CUDA kernels (libm.so.6 has no nvrtcGetErr"), 0u)
      << reason;
  EXPECT_NE(reason.find("; /nowhere/libnvrtc.so.12: cannot open"), std::string::npos) << reason;
}

TEST(CudaNvrtc, Candidates) {
  setenv("ATTN_NVRTC", "/some/libnvrtc.so", 1);
  EXPECT_EQ(Nvrtc::candidates(), std::vector<std::string>{"/some/libnvrtc.so"});
  // A folder: NVIDIA's wheels lie so in site-packages.
  const Folder packages;
  for (const char* part : {"/nvidia/cuda_nvrtc/lib", "/nvidia/cu13/lib"}) {
    std::filesystem::create_directories(packages.path() + part);
  }
  const std::string older = packages.path() + "/nvidia/cuda_nvrtc/lib/libnvrtc.so.12";
  const std::string newer = packages.path() + "/nvidia/cu13/lib/libnvrtc.so.13";
  write_text(older, "no library");
  write_text(newer, "no library");
  setenv("ATTN_NVRTC", packages.path().c_str(), 1);
  EXPECT_EQ(Nvrtc::candidates(), (std::vector<std::string>{newer, older}));
  const std::string reason = Nvrtc::open(0).reason;
  EXPECT_NE(reason.find(newer), std::string::npos) << reason;
  unsetenv("ATTN_NVRTC");
  const std::vector<std::string> list = Nvrtc::candidates();
  ASSERT_GE(list.size(), 2u);
  EXPECT_EQ(list[0], "libnvrtc.so.13");
  EXPECT_EQ(list[1], "libnvrtc.so.12");
}

TEST(CudaNvrtc, Architectures) {
  const std::vector<int> known{75, 80, 86, 87, 89, 90, 100, 120};
  EXPECT_EQ(choose_architecture(80, known), "sm_80");
  EXPECT_EQ(choose_architecture(86, known), "sm_86");
  EXPECT_EQ(choose_architecture(88, known), "sm_87");
  EXPECT_EQ(choose_architecture(90, known), "sm_90a");
  EXPECT_EQ(choose_architecture(103, known), "sm_100");
  EXPECT_EQ(choose_architecture(121, known), "sm_120");
  EXPECT_EQ(choose_architecture(70, known), "");
  EXPECT_EQ(choose_architecture(110, known), "");
}

class CudaNvrtcThere : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    nvrtc = Nvrtc::get(0, reason);
    if (nvrtc == nullptr) GTEST_SKIP() << reason;
    ASSERT_TRUE(find_unit("passes/bias_gradient_sum.cu", unit).ok());
  }
  const Nvrtc* nvrtc = nullptr;
  const Unit* unit = nullptr;
};

TEST_F(CudaNvrtcThere, CompilesForEveryArchitecture) {
  EXPECT_GE(nvrtc->version(), 12000);
  EXPECT_NE(nvrtc->path().find("libnvrtc"), std::string::npos);
  for (const int capability : {80, 86, 89, 90, 100, 120}) {
    const std::string architecture = choose_architecture(capability, nvrtc->capabilities());
    if (architecture.empty()) continue;  // unknown to an older compiler
    const Compiled compiled =
        nvrtc->compile(*unit, header_text(small_config()), kOptions, architecture);
    ASSERT_TRUE(compiled.status.ok()) << compiled.status.message;
    EXPECT_EQ(compiled.cubin.substr(0, 4),
              "\x7f"
              "ELF")
        << architecture;
    EXPECT_NE(compiled.cubin.find("attn_bias_gradient_sum"), std::string::npos);
    EXPECT_EQ(compiled.log, "");
  }
}

TEST_F(CudaNvrtcThere, SameInputSameBinary) {
  const std::string header = header_text(small_config());
  std::string first;
  std::string second;
  std::thread other([&] { first = nvrtc->compile(*unit, header, kOptions, "sm_80").cubin; });
  second = nvrtc->compile(*unit, header, kOptions, "sm_80").cubin;
  other.join();
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, second);
}

TEST_F(CudaNvrtcThere, ErrorsCarryTheLog) {
  const Compiled compiled =
      nvrtc->compile(*unit, "#pragma once\nnamespace config {}\n", kOptions, "sm_80");
  EXPECT_EQ(compiled.status.code, ErrorCode::internal);
  EXPECT_EQ(compiled.cubin, "");
  for (const char* part :
       {"nvrtcCompileProgram", "while compiling passes/bias_gradient_sum.cu for sm_80",
        "shared/element.cuh(", "has no member \"f32\""}) {
    EXPECT_NE(compiled.status.message.find(part), std::string::npos)
        << part << " in " << compiled.status.message;
  }
  const std::vector<std::string> bad{"--no-such-option"};
  const Compiled refused = nvrtc->compile(*unit, "", bad, "sm_80");
  EXPECT_EQ(refused.status.code, ErrorCode::device_error);
  EXPECT_NE(refused.status.message.find("no-such-option"), std::string::npos)
      << refused.status.message;
}

TEST_F(CudaNvrtcThere, AMajorVersionThatTheDriverCantLoadIsPassedOver) {
  const std::vector<std::string> here{nvrtc->path()};
  if (nvrtc->version() < 13000) GTEST_SKIP() << "needs a compiler of 13.0 or later";
  EXPECT_NE(Nvrtc::open(here, 13000).nvrtc, nullptr);
  const Nvrtc::Opened older = Nvrtc::open(here, 12040);
  EXPECT_EQ(older.nvrtc, nullptr);
  EXPECT_NE(older.reason.find("the driver (CUDA 12.4) loads binaries of 12.x at most"),
            std::string::npos)
      << older.reason;
}

}  // namespace
}  // namespace attn::cuda::test
