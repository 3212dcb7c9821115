// sm90/forward.cu compiles for the Configs of docs/kernels/sm90_forward.md: without a warning of
// ptxas (wgmma serialized, setmaxnreg ignored) and within the stack that the document lists.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/host/binaries.hpp"
#include "cuda/host/ptxas_log.hpp"
#include "folder.hpp"

namespace attn::cuda::test {
namespace {

constexpr int kBf16 = 3;

// As in sm90/forward_config.cuh.
enum Schedule { kStatic, kPaired, kDynamic };
enum Lengths { kNoLengths, kPadded, kPacked };

// 64 columns of O are staged at a time, and Q has one stage, where shared memory is short.
Config config_of(int dim, int tile_q, int tile_kv, int stages, Schedule schedule) {
  Config config("sm90/forward.cu");
  for (const char* name : {"producer_warp", "left_bound", "right_bound", "row_ranges", "lengths",
                           "softcap", "alibi", "bias_type", "mask", "dropout", "element_access"}) {
    config.set(name, 0);
  }
  config.set("dtype", kBf16).set("dim_qk", dim).set("dim_vo", dim);
  config.set("tile_q", tile_q).set("tile_kv", tile_kv).set("stages", stages).set("blocks", 1);
  config.set("q_stages", dim > 128 ? 1 : 2).set("o_columns", dim > 128 ? 64 : dim);
  return config.set("overlap", 1).set("pingpong", 1).set("schedule", schedule);
}

struct Variant {
  const char* name;
  Config config;
  int max_stack_bytes;
};

std::vector<Variant> variants() {
  const Config d64 = config_of(64, 192, 128, 3, kDynamic);
  const Config d128 = config_of(128, 128, 128, 2, kDynamic);
  const Config d256 = config_of(256, 128, 64, 2, kDynamic);
  Config two_blocks = config_of(64, 128, 64, 3, kDynamic);
  two_blocks.set("blocks", 2).set("producer_warp", 1).set("overlap", 0).set("pingpong", 0);
  Config d128_bias = config_of(128, 128, 64, 3, kDynamic);
  d128_bias.set("q_stages", 1).set("bias_type", kBf16);
  const auto with = [](Config config, const char* name, int value) {
    return config.set(name, value);
  };
  return {{"d64", d64, 0},
          {"d64 causal", with(d64, "right_bound", 1), 8},
          {"d64 causal, two blocks per SM", two_blocks.set("right_bound", 1), 40},
          {"d64 packed", with(with(d64, "right_bound", 1), "lengths", kPacked), 128},
          {"d64 mask", with(config_of(64, 192, 64, 3, kDynamic), "mask", 1), 0},
          {"d128 static", with(d128, "schedule", kStatic), 0},
          {"d128 causal, paired", with(with(d128, "schedule", kPaired), "right_bound", 1), 0},
          {"d128 causal", with(d128, "right_bound", 1), 0},
          {"d128 f16", with(d128, "dtype", 2), 0},
          {"d128 ranges", with(d128, "row_ranges", 1), 0},
          {"d128 padded, dropout", with(with(d128, "lengths", kPadded), "dropout", 1), 0},
          {"d128 ALiBi", with(d128, "alibi", 1), 0},
          {"d128 bias", d128_bias, 0},
          {"d256 causal", with(d256, "right_bound", 1), 0}};
}

TEST(CudaSm90Forward, ConfigsCompileWithoutWarningsOrMoreStack) {
  std::string reason;
  const Nvrtc* const nvrtc = Nvrtc::get(0, reason);
  if (nvrtc == nullptr) GTEST_SKIP() << reason;
  const Folder folder;
  Binaries binaries(Cache(folder.path()), nvrtc->version(), nvrtc, "");
  std::vector<Config> configs;
  for (const Variant& variant : variants()) configs.push_back(variant.config);
  const core::Status all = binaries.get_all(configs, 90, 0);
  ASSERT_TRUE(all.ok()) << all.message;
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    const Binary* binary = nullptr;
    ASSERT_TRUE(binaries.get(variant.config, 90, binary).ok());
    const ResourceReport report = read_resources(binary->log);
    ASSERT_EQ(report.kernels.size(), 1u);
    EXPECT_LE(report.kernels[0].stack_bytes, variant.max_stack_bytes);
    EXPECT_EQ(report.notes, std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace attn::cuda::test
