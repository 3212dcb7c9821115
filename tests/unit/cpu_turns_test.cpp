// The order of the tasks of the CPU backward's keys' phase.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/host/plan.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {
namespace {

// Every task once; those of a (batch, key head) in ascending order, since they wait for one
// another; and no (batch, key head) begins before all of an earlier group have begun their last
// task, since it may take the sums of one of them.
TEST(CpuTurns, TasksOfAHeadAscend) {
  Problem problem;
  problem.batch = 3;
  problem.heads_kv = 5;
  problem.len_kv = 700;
  Config config;
  config.block_kv = 100;
  config.blocks_of_task = 2;
  for (const std::int64_t at_once : {1, 2, 4, 14, 15, 64}) {
    config.heads_at_once = at_once;
    const std::int64_t tasks = key_tasks(problem, config);
    ASSERT_EQ(tasks, 4);
    std::vector<std::int64_t> next(15, 0);
    for (std::int64_t n = 0; n < 15 * tasks; ++n) {
      const KeyTaskPlace place = key_task_at(problem, config, n);
      ASSERT_TRUE(place.index >= 0 && place.index < 15) << at_once;
      EXPECT_EQ(place.task, next[static_cast<std::size_t>(place.index)]++) << at_once;
      const std::int64_t before = place.index - at_once;
      if (before >= 0) {
        EXPECT_EQ(next[static_cast<std::size_t>(before)], tasks) << at_once;
      }
    }
  }
}

// A task with several pairs computes the same block of each, and all blocks are computed once.
TEST(CpuTurns, TermsOfATask) {
  Problem problem;
  problem.batch = 4;
  problem.heads_kv = 3;
  problem.len_kv = 500;
  Config config;
  config.block_kv = 100;
  config.terms_of_task = 4;
  std::vector<int> visits(4 * 3 * 5, 0);
  for (std::int64_t n = 0; n < 3 * 5; ++n) {
    std::int64_t terms = 0;
    each_key_task(problem, config, n, [&](std::int64_t task) {
      const KeyTaskPlace place = key_task_at(problem, config, task);
      EXPECT_EQ(place.task, n % 5);
      EXPECT_EQ(place.index, n / 5 * 4 + terms++);
      ++visits[static_cast<std::size_t>(place.index * 5 + place.task)];
    });
    EXPECT_EQ(terms, 4);
  }
  for (const int visited : visits) EXPECT_EQ(visited, 1);
}

// The tasks that add to the same dk and dv are consecutive, in ascending order of the query heads,
// so that each waits only for tasks before it. There is a slot of sums for each unit that as many
// consecutive tasks as threads may belong to.
void expect_units(const Problem& problem, std::int64_t threads, const Config& config) {
  const std::int64_t terms = problem.heads_q / problem.heads_kv;
  const Problem of_tasks = tasks_problem(problem, config);
  const std::int64_t units = dkv_units(of_tasks, config);
  const std::int64_t tasks = problem.batch * problem.heads_q * key_tasks(of_tasks, config);
  ASSERT_EQ(config.dkv_terms, terms);
  ASSERT_EQ(units * terms, tasks);
  for (std::int64_t n = 0; n < tasks; ++n) {
    const KeyTaskPlace first = key_task_at(of_tasks, config, n / terms * terms);
    const KeyTaskPlace place = key_task_at(of_tasks, config, n);
    EXPECT_EQ(first.index % terms, 0) << n;
    EXPECT_EQ(place.index, first.index + n % terms);
    EXPECT_EQ(place.task, first.task);
    const std::int64_t running = std::min(n + threads - 1, tasks - 1) / terms - n / terms + 1;
    EXPECT_LE(running, config.dkv_slots);
  }
  EXPECT_LE(config.dkv_slots, units);
}

TEST(CpuTurns, QueryHeadsThatShareAKeyHead) {
  Problem problem;
  problem.batch = 3;
  problem.dim_qk = problem.dim_vo = 64;
  for (const std::int64_t heads_kv : {1, 5}) {
    for (const std::int64_t terms : {2, 3, 12}) {
      for (const bool accumulate : {false, true}) {
        for (const bool dq : {false, true}) {
          problem.heads_kv = heads_kv;
          problem.heads_q = heads_kv * terms;
          problem.len_q = accumulate ? 5000 : 700;
          problem.len_kv = dq ? 700 : 60;
          problem.accumulate = accumulate;
          problem.dq = dq;
          for (const int threads : {1, 2, 3, 16}) {
            const CpuPlan plan(Pass::backward, problem, threads, Engine::float_simd);
            expect_units(problem, threads, plan.config);
          }
        }
      }
    }
  }
}

// It changes the order of sums, so the number of threads and the engine do not decide.
TEST(CpuTurns, ProblemsDecideWhetherQueryHeadsHaveTasks) {
  const auto terms = [](const std::string& options, Engine engine = Engine::float_simd) {
    const Problem problem = parse_problem(
        "dtype=bf16 heads_q=8 heads_kv=2 len_q=700 len_kv=700 dim_qk=64 dim_vo=64 " + options);
    const std::int64_t one = CpuPlan(Pass::backward, problem, 1, engine).config.dkv_terms;
    for (const int threads : {2, 3, 16, 64}) {
      EXPECT_EQ(CpuPlan(Pass::backward, problem, threads, engine).config.dkv_terms, one) << options;
    }
    return one;
  };
  for (const char* options :
       {"", "causal", "mask=qk", "window_left=600", "dq=off", "dk=off", "accumulate", "lengths_kv",
        "layout_q=packed total_q=1400 batch=2", "dropout", "rope=half", "bias=hqk"}) {
    EXPECT_EQ(terms(options), 4) << options;
    EXPECT_EQ(terms(options, Engine::amx_bf16), 4) << options;
  }
  for (const char* options :
       {"heads_kv=8", "len_q=100", "dk=off dv=off", "window_left=60 causal", "kv_begin", "kv_end",
        "bias=hqk dbias", "layout_q=packed total_q=800 batch=8", "batch=32"}) {
    EXPECT_EQ(terms(options), 1) << options;
  }
}

// Tasks of several terms rely on tasks in ascending order.
TEST(CpuTurns, HeadsThatShareADbiasAreNotInterleaved) {
  Problem problem;
  problem.batch = 32;
  problem.heads_q = problem.heads_kv = 2;
  problem.len_q = 1024;
  problem.dim_qk = problem.dim_vo = 64;
  problem.causal = true;
  problem.dbias = true;
  problem.bias = {.given = true, .batch = false, .head = true, .q = true, .kv = true};
  problem.accumulate = true;
  for (const std::int64_t len : {1024, 65536}) {  // sums of dbias of 4 and of 256 MiB
    problem.len_kv = len;
    for (const int threads : {1, 2, 16}) {
      const Config config = CpuPlan(Pass::backward, problem, threads, Engine::float_simd).config;
      EXPECT_EQ(config.dbias_with_keys, len == 1024) << threads;
      if (config.dbias_with_keys) {
        EXPECT_EQ(config.heads_at_once, 1) << threads;
        continue;
      }
      // A separate step computes dbias: keys are divided as without it.
      Problem other = problem;
      other.dbias = false;
      const Config without = CpuPlan(Pass::backward, other, threads, Engine::float_simd).config;
      EXPECT_EQ(config.terms_of_task, 1) << threads;
      EXPECT_EQ(config.block_kv, without.block_kv) << threads;
      EXPECT_EQ(config.blocks_of_task, without.blocks_of_task) << threads;
      EXPECT_EQ(config.heads_at_once, without.heads_at_once) << threads;
    }
  }
}

// Sums of a dbias in bf16 are in the worker's scratch if a task computes all terms, and only if the
// engine can add to them.
TEST(CpuTurns, DbiasInScratch) {
  Problem problem;
  problem.batch = 4;
  problem.heads_q = problem.heads_kv = 12;
  problem.len_q = problem.len_kv = 1024;
  problem.dim_qk = problem.dim_vo = 64;
  problem.dtype = problem.dtype_bias = DType::bf16;
  problem.dbias = true;
  problem.bias = {.given = true, .batch = false, .head = true, .q = true, .kv = true};
  const auto config = [&](Engine engine) {
    return CpuPlan(Pass::backward, problem, 2, engine).config;
  };
  const Config in_scratch = config(Engine::amx_bf16);
  EXPECT_EQ(in_scratch.terms_of_task, 4);
  EXPECT_TRUE(in_scratch.dbias_in_scratch);
  EXPECT_EQ(in_scratch.dbias_slots, 0);
  Problem without = problem;
  without.dbias = false;
  EXPECT_LT(CpuPlan(Pass::backward, problem, 2, Engine::amx_bf16).workspace_bytes,
            CpuPlan(Pass::backward, without, 2, Engine::amx_bf16).workspace_bytes + (8 << 20));
  EXPECT_FALSE(config(Engine::bf16_mmla).dbias_in_scratch);
  EXPECT_GT(config(Engine::bf16_mmla).dbias_slots, 0);
  problem.accumulate = true;
  EXPECT_FALSE(config(Engine::amx_bf16).dbias_in_scratch);
  EXPECT_GT(config(Engine::amx_bf16).dbias_slots, 0);
}

}  // namespace
}  // namespace attn::cpu
