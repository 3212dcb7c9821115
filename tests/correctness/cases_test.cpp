// Runs the case list through the library. Environment variables select a part:
//   ATTN_CASE_SLICE=k/n    every n-th case, starting at k
//   ATTN_CASE_LIMIT=n      at most n cases, evenly spaced; default: all (Everything: 240)
//   ATTN_CASE_OPTION=name  cases with this option
//   ATTN_CASE_TYPES=all    pairs of options in each of f32, bf16, f16 instead of one of them
//   ATTN_CASE_BACKEND=...  the backend that must run them; default "cpu". "cuda": in device memory;
//                          refused cases are counted by reason
//   ATTN_CASE_DEVICE=...   cuda:1, ...; default cuda for the backend cuda
//   ATTN_CASE_EXACT=1      a separate device allocation per tensor, for compute-sanitizer
//   ATTN_CASE_JOBS=n       cases in parallel; default: all processors
//   ATTN_CASE_STOP=1       stop at the first failure
#include <gtest/gtest.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "harness/case.hpp"
#include "harness/check.hpp"
#include "harness/device.hpp"
#include "harness/place.hpp"

namespace attn::harness {
namespace {

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

std::int64_t number(const std::string& text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

Filter filter_from_environment() {
  Filter filter;
  const std::string slice = environment("ATTN_CASE_SLICE", "0/1");
  filter.shard = static_cast<std::int32_t>(number(slice));
  filter.shards = static_cast<std::int32_t>(number(slice.substr(slice.find('/') + 1)));
  filter.limit = number(environment("ATTN_CASE_LIMIT", "0"));
  filter.option = environment("ATTN_CASE_OPTION", "");
  filter.every_type = environment("ATTN_CASE_TYPES", "one") == "all";
  return filter;
}

struct Tally {
  std::size_t ran = 0;
  std::size_t failed = 0;
  std::map<std::string, std::size_t> refused;  // by reason, if refusals are allowed
  std::size_t with_rows = 0;                   // forward and backward
  std::size_t large = 0;  // with 3 or more tiles of keys and 2 or more of queries
  double worst_ratio = 0.0;
  std::string worst_case;
};

void take(const Case& c, const CheckReport& report, const std::string& backend, bool may_refuse,
          Tally& tally) {
  constexpr std::size_t kMostShown = 20;
  std::string message = report.message;
  if (report.skipped && may_refuse) {
    ++tally.refused[message];
    return;
  }
  if (report.skipped) message = "not run: " + message;
  if (!report.skipped && (report.backend != backend || report.kernel.empty())) {
    message = "ran on \"" + report.backend + "\", kernel \"" + report.kernel + "\"; " + message;
  }
  ++tally.ran;
  if (!message.empty() || !report.passed) {
    if (++tally.failed <= kMostShown) {
      ADD_FAILURE() << message << "\n  attn check --case \"" << to_string(c) << "\"";
    }
  } else if (report.worst_ratio > tally.worst_ratio) {
    tally.worst_ratio = report.worst_ratio;
    tally.worst_case = to_string(c);
  }
  if (c.pass == Pass::decode) return;
  ++tally.with_rows;
  if (report.q_tiles >= 2 && report.kv_tiles >= 3) ++tally.large;
}

void run_list(const std::vector<Case>& cases) {
  ASSERT_FALSE(cases.empty());
  const std::string backend = environment("ATTN_CASE_BACKEND", "cpu");
  const Place place = place_of(environment("ATTN_CASE_DEVICE", ""), backend);
  const bool on_device = place.device != Device::host;
  const std::string asked = on_device ? backend : "";
  const bool exact = environment("ATTN_CASE_EXACT", "0") == "1";
  const bool stop = environment("ATTN_CASE_STOP", "0") == "1";
  const std::int64_t jobs = number(environment("ATTN_CASE_JOBS", "0"));
  const std::size_t workers =
      jobs > 0 ? static_cast<std::size_t>(jobs) : std::max(1u, std::thread::hardware_concurrency());
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  Tally tally;
  // On a device, all cases use one context and share plans and loaded kernels.
  ContextOptions shared_options;
  shared_options.backend = backend;
  Context shared(shared_options);
  std::vector<std::thread> threads;
  const auto work = [&](std::size_t worker) {
    ContextOptions options = shared_options;
    options.threads = static_cast<std::int32_t>(1 + worker % 3);
    Context own(options);
    std::unique_ptr<DeviceQueue> queue;
    if (place.device == Device::cuda) queue = std::make_unique<DeviceQueue>(place.ordinal, exact);
    for (std::size_t n = next++; n < cases.size(); n = next++) {
      const CheckReport report = run_case(on_device ? shared : own, cases[n], queue.get(), asked);
      const std::scoped_lock lock(mutex);
      take(cases[n], report, backend, on_device, tally);
      if (report.device_lost || (stop && tally.failed > 0)) next = cases.size();
    }
  };
  for (std::size_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      try {
        work(worker);
      } catch (const std::exception& error) {
        const std::scoped_lock lock(mutex);
        ADD_FAILURE() << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tally.failed, 0u) << "of " << cases.size() << " cases";
  std::size_t refused = 0;
  for (const auto& [reason, count] : tally.refused) {
    std::printf("%zu cases refused: %s\n", count, reason.c_str());
    refused += count;
  }
  if (refused == cases.size() && cases[0].pass == Pass::decode) GTEST_SKIP() << "no case ran";
  EXPECT_LT(refused, cases.size()) << "no case ran";
  std::printf("%zu cases, %zu ran, %zu refused, %zu failed, worst error/tolerance %.3f\n  %s\n",
              cases.size(), tally.ran, refused, tally.failed, tally.worst_ratio,
              tally.worst_case.c_str());
  const bool whole = environment("ATTN_CASE_OPTION", "").empty();
  if (tally.with_rows < 50 || (backend != "cpu" && !on_device) || !whole) return;
  std::printf("%zu of %zu forward and backward cases span 3 tiles of keys and 2 of queries\n",
              tally.large, tally.with_rows);
  EXPECT_GE(2 * tally.large, tally.with_rows);
}

void run_pass(Pass pass) {
  Filter filter = filter_from_environment();
  filter.pass = pass;
  run_list(case_list(filter));
}

// What the CPU backend says of itself: the instruction set and the engine of bf16 problems.
std::string cpu_detail() {
  Context context;
  for (const BackendInfo& info : backends(context)) {
    if (info.name == "cpu") return info.detail;
  }
  return "";
}

bool has_bf16_instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

TEST(Cases, Forward) {
  run_pass(Pass::forward);
}
TEST(Cases, Backward) {
  run_pass(Pass::backward);
}
TEST(Cases, Decode) {
  run_pass(Pass::decode);
}

// The bf16 cases of all passes, for the engine of ATTN_CPU_ENGINE.
TEST(Cases, Engine) {
  const std::string engine = environment("ATTN_CPU_ENGINE", "f32");
  const std::string detail = cpu_detail();
  if (detail.find("bf16 by " + engine) == std::string::npos) {
    GTEST_SKIP() << engine << " is not usable here: " << detail;
  }
  if (engine == "f32" && !has_bf16_instructions()) {
    GTEST_SKIP() << "without bf16 instructions f32 is the only engine, which the slices use";
  }
  Filter filter = filter_from_environment();
  filter.dtype = DType::bf16;
  run_list(case_list(filter));
}

// A part of all passes, for another backend or for one instruction set (ATTN_CPU_TARGET).
TEST(Cases, Everything) {
  const std::string target = environment("ATTN_CPU_TARGET", "");
  const std::string detail = cpu_detail();
  if (!target.empty() && detail.compare(0, target.size() + 1, target + " ") != 0) {
    GTEST_SKIP() << target << " is not usable here: " << detail;
  }
  Filter filter = filter_from_environment();
  if (filter.limit == 0) filter.limit = 240;
  run_list(case_list(filter));
}

}  // namespace
}  // namespace attn::harness
