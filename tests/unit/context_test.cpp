// Context: options, environment, pool, plans, threads.
#include <gtest/gtest.h>

#include <atomic>
#include <attn/attn.hpp>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "allocations.hpp"
#include "api/plan_cache.hpp"
#include "api/pool.hpp"
#include "api/threads.hpp"
#include "sanitizer.hpp"

namespace attn {
namespace {

std::string message_of(const ContextOptions& options) {
  try {
    const Context context(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

class Environment {
 public:
  explicit Environment(const char* value) {
    if (const char* before = std::getenv(kName)) before_ = before;
    setenv(kName, value, 1);
  }
  ~Environment() {
    if (before_.empty()) {
      unsetenv(kName);
    } else {
      setenv(kName, before_.c_str(), 1);
    }
  }

 private:
  static constexpr const char* kName = "ATTN_NUM_THREADS";
  std::string before_;
};

TEST(Context, Threads) {
  ContextOptions options;
  options.threads = 3;
  EXPECT_EQ(Context(options).threads(), api::has_threads() ? 3 : 1);
  options.threads = 0;
  {
    const Environment environment("5");
    EXPECT_EQ(Context(options).threads(), api::has_threads() ? 5 : 1);
  }
  {
    const Environment environment("");
    EXPECT_GE(Context(options).threads(), 1);
  }
  {
    const Environment environment("many");
    EXPECT_EQ(message_of(options),
              "Context: ATTN_NUM_THREADS: found 'many'; accepted a whole number, 1 to 4096");
    options.threads = 1;  // then it is not read
    EXPECT_EQ(message_of(options), "");
  }
  options.threads = -1;
  EXPECT_EQ(message_of(options), "Context: threads: found -1; accepted 0 to 4096");
}

TEST(Context, Refusals) {
  ContextOptions options;
  options.backend = "gpu";
  EXPECT_EQ(message_of(options),
            "Context: backend: found 'gpu'; accepted cuda, webgpu, cpu, reference");
  options.backend = "";
  options.pool_bytes = -1;
  EXPECT_EQ(message_of(options), "Context: pool_bytes: found -1; accepted 0 and more");
}

TEST(Threads, EveryWorkerRunsOnce) {
  for (const std::int32_t workers : {0, 1, 2, 7, 64}) {
    std::vector<std::atomic<int>> runs(64);
    api::default_parallel_for(
        nullptr, workers,
        [](void* data, std::int32_t worker) {
          ++(*static_cast<std::vector<std::atomic<int>>*>(data))[static_cast<std::size_t>(worker)];
        },
        &runs);
    for (std::int32_t worker = 0; worker < 64; ++worker) {
      EXPECT_EQ(runs[static_cast<std::size_t>(worker)], worker < workers ? 1 : 0);
    }
  }
}

// Inside a region of the caller the team may be one thread: the work is still all done.
TEST(Threads, NestedRegions) {
  std::atomic<int> runs{0};
  api::default_parallel_for(
      nullptr, 3,
      [](void* data, std::int32_t) {
        api::default_parallel_for(
            nullptr, 4, [](void* inner, std::int32_t) { ++*static_cast<std::atomic<int>*>(inner); },
            data);
      },
      &runs);
  EXPECT_EQ(runs, 12);
}

TEST(Pool, OneBlockForEachCallInFlightOfExactlyItsSize) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "allocations are not counted";
  api::Pool pool(1 << 20);
  const auto bytes_of = [&](std::int64_t bytes) {
    const auto before = test::allocations();
    const api::Pool::Lease lease(pool, bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(lease.data()) % api::kWorkspaceAlignment, 0u);
    return test::allocations().bytes - before.bytes;
  };
  EXPECT_EQ(bytes_of(0), 0);
  EXPECT_EQ(bytes_of(1001), 1001);
  EXPECT_EQ(bytes_of(1001), 0);
  EXPECT_EQ(bytes_of(500), 0);
  EXPECT_EQ(bytes_of(1003), 1003);  // replaces the block of 1001
  const auto before = test::allocations();
  {
    const api::Pool::Lease one(pool, 1003);
    const api::Pool::Lease two(pool, 2007);
    EXPECT_NE(one.data(), two.data());
  }
  EXPECT_EQ(test::allocations().bytes - before.bytes, 2007);
  EXPECT_EQ(bytes_of(2007), 0);
}

TEST(Pool, KeepsNoMoreThanItsLimit) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "allocations are not counted";
  api::Pool pool(1000);
  const auto count_of = [&](std::int64_t bytes) {
    const auto before = test::allocations().count;
    const api::Pool::Lease lease(pool, bytes);
    return test::allocations().count - before;
  };
  EXPECT_EQ(count_of(1001), 1);
  EXPECT_EQ(count_of(1001), 1);
  EXPECT_EQ(count_of(1000), 1);
  EXPECT_EQ(count_of(1000), 0);
}

TEST(Pool, TellsWhenThereIsNoMemory) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "allocations are not counted";
  api::Pool pool(1000);
  const api::Pool::Lease lease(pool, std::int64_t{1} << 60);
  EXPECT_EQ(lease.data(), nullptr);
}

TEST(Pool, ServesManyThreads) {
  api::Pool pool(1 << 20);
  std::vector<std::thread> threads;
  std::atomic<int> clashes{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, &clashes, t] {
      for (int round = 0; round < 500; ++round) {
        const api::Pool::Lease lease(pool, 64 + 16 * ((round + t) % 5));
        auto* mine = static_cast<volatile int*>(lease.data());
        *mine = t;
        if (*mine != t) ++clashes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes, 0);
}

TEST(PlanCache, FindsWhatWasInsertedAndStaysBounded) {
  api::PlanCache cache;
  api::PlanKey key;
  EXPECT_EQ(cache.find(key), nullptr);
  for (std::int64_t len = 0; len < 5000; ++len) {
    key.problem.len_q = len;
    api::Planned planned;
    planned.slots.resize(static_cast<std::size_t>(len % 7));
    cache.insert(key, std::make_shared<const api::Planned>(planned));
  }
  EXPECT_EQ(cache.find(key)->slots.size(), 4999u % 7);
  for (const auto change : {0, 1, 2, 3}) {
    api::PlanKey other = key;
    if (change == 0) other.pass = Pass::decode;
    if (change == 1) other.device = Device::cuda;
    if (change == 2) other.ordinal = 1;
    if (change == 3) other.access = core::Access::tma;
    EXPECT_EQ(cache.find(other), nullptr);
  }
  key.problem.len_q = 0;
  EXPECT_EQ(cache.find(key), nullptr);
}

}  // namespace
}  // namespace attn
