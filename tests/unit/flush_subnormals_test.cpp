// Results below the smallest normal number are 0 in the tasks of the CPU backend, and only there.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>

#include "cpu/host/tasks.hpp"

namespace attn::cpu {
namespace {

float half_of(float x) {
  volatile float value = x;
  value = value * 0.5f;
  return value;
}

TEST(FlushSubnormals, InTasksOnly) {
  constexpr float kSmallest = std::numeric_limits<float>::min();
  core::Executor executor;
  executor.threads = 1;
  executor.parallel_for = [](void*, std::int32_t workers, void (*body)(void*, std::int32_t),
                             void* data) {
    for (std::int32_t worker = 0; worker < workers; ++worker) body(data, worker);
  };
  ASSERT_GT(half_of(kSmallest), 0.0f);
  std::atomic<int> ran{0};
  run_tasks(executor, 3, [&](std::int64_t, std::int32_t) {
    ran.fetch_add(1);
#if defined(__SSE2__)
    EXPECT_EQ(half_of(kSmallest), 0.0f);
#endif
    EXPECT_EQ(half_of(2.0f * kSmallest), kSmallest);
  });
  EXPECT_EQ(ran.load(), 3);
  EXPECT_GT(half_of(kSmallest), 0.0f);
}

}  // namespace
}  // namespace attn::cpu
