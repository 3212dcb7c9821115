// Plans of the CPU: steps of the backward, the memory that its sums take, and orders of tasks.
#include <gtest/gtest.h>

#include <algorithm>
#include <attn/attn.hpp>
#include <string>
#include <vector>

#include "cpu/host/plan_traits.hpp"

namespace attn {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

PlanSummary backward_plan(const Problem& problem, std::int32_t threads) {
  ContextOptions options;
  options.backend = "cpu";
  options.threads = threads;
  Context context(options);
  return plan(context, Pass::backward, problem);
}
PlanSummary backward_plan(const std::string& problem, std::int32_t threads) {
  return backward_plan(parse_problem(problem), threads);
}

bool has_step(const PlanSummary& plan, const char* step) {
  return std::ranges::find(plan.kernels, step) != plan.kernels.end();
}

TEST(CpuPlan, DqIsSummedWithDkAndDvOrAlone) {
  struct {
    bool dq, dk, dv;
    std::string step;
  } const cases[] = {{true, true, true, "backward_qkv"},
                     {true, true, false, "backward_qkv"},
                     {true, false, true, "backward_qkv"},
                     {true, false, false, "backward_q"},
                     {false, true, true, "backward_kv"}};
  Problem p = parse_problem("heads_q=2 heads_kv=2 len_q=300 len_kv=300 dim_qk=64 dim_vo=64");
  for (const auto& [dq, dk, dv, step] : cases) {
    p.dq = dq;
    p.dk = dk;
    p.dv = dv;
    for (const std::int32_t threads : {1, 2, 7}) {
      const PlanSummary found = backward_plan(p, threads);
      for (const char* other : {"backward_qkv", "backward_q", "backward_kv"}) {
        EXPECT_EQ(has_step(found, other), other == step) << other << ", not " << step;
      }
    }
  }
}

// Copies of q and k in bf16 where an engine multiplies in bf16: a rotation changes no kernel.
TEST(CpuPlan, RotatedQueriesAndKeysHaveTheEngineOfTheType) {
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string plain = std::string("heads_q=2 heads_kv=2 len_q=300 len_kv=300 dtype=") +
                              dtype + " dim_qk=64 dim_vo=64";
    const PlanSummary without = backward_plan(plain, 2);
    const PlanSummary with = backward_plan(plain + " rope=half", 2);
    EXPECT_EQ(with.kernel, without.kernel);
    EXPECT_TRUE(has_step(with, "rotate_q") && has_step(with, "rotate_dk"));
    // Copies, and f32 gradients of them, next to what the plain call needs.
    const std::int64_t bytes = with.kernel == "cpu_backward" ? 4 : 2;
    EXPECT_LE(with.workspace_bytes - without.workspace_bytes, 2 * 300 * 2 * 64 * (bytes + 4) + 256);
  }
}

// A bias that broadcasts over queries or keys is a sum over them: the step bias_gradient computes
// its dbias.
TEST(CpuPlan, DbiasComesWithDkAndDvIfItHasEveryPair) {
  const std::string plain = "heads_q=4 heads_kv=2 len_q=300 len_kv=300 dim_qk=64 dim_vo=64 dbias ";
  const auto step = [&](const std::string& bias) {
    return has_step(backward_plan(plain + bias, 2), "bias_gradient");
  };
  for (const char* bias :
       {"bias=bhqk", "bias=hqk batch=3", "dtype=bf16 bias=hqk", "bias=hqk dq=off"})
    EXPECT_FALSE(step(bias)) << bias;
  for (const char* bias : {"bias=hk", "bias=hq", "bias=qk", "bias=hqk softcap",
                           "bias=hqk dk=off dv=off", "bias=hqk layout_q=packed total_q=300"})
    EXPECT_TRUE(step(bias)) << bias;
}

// docs/kernels/cpu.md, "Memory".
TEST(CpuPlan, SumsOfDbiasTakeAtMost256MiB) {
  const std::string size =
      "batch=4 heads_q=8 heads_kv=8 len_q=2048 len_kv=2048 dim_qk=64 dim_vo=64 bias=hqk dbias ";
  const std::int64_t dbias = std::int64_t{2048} * 2048 * 4;
  for (const std::int32_t threads : {1, 2, 16}) {
    const auto bytes = [&](const std::string& options) {
      return backward_plan(size + options, threads).workspace_bytes;
    };
    const std::int64_t without = bytes("dbias=off dtype=bf16");
    const std::int64_t in_slots = bytes("dtype=bf16 dtype_bias=bf16 accumulate");
    // A dbias may also make a thread's block of keys smaller.
    EXPECT_GE(in_slots, without + dbias - threads * kMiB) << threads;
    EXPECT_LT(in_slots, without + 6 * dbias) << threads;
    const std::int64_t in_place = backward_plan(size + "dtype=f32", threads).workspace_bytes;
    EXPECT_LT(in_place, without + 4 * threads * kMiB) << threads;
  }
  const std::string longer =
      "batch=2 len_q=16384 len_kv=16384 bias=hqk dbias dtype=bf16 dtype_bias=bf16 heads_q=1 "
      "heads_kv=1";
  EXPECT_TRUE(has_step(backward_plan(longer + " dim_qk=64 dim_vo=64", 1), "bias_gradient"));
}

