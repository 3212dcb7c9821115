// attn tune without a GPU: what it refuses; and the search that it does, on made-up times.
#include <cmath>

#include "bench/search.hpp"
#include "command.hpp"

namespace attn::cli::test {
namespace {

using bench::Found;
using bench::search;
using bench::Trial;

TEST_F(Cli, TuneRefuses) {
  expect_refused(2, "tune --device host", "--device is cuda or cuda:N, not 'host'");
  expect_refused(2, "tune --device gpu", "gpu");
  expect_refused(2, "tune --seconds -1", "--seconds");
  expect_refused(2, "tune --suite none", "suite 'none'");
  expect_refused(2, "tune --filter no-such-cell", "no cell matches");
  const Result result = run("tune --dry-run --filter no-such-cell,d64");
  if (result.code == 3) {
    EXPECT_NE(result.err.find("cuda"), std::string::npos) << result.err;
  }
}

// Seconds of choices on two workloads; 0: a wrong result.
struct Times {
  std::vector<std::vector<double>> seconds;
  std::vector<std::size_t> measured;  // how often each choice was

  Found run() {
    measured.assign(seconds.size(), 0);
    return search(seconds.size(), 2, [&](std::size_t choice, std::size_t workload, int) {
      ++measured[choice];
      const double time = seconds[choice][workload];
      return time > 0.0 ? Trial{time, ""} : Trial{0.0, "wrong"};
    });
  }
};

TEST(BenchSearch, TakesTheFastestInGeometricMean) {
  Times times{{{4.0, 4.0}, {2.0, 9.0}, {3.0, 3.0}, {5.0, 1.0}}, {}};
  const Found found = times.run();
  EXPECT_EQ(found.best, 3u);
  EXPECT_NEAR(found.gain, 4.0 / std::sqrt(5.0), 1e-12);
  EXPECT_EQ(times.measured, (std::vector<std::size_t>{3, 3, 3, 3}));
}

TEST(BenchSearch, KeepsWhatStandsForLessThanNoise) {
  Times times{{{1.0, 1.0}, {0.995, 0.995}}, {}};
  const Found found = times.run();
  EXPECT_EQ(found.best, 0u);
  EXPECT_EQ(found.gain, 1.0);
}

TEST(BenchSearch, WrongResultsAreOut) {
  Times times{{{4.0, 4.0}, {0.0, 1.0}, {1.0, 0.0}, {3.0, 3.0}}, {}};
  Found found = times.run();
  EXPECT_EQ(found.best, 3u);
  EXPECT_EQ(found.choices[1].problem, "wrong");
  EXPECT_EQ(found.choices[2].problem, "wrong");
  EXPECT_EQ(times.measured[1], 1u);
  times.seconds = {{0.0, 0.0}, {2.0, 2.0}, {1.0, 1.0}};
  found = times.run();
  EXPECT_EQ(found.best, 2u) << "anything is better than a wrong result";
  EXPECT_EQ(found.gain, 0.0);
  times.seconds = {{0.0, 0.0}, {0.0, 0.0}};
  EXPECT_EQ(times.run().best, 0u);
}

TEST(BenchSearch, OnlyTheFastestAreMeasuredAgain) {
  Times times;
  for (int n = 0; n < 20; ++n) times.seconds.push_back({1.0 + n, 1.0});
  EXPECT_EQ(times.run().best, 0u);
  std::size_t again = 0;
  for (const std::size_t count : times.measured) again += count > 1 ? 1 : 0;
  EXPECT_EQ(again, 1 + bench::kFinalists);
}

}  // namespace
}  // namespace attn::cli::test
