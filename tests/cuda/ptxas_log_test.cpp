// Reading the assembler's log, a kept one and the one of today's compiler.
#include "cuda/host/ptxas_log.hpp"

#include <gtest/gtest.h>

#include "cuda/host/binaries.hpp"

namespace attn::cuda::test {
namespace {

TEST(CudaResources, AreReadFromTheLog) {
  const ResourceReport report = read_resources(
      "ptxas info    : 0 bytes gmem\n"
      "ptxas info    : Compiling entry function 'second' for 'sm_90a'\n"
      "ptxas info    : (C7519) Potential Performance Loss: harmless\n"
      "ptxas info    : Function properties for second\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 10 registers, used 1 barriers, 1024 bytes smem, 360 bytes cmem[0]\n"
      "ptxas info    : Compiling entry function 'spilly' for 'sm_90a'\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async serialized\n"
      "ptxas info    : Function properties for spilly\n"
      "    880 bytes stack frame, 1192 bytes spill stores, 1216 bytes spill loads\n"
      "ptxas info    : Used 32 registers, used 0 barriers, 880 bytes cumulative stack size\n"
      "ptxas info    : Function properties for called\n"
      "    16 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads\n");
  ASSERT_EQ(report.kernels.size(), 2u);
  EXPECT_EQ(report.kernels[0].entry, "second");
  EXPECT_EQ(report.kernels[0].registers, 10);
  EXPECT_EQ(report.kernels[0].shared_bytes, 1024);
  EXPECT_EQ(report.kernels[0].spill_stores, 0);
  EXPECT_EQ(report.kernels[1].entry, "spilly");
  EXPECT_EQ(report.kernels[1].registers, 32);
  EXPECT_EQ(report.kernels[1].stack_bytes, 880);
  EXPECT_EQ(report.kernels[1].spill_stores, 1200);
  EXPECT_EQ(report.kernels[1].spill_loads, 1220);
  ASSERT_EQ(report.notes.size(), 1u);
  EXPECT_NE(report.notes[0].find("C7510"), std::string::npos);
  EXPECT_TRUE(read_resources("").kernels.empty());
}

TEST(CudaResources, OfTodaysCompiler) {
  std::string reason;
  const Nvrtc* nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  Binaries binaries(Cache(""), 0, nvrtc, "");
  Config config("passes/bias_gradient_sum.cu");
  config.set("dtype_out", 2).set("dim", 96).set("has_dlse", true);
  const Binary* binary = nullptr;
  ASSERT_TRUE(binaries.get(config, 80, binary).ok());
  const ResourceReport report = read_resources(binary->log);
  ASSERT_EQ(report.kernels.size(), 1u) << binary->log;
  EXPECT_EQ(report.kernels[0].entry, "attn_bias_gradient_sum");
  EXPECT_GT(report.kernels[0].registers, 8);
  EXPECT_EQ(report.kernels[0].spill_stores, 0);
  EXPECT_TRUE(report.notes.empty());
}

}  // namespace
}  // namespace attn::cuda::test
