// Plans of the decode kernel: which calls it takes, how keys are split, and that its tiles fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/families/make_plan.hpp"
#include "cuda/host/architectures.hpp"
#include "facts.hpp"

namespace attn::cuda::test {
namespace {

CudaPlan decode_plan(const std::string& text, const DeviceFacts& facts = h200(),
                     core::Access access = core::Access::tma) {
  core::Result<CudaPlan> plan = make_plan(Pass::decode, parse_problem(text), facts, access);
  EXPECT_TRUE(plan.ok()) << text << ": " << plan.reason();
  return std::move(plan).value();
}

std::string large(const std::string& rest) {
  return "dtype=bf16 heads_q=32 heads_kv=8 len_q=1 dim_qk=128 dim_vo=128 " + rest;
}

TEST(CudaDecodePlan, TakesFewQueriesAndPages) {
  const auto kernel = [](const std::string& text) {
    return make_plan(Pass::forward, parse_problem(text), h200()).value().summary().kernel;
  };
  EXPECT_EQ(kernel("dtype=bf16 len_q=1 len_kv=64"), "cuda_decode");
  EXPECT_EQ(kernel("dtype=bf16 len_q=16 len_kv=64"), "cuda_decode");
  EXPECT_EQ(kernel("dtype=bf16 len_q=17 len_kv=64"), "cuda_forward");
  EXPECT_EQ(kernel("dtype=bf16 len_q=17 len_kv=64 page_size=16"), "cuda_decode");
  EXPECT_EQ(kernel("dtype=bf16 len_q=1 len_kv=64 dropout"), "cuda_forward");
  EXPECT_EQ(kernel("dtype=bf16 len_q=1 len_kv=64 dropout page_size=16"), "cuda_decode");
  EXPECT_EQ(kernel("dtype=bf16 len_q=1 len_kv=64 dropout dtype_kv=i8"), "cuda_decode");
}

// Dims above 256 have no decode kernel. Contiguous caches of q's type go to the forward, others to
// the forward on caches. Its tiles of f32 need more than 100 KB of shared memory, as all of wide
// f32.
TEST(CudaDecodePlan, WideCachesHaveAForward) {
  const auto kernels = [](const std::string& text, const DeviceFacts& facts = h200()) {
    const core::Result<CudaPlan> made =
        make_plan(Pass::decode, parse_problem(text), facts, core::Access::tma, FamilyChoice::sm80);
    EXPECT_TRUE(made.ok()) << text << ": " << made.reason();
    if (!made.ok()) return std::vector<std::string>{};
    const CudaPlan& plan = made.value();
    EXPECT_LE(plan.kernels[plan.main].shared_bytes, facts.shared_per_block) << text;
    return plan.summary().kernels;
  };
  using Names = std::vector<std::string>;
  for (const DeviceFacts& facts : {h200(), *typical_facts(80), *typical_facts(120)}) {
    for (const char* type : {"dtype=f16", "dtype=bf16", "dtype=f32"}) {
      if (facts.capability() == 120 && std::string_view(type) == "dtype=f32") continue;
      const std::string one = std::string(type) + " dim_qk=512 dim_vo=200 len_q=1 len_kv=64 ";
      const std::string two = std::string(type) + " dim_qk=64 dim_vo=512 len_q=1 len_kv=64 ";
      EXPECT_EQ(kernels(one, facts), (Names{"attn_forward"}));
      EXPECT_EQ(kernels(one + "page_size=16", facts), (Names{"attn_forward_cache"}));
      EXPECT_EQ(kernels(two + "dtype_kv=i8", facts),
                (Names{"attn_forward_cache", "attn_forward_cache"}));
      EXPECT_EQ(kernels(two + "lengths_kv len_new=2", facts),
                (Names{"attn_append_rows", "attn_forward_cache", "attn_forward_cache"}));
      EXPECT_EQ(kernels(two + "page_size=3 softcap alibi mask=bhqk bias=bhqk dropout", facts),
                (Names{"attn_forward_cache", "attn_forward_cache"}));
    }
  }
}

// One wave of blocks, at most two on an SM, where there are few key heads; no split where there are
// enough.
TEST(CudaDecodePlan, SplitsFillTheDevice) {
  for (const std::int64_t batch : {1, 2, 4, 8, 16, 64, 128}) {
    for (const std::int64_t keys : {1024, 4096, 32768, 131072}) {
      const CudaPlan plan =
          decode_plan(large("batch=" + std::to_string(batch) + " len_kv=" + std::to_string(keys)));
      const std::int64_t tiles = 8 * batch;
      EXPECT_EQ(plan.decode.tiles, tiles);
      EXPECT_EQ(plan.blocks[plan.main], tiles * plan.decode.splits);
      const std::string what = std::to_string(batch) + " x " + std::to_string(keys) + ": " +
                               std::to_string(plan.decode.splits);
      if (tiles >= 512) {
        EXPECT_EQ(plan.decode.splits, 1) << what;
      } else if (plan.decode.cluster) {
        EXPECT_LE(plan.decode.splits, 8) << what;
        EXPECT_LE(plan.blocks[plan.main], 132) << what;
      } else {
        EXPECT_GE(2 * plan.blocks[plan.main], std::min<std::int64_t>(tiles * keys / 128, 132))
            << what;
        EXPECT_LE(plan.blocks[plan.main], 264) << what;
      }
    }
  }
}

// What was fastest on an H100, or within 3 % of it (bench/results/h100/decode_replay.jsonl).
TEST(CudaDecodePlan, SplitsAreTheMeasuredOnes) {
  const auto splits = [](const std::string& sizes) {
    const CudaPlan plan = decode_plan(large(sizes));
    EXPECT_FALSE(plan.decode.cluster) << sizes;
    return plan.decode.splits;
  };
  EXPECT_EQ(splits("len_kv=32768"), 16);
  EXPECT_EQ(splits("len_kv=131072"), 16);
  EXPECT_EQ(splits("len_kv=131072 heads_kv=32"), 4);
  EXPECT_EQ(splits("len_kv=4096 batch=16"), 1);
  EXPECT_EQ(splits("len_kv=4096 batch=16 heads_kv=32"), 1);
}

// What was faster on an H200 than splits whose results pass through the workspace
// (docs/kernels/decode.md).
TEST(CudaDecodePlan, FewKeysAreSplitInClusters) {
  for (const auto& [sizes, splits] :
       {std::pair("len_kv=512", 8), std::pair("len_kv=4096", 8),
        std::pair("len_kv=4096 batch=2", 4), std::pair("len_kv=1024 batch=4", 2),
        std::pair("len_kv=1000 split_keys=250", 4)}) {
    const CudaPlan plan = decode_plan(large(sizes));
    EXPECT_TRUE(plan.decode.cluster) << sizes;
    EXPECT_EQ(plan.decode.splits, splits) << sizes;
    EXPECT_EQ(plan.kernels[plan.main].cluster, static_cast<unsigned>(splits)) << sizes;
    EXPECT_NE(plan.summary().config.find("cluster=" + std::to_string(splits)), std::string::npos);
    for (const int capability : {80, 89, 100, 120}) {
      const CudaPlan other = decode_plan(large(sizes), *typical_facts(capability));
      EXPECT_FALSE(other.decode.cluster) << sizes;
      EXPECT_EQ(other.kernels[other.main].cluster, 1u) << sizes;
    }
  }
}

// More warps, or smaller blocks. With `split_keys` the bits must not depend on the batch.
TEST(CudaDecodePlan, RingsFollowTheWork) {
  const auto warps = [](const std::string& sizes, const char* dims = "dim_qk=128 dim_vo=128 ") {
    const CudaPlan plan =
        decode_plan("dtype=bf16 heads_q=32 heads_kv=8 len_q=1 " + std::string(dims) + sizes);
    return *plan.kernels[plan.main].config.get("warps");
  };
  const char* const narrow = "dim_qk=64 dim_vo=64 ";
  EXPECT_EQ(warps("len_kv=2048"), 4);
  EXPECT_EQ(warps("len_kv=4096"), 8);
  EXPECT_EQ(warps("len_kv=4096 batch=32"), 4);
  EXPECT_EQ(warps("len_kv=4096 batch=64"), 4);
  EXPECT_EQ(warps("len_kv=4096 batch=64", narrow), 1);
  EXPECT_EQ(warps("len_kv=4096 batch=64 page_size=1", narrow), 4);
  EXPECT_EQ(warps("len_kv=4096 batch=64 dtype_kv=i8", narrow), 4);
  for (const char* batch : {"batch=1", "batch=32", "batch=64"}) {
    for (const char* split_keys : {"512 ", "-1 "}) {
      const std::string sizes = "len_kv=4096 split_keys=" + std::string(split_keys) + batch;
      EXPECT_EQ(warps(sizes), 4) << sizes;
      EXPECT_EQ(warps(sizes, narrow), 4) << sizes;
    }
  }
}

TEST(CudaDecodePlan, CutsThatAreAskedForDependOnNothingElse) {
  for (const char* others : {"batch=1", "batch=64", "batch=3 lengths_kv"}) {
    const CudaPlan plan = decode_plan(large("len_kv=1000 split_keys=100 " + std::string(others)));
    EXPECT_EQ(plan.decode.splits, 10);
    EXPECT_EQ(plan.decode.split_keys, 100);
  }
  EXPECT_EQ(decode_plan(large("len_kv=100000 split_keys=-1")).decode.splits, 1);
  EXPECT_EQ(decode_plan(large("len_kv=100000 split_keys=-1")).workspace_bytes, 0);
  EXPECT_EQ(decode_plan(large("len_kv=1000 split_keys=5000")).decode.splits, 1);
}

// A tile of 8 KB of K and V a warp has twice the keys.
TEST(CudaDecodePlan, TakesCachesOfEightBits) {
  const CudaPlan plan = decode_plan(large("len_kv=4096 dtype_kv=f8e4m3"));
  const Config& config = plan.kernels[plan.main].config;
  EXPECT_EQ(config.get("kv_type"), static_cast<int>(DType::f8e4m3));
  EXPECT_EQ(config.get("tile_kv"), 32);
  EXPECT_EQ(config.get("blocks"), 2);
  const CudaPlan forward =
      make_plan(Pass::forward, parse_problem("dtype=f16 dtype_kv=f8e5m2 len_q=900 len_kv=900"),
                h200())
          .value();
  EXPECT_STREQ(forward.summary().kernel.c_str(), "cuda_decode");
}

TEST(CudaDecodePlan, AppendsAheadOfIt) {
  const CudaPlan plan = decode_plan(large("batch=3 len_kv=1000 len_new=5 lengths_kv page_size=16"));
  ASSERT_EQ(plan.num_kernels, 2u);
  EXPECT_STREQ(plan.kernels[0].entry, "attn_append_rows");
  EXPECT_EQ(plan.blocks[0], 3 * 5 * 8 / 4);
  EXPECT_EQ(plan.main, 1u);
}

// The kernel that appends counts rows in 32 bits.
TEST(CudaDecodePlan, RefusesToAppendTooManyRows) {
  for (const char* type : {"dtype=bf16 ", "dtype=f32 "}) {
    const std::string sizes = std::string(type) + "heads_q=8 heads_kv=8 len_q=1 len_kv=65536 " +
                              "dim_qk=8 dim_vo=8 lengths_kv len_new=65536 batch=";
    EXPECT_EQ(decode_plan(sizes + "8191").blocks[0], std::int64_t{8191} * 65536 * 8 / 4);
    const auto refused =
        make_plan(Pass::decode, parse_problem(sizes + "8192"), h200(), core::Access::tma);
    ASSERT_FALSE(refused.ok()) << type;
    EXPECT_EQ(refused.reason(),
              "found 4294967296 rows of k_new (batch * len_new * heads_kv); CUDA appends fewer "
              "than 2^32");
  }
}

// f32 o and two statistics of each row, and an arrival, rounded up.
TEST(CudaDecodePlan, WorkspaceHoldsPartialResults) {
  const CudaPlan plan = decode_plan(large("len_kv=1000 split_keys=100"));
  EXPECT_EQ(plan.workspace_bytes, 80 * 4 * 128 * 4 + 80 * 4 * 8 + 768);
  for (const core::Access access : {core::Access::element, core::Access::vector}) {
    EXPECT_EQ(decode_plan(large("len_kv=1000 split_keys=100"), h200(), access).workspace_bytes,
              plan.workspace_bytes);
  }
}

TEST(CudaDecodePlan, FitsEveryDevice) {
  for (const int capability : {80, 86, 89, 90, 100, 120}) {
    const DeviceFacts& facts = *typical_facts(capability);
    for (const char* dims : {"dim_qk=64 dim_vo=64", "dim_qk=128 dim_vo=72", "dim_qk=256 dim_vo=8",
                             "dim_qk=7 dim_vo=255"}) {
      for (const char* rows : {"len_q=1", "len_q=16 heads_q=16", "len_q=300 page_size=16"}) {
        for (const char* options : {"", " softcap bias=hqk", " alibi", " dtype_kv=f8e4m3",
                                    " dtype_kv=f8e5m2 softcap alibi", " dtype_kv=i8 dropout"}) {
          const std::string text =
              std::string("dtype=f16 len_kv=5000 ") + dims + " " + rows + options;
          const CudaPlan plan = decode_plan(text, facts);
          const KernelSpec& spec = plan.kernels[plan.main];
          const std::int64_t blocks = *spec.config.get("blocks");
          EXPECT_LE(spec.shared_bytes, facts.shared_per_block) << text;
          EXPECT_LE(blocks * (spec.shared_bytes + 1024), facts.shared_per_sm) << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::cuda::test