TEST(CpuPlan, ADbiasOfNoSequencesIsWritten) {
  EXPECT_TRUE(has_step(backward_plan("batch=0 heads_q=2 heads_kv=2 len_q=300 len_kv=257 dim_qk=16 "
                                     "dim_vo=16 bias=hqk dbias",
                                     2),
                       "bias_gradient"));
}

TEST(CpuPlan, SequencesThatShareADbiasMayHaveNoKeys) {
  EXPECT_EQ(backward_plan("batch=2 heads_q=2 heads_kv=2 len_q=258 len_kv=0 dim_qk=32 dim_vo=32 "
                          "dtype=bf16 dtype_bias=bf16 bias=hqk dbias",
                          2)
                .tasks,
            0);
}

// Enough heads for all threads: one task each. Fewer: one task for each block of keys.
TEST(CpuPlan, HeadsAreCutIntoTasksOnlyIfThreadsWouldIdle) {
  const std::string size = " len_q=1024 len_kv=1024 dim_qk=64 dim_vo=64";
  EXPECT_EQ(backward_plan("heads_q=12 heads_kv=12" + size, 1).tasks, 12);
  EXPECT_EQ(backward_plan("heads_q=12 heads_kv=12" + size, 4).tasks, 12);
  EXPECT_GE(backward_plan("heads_q=12 heads_kv=12" + size, 8).tasks, 12 * 4);
  EXPECT_GT(backward_plan("heads_q=1 heads_kv=1" + size, 2).tasks, 4);
  EXPECT_EQ(backward_plan("heads_q=1 heads_kv=1" + size, 1).tasks, 1);
  // Lengths of their own: even many heads are uneven work.
  EXPECT_GT(backward_plan("batch=2 lengths_kv heads_q=2 heads_kv=2" + size, 2).tasks, 4);
}

// docs/kernels/cpu.md, "Memory".
TEST(CpuPlan, SumsOfDqTakeAtMostOneDqOfAHeadPerWorker) {
  const std::string size = " heads_q=4 heads_kv=4 len_q=65536 len_kv=65536 dim_qk=64 dim_vo=64";
  const std::int64_t dq = std::int64_t{65536} * 64 * 4;
  const std::int64_t row_sums = std::int64_t{65536} * 4 * 4;
  // A thread's block of 256 keys and its strip, or of 1024 keys.
  const std::int64_t tiles = cpu::has_long_blocks() ? 3 * kMiB / 2 : kMiB / 2;
  for (const std::int32_t threads : {1, 2, 3, 16}) {
    const std::int64_t in_place = backward_plan("dtype=f32" + size, threads).workspace_bytes;
    EXPECT_LT(in_place, row_sums + threads * tiles) << threads;
    const std::int64_t next_to_it = backward_plan("dtype=bf16" + size, threads).workspace_bytes;
    EXPECT_LT(next_to_it, in_place + std::min(threads, 4) * dq + threads * kMiB + kMiB) << threads;
    EXPECT_GE(next_to_it, in_place + dq - kMiB) << threads;
  }
  // A dq above 16 MiB is shared by all threads, however many: two at a time.
  const std::string longer =
      "dtype=bf16 heads_q=16 heads_kv=16 len_q=131072 len_kv=131072 dim_qk=64 dim_vo=64";
  EXPECT_LT(backward_plan(longer, 8).workspace_bytes,
            2 * 2 * dq + std::int64_t{131072} * 16 * 4 + 12 * kMiB);
}

// With many threads the shortest tiles of rows come last.
TEST(CpuPlan, ManyThreadsTakeHeadsInTurn) {
  const auto takes_turns = [](std::int32_t threads, const std::string& problem) {
    ContextOptions options;
    options.backend = "cpu";
    options.threads = threads;
    Context context(options);
    return plan(context, Pass::forward, parse_problem(problem)).config.find("heads_in_turn=1") !=
           std::string::npos;
  };
  const std::string problem = "heads_q=12 heads_kv=12 len_q=512 len_kv=512 dim_qk=64 dim_vo=64";
  EXPECT_TRUE(takes_turns(16, problem));
  EXPECT_TRUE(takes_turns(16, problem + " causal"));
  EXPECT_FALSE(takes_turns(2, problem));
}

