// Threads of a library that links no OpenMP: its own helpers, and the runtime that is loaded (here
// the one that this program links).
#include "api/workers.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "api/loaded_openmp.hpp"
#include "api/threads.hpp"
#include "sanitizer.hpp"

namespace attn {
namespace {

constexpr std::int32_t kMost = 64;
using Counts = std::array<std::atomic<int>, kMost>;

void count(void* data, std::int32_t worker) {
  (*static_cast<Counts*>(data))[static_cast<std::size_t>(worker)].fetch_add(
      1, std::memory_order_relaxed);
}

// Never destroyed, as its helpers never end.
api::Workers& new_workers() {
  static std::vector<api::Workers*>& all = *new std::vector<api::Workers*>;
  all.push_back(new api::Workers);
  return *all.back();
}

// Whether each worker of a call ran once.
template <class Run>
bool each_once(Run run, std::int32_t workers) {
  Counts counts{};
  run(workers, count, &counts);
  for (std::int32_t worker = 0; worker < kMost; ++worker) {
    if (counts[static_cast<std::size_t>(worker)] != (worker < workers ? 1 : 0)) return false;
  }
  return true;
}

auto by(api::Workers& pool) {
  return [&pool](std::int32_t workers, void (*body)(void*, std::int32_t), void* data) {
    pool.run(workers, body, data);
  };
}

void by_loaded(std::int32_t workers, void (*body)(void*, std::int32_t), void* data) {
  api::loaded_parallel_for(nullptr, workers, body, data);
}

TEST(Workers, EachWorkerOnce) {
  api::Workers& pool = new_workers();
  for (const std::int32_t workers : {0, 1, 2, 7, 64, 3}) {
    EXPECT_TRUE(each_once(by(pool), workers)) << workers;
  }
  EXPECT_EQ(pool.helpers(), 63);
}

TEST(Workers, ManyShortCallsWhileHelpersFallAsleepAndWake) {
  api::Workers& pool = new_workers();
  for (int call = 0; call < 3000; ++call) {
    ASSERT_TRUE(each_once(by(pool), 1 + call % 4)) << call;
    if (call % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

TEST(Workers, CallersSleepTooAndAreWoken) {
  api::Workers& pool = new_workers();
  std::atomic<int> runs{0};
  pool.run(
      3,
      [](void* data, std::int32_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ++*static_cast<std::atomic<int>*>(data);
      },
      &runs);
  EXPECT_EQ(runs, 3);
}

// Both workers wait for each other, which one thread alone could not.
TEST(Workers, RunAtTheSameTime) {
  api::Workers& pool = new_workers();
  std::atomic<int> here{0};
  pool.run(
      2,
      [](void* data, std::int32_t) {
        auto& arrived = *static_cast<std::atomic<int>*>(data);
        ++arrived;
        while (arrived < 2) std::this_thread::yield();
      },
      &here);
  EXPECT_EQ(here, 2);
}

// The calling thread alone asks whether a call is to be interrupted, so it must have a share, also
// where helpers of a wider call before it are still awake.
TEST(Workers, TheCallerRunsWorkerZero) {
  api::Workers& pool = new_workers();
  std::thread::id of_worker_0;
  for (int call = 0; call < 3000; ++call) {
    ASSERT_TRUE(each_once(by(pool), 6));
    pool.run(
        2,
        [](void* data, std::int32_t worker) {
          if (worker == 0) *static_cast<std::thread::id*>(data) = std::this_thread::get_id();
        },
        &of_worker_0);
    ASSERT_EQ(of_worker_0, std::this_thread::get_id()) << call;
  }
}

TEST(Workers, SeveralCallersAtOnce) {
  api::Workers& pool = new_workers();
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int call = 0; call < 500; ++call) wrong += each_once(by(pool), 3) ? 0 : 1;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Workers, CallsInsideOfBodies) {
  struct Both {
    api::Workers* pool;
    Counts counts{};
  } both{&new_workers()};
  both.pool->run(
      5,
      [](void* data, std::int32_t) {
        static_cast<Both*>(data)->pool->run(4, count, &static_cast<Both*>(data)->counts);
      },
      &both);
  for (std::size_t worker = 0; worker < 4; ++worker) EXPECT_EQ(both.counts[worker], 5);
}

TEST(Workers, ForgottenHelpersAreStartedAnewInAChild) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "not under the thread sanitizer";
  api::Workers& pool = new_workers();
  ASSERT_TRUE(each_once(by(pool), 4));
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    pool.forget();
    const bool ok = pool.helpers() == 0 && each_once(by(pool), 4) && pool.helpers() == 3;
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(LoadedOpenMP, EachWorkerOnceAlsoInChildren) {
  api::watch_forks();
  EXPECT_TRUE(each_once(by_loaded, 4));
  if (test::kThreadSanitizer) GTEST_SKIP() << "not under the thread sanitizer";
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    bool ok = std::string(api::loaded_openmp_path()).empty() && each_once(by_loaded, 4);
    ok = ok && api::own_helpers() == 3;
    std::thread([&] { ok = ok && each_once(by_loaded, 4); }).join();
    _exit(ok && each_once(by_loaded, 5) ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(LoadedOpenMP, CallsInsideOfBodies) {
  Counts counts{};
  api::loaded_parallel_for(
      nullptr, 5, [](void* data, std::int32_t) { by_loaded(4, count, data); }, &counts);
  for (std::size_t worker = 0; worker < 4; ++worker) EXPECT_EQ(counts[worker], 5);
}

#ifdef ATTN_TEST_LINKS_OPENMP
TEST(LoadedOpenMP, IsTheOneOfThisProgram) {
  EXPECT_NE(std::string(api::loaded_openmp_path()).find("omp"), std::string::npos);
}
#endif

}  // namespace
}  // namespace attn
