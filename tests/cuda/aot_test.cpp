// What can be known and made without a device: facts by architecture, room on a multiprocessor,
// kernels of calls, binaries.
#include "cuda/aot.hpp"

#include <gtest/gtest.h>

#include "core/validate.hpp"
#include "cuda/host/architectures.hpp"
#include "cuda/host/occupancy.hpp"
#include "folder.hpp"

namespace attn::cuda::test {
namespace {

TEST(CudaArchitectures, AreTypicalDevices) {
  EXPECT_EQ(typical_facts(75), nullptr);
  ASSERT_NE(typical_facts(90), nullptr);
  EXPECT_EQ(to_string(*typical_facts(90)), "NVIDIA H200 (9.0, 132 SMs, 140.0 GiB)");
  EXPECT_EQ(typical_facts(90)->shared_per_block, 232448);
  EXPECT_EQ(typical_facts(80)->shared_per_sm, 167936);
  EXPECT_EQ(typical_facts(120)->threads_per_sm, 1536);
  EXPECT_EQ(known_capabilities(), "80, 86, 87, 89, 90, 100, 103, 120, 121");
}

Resources resources(int registers, int shared = 0) {
  return {"kernel", registers, 0, 0, 0, shared};
}

TEST(CudaRoom, CountsBlocks) {
  const DeviceFacts& h200 = *typical_facts(90);
  const DeviceFacts& rtx = *typical_facts(120);
  EXPECT_EQ(blocks_that_fit(h200, resources(255), 128, 0), 2);
  EXPECT_EQ(blocks_that_fit(h200, resources(168), 128, 0), 3);
  EXPECT_EQ(blocks_that_fit(h200, resources(169), 128, 0), 2) << "176 are taken";
  EXPECT_EQ(blocks_that_fit(h200, resources(128), 512, 0), 1);
  EXPECT_EQ(blocks_that_fit(h200, resources(129), 512, 0), 0);
  EXPECT_EQ(blocks_that_fit(h200, resources(16), 128, 0), 16) << "threads";
  EXPECT_EQ(blocks_that_fit(rtx, resources(16), 128, 0), 12);
  EXPECT_EQ(blocks_that_fit(h200, resources(16), 128, 232448), 1);
  EXPECT_EQ(blocks_that_fit(h200, resources(16, 1), 128, 232448), 0);
  EXPECT_EQ(blocks_that_fit(h200, resources(16), 128, 115712), 2) << "and 1 KiB each";
  EXPECT_EQ(blocks_that_fit(h200, resources(16), 128, 115713), 1);
  EXPECT_EQ(blocks_without_registers(rtx, 128, 50 * 1024), 1);
  EXPECT_EQ(blocks_without_registers(rtx, 128, 49 * 1024), 2);
}

TEST(CudaRoom, NamesTheFlaw) {
  KernelSpec spec;
  spec.config = Config("a.cu").set("blocks", 2);
  spec.entry = "kernel";
  spec.threads = 256;
  spec.shared_bytes = 1000;
  ResourceReport report;
  const DeviceFacts& h200 = *typical_facts(90);
  EXPECT_EQ(flaw_of(report, spec, h200), "no entry point kernel");
  report.kernels.push_back(resources(128));
  EXPECT_EQ(flaw_of(report, spec, h200), "");
  report.kernels[0].registers = 136;
  EXPECT_EQ(flaw_of(report, spec, h200),
            "kernel: 2 blocks are wanted on a multiprocessor, 1 fit: 256 threads of 136 registers, "
            "0 + 1000 bytes of shared memory; NVIDIA H200 has 65536 registers, 2048 threads and "
            "233472 bytes, 232448 of a block");
  spec.config.set("blocks", 1);
  EXPECT_EQ(flaw_of(report, spec, h200), "");
  report.kernels[0].spill_loads = 4;
  EXPECT_EQ(flaw_of(report, spec, h200), "kernel spills 0 bytes and loads 4 with 136 registers");
  EXPECT_EQ(flaw_of(report, spec, h200, 4), "");
  EXPECT_NE(flaw_of(report, spec, h200, 3), "");
}

}  // namespace
}  // namespace attn::cuda::test