// Slots of the sums of dk and dv that query heads share: of a block, or of all keys if these take
// at most 4 MiB.
TEST(CpuPlan, SumsOfDkAndDvTakeAtMost4MiBForEachSlot) {
  for (const char* len : {"700", "4096", "8192", "65536"}) {
    const std::string size = std::string("len_q=") + len + " len_kv=" + len +
                             " dim_qk=64 dim_vo=64 heads_q=16 heads_kv=";
    for (const std::int32_t threads : {1, 2, 16}) {
      const PlanSummary shared = backward_plan(size + "4", threads);
      ASSERT_NE(shared.config.find("dkv_terms=4"), std::string::npos);
      const std::int64_t slots = (threads - 1 + 3) / 4 + 1;
      EXPECT_LT(shared.workspace_bytes,
                backward_plan(size + "16", threads).workspace_bytes + slots * 4 * kMiB + kMiB)
          << len << ", " << threads;
    }
  }
}

// Problems outside these limits use the tiled kernels.
TEST(CpuPlan, SmallProblemsOfF32AndF16HaveTheirOwnKernel) {
  const auto kernel = [](const std::string& sizes, const std::string& options) {
    return backward_plan("batch=9 heads_q=4 heads_kv=2 " + sizes + " " + options, 2).kernel;
  };
  const std::string small = "len_q=33 len_kv=33 dim_qk=32 dim_vo=64";
  for (const char* options : {"", "causal", "window_left=3", "lengths_kv", "dlse", "dk=off",
                              "kv_begin", "rope=half", "dtype=f16", "dtype=f16 rope=half"}) {
    EXPECT_EQ(kernel(small, options), "cpu_backward_small") << options;
  }
  for (const char* options :
       {"dtype=f64", "dtype=f16 dtype_grad=f32", "softcap", "alibi", "sink", "mask=qk", "bias=qk",
        "dropout", "accumulate", "nonfinite_zero", "dk=off dv=off"}) {
    EXPECT_EQ(kernel(small, options), "cpu_backward") << options;
  }
  for (const char* sizes :
       {"len_q=33 len_kv=33 dim_qk=24 dim_vo=32", "len_q=33 len_kv=300 dim_qk=32 dim_vo=32",
        "len_q=33 len_kv=33 dim_qk=128 dim_vo=32", "len_q=2 len_kv=33 dim_qk=32 dim_vo=32"}) {
    EXPECT_EQ(kernel(sizes, ""), "cpu_backward") << sizes;
  }
  // 16-bit rows are copied, so they may have any dim.
  EXPECT_EQ(kernel("len_q=33 len_kv=33 dim_qk=24 dim_vo=33", "dtype=f16"), "cpu_backward_small");
}

// With AMX, the forward of small bf16 problems multiplies bf16. Small bf16 problems have f32
// arithmetic if no engine multiplies bf16.
TEST(CpuPlan, SmallProblemsOfBf16HaveTheirOwnKernel) {
  ContextOptions options;
  options.backend = "cpu";
  options.threads = 2;
  Context context(options);
  const auto kernel_of = [&](Pass pass, const std::string& text) {
    return plan(context, pass, parse_problem("batch=9 heads_q=4 heads_kv=2 dtype=bf16 " + text))
        .kernel;
  };
  const auto kernel = [&](const std::string& text) { return kernel_of(Pass::forward, text); };
  const std::string longer = kernel("len_q=300 len_kv=300 dim_qk=64 dim_vo=64");
  const bool has_amx = longer.ends_with("amx_bf16");
  const bool has_engine = longer != "cpu_forward";
  for (const char* few : {"len_q=33 len_kv=33 dim_qk=24 dim_vo=64", "len_q=8 len_kv=9 causal"}) {
    EXPECT_EQ(kernel(few).ends_with("amx_bf16_small"), has_amx) << few;
    EXPECT_EQ(kernel(few) == "cpu_forward_small", !has_engine) << few;
    EXPECT_EQ(kernel_of(Pass::backward, few) == "cpu_backward_small", !has_engine) << few;
  }
  EXPECT_EQ(kernel("len_q=2 len_kv=9 causal").ends_with("_small"), has_amx);
  for (const char* other : {"softcap", "sink", "dropout", "alibi", "nonfinite_zero",
                            "dtype_out=f32", "dim_qk=96", "len_q=1"}) {
    EXPECT_FALSE(
        kernel("len_q=33 len_kv=33 dim_qk=32 dim_vo=32 " + std::string(other)).ends_with("_small"))
        << other;
  }
}

}  // namespace
}  // namespace attn
