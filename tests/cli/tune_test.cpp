// attn tune without a GPU: what it refuses, the CPU's tiles, and the search that it does, on
// made-up times.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench/search.hpp"
#include "command.hpp"

namespace attn::cli::test {
namespace {

using bench::Found;
using bench::search;
using bench::Trial;

TEST_F(Cli, TuneRefuses) {
  expect_refused(2, "tune --device webgpu", "--device is host, cuda or cuda:N, not 'webgpu'");
  expect_refused(2, "tune --device host --print-table --filter n512", "the CPU has no table");
  expect_refused(2, "tune --device gpu", "gpu");
  expect_refused(2, "tune --seconds -1", "--seconds");
  expect_refused(2, "tune --suite none", "suite 'none'");
  expect_refused(2, "tune --filter no-such-cell", "no cell matches");
  const Result decode = run("tune --device host --suite decode");
  EXPECT_EQ(decode.code, 2);
  EXPECT_NE(decode.err.find("no cell has a kernel with tiles to choose"), std::string::npos);
  const Result result = run("tune --dry-run --filter no-such-cell,d64");
  if (result.code == 3) {
    EXPECT_NE(result.err.find("cuda"), std::string::npos) << result.err;
  }
}

// Every candidate's result is compared with the reference; what was found is kept, and later
// processes use it, or say why they don't.
TEST_F(Cli, TuneOfTheCpu) {
  ASSERT_EQ(setenv("ATTN_CACHE_DIR", path("cache").c_str(), 1), 0);
  const std::string problem =
      " --problem 'heads_q=2 heads_kv=1 len_q=70 len_kv=150 dim_qk=24 dim_vo=16 causal "
      "window_left=60 dropout dtype=";
  for (const char* kind : {"fwd f32", "bwd f32", "fwd bf16", "bwd bf16"}) {
    const std::string pass(kind, 3);
    const Result tuned = run("tune --device host --threads 2 --seconds 1e-6 --pass " + pass +
                             problem + (kind + 4) + "'");
    EXPECT_EQ(tuned.code, 0) << tuned.out << tuned.err;
    EXPECT_NE(tuned.out.find("kept in " + path("cache") + "/cpu/tuned-"), std::string::npos)
        << tuned.out;
  }
  ASSERT_TRUE(std::filesystem::exists(path("cache/cpu")));
  const std::string file = std::filesystem::directory_iterator(path("cache/cpu"))->path();
  // The default may have been the fastest: take tiles that surely are others.
  std::ifstream kept(file);
  std::string opening;
  std::string device;
  std::getline(kept, opening);
  std::getline(kept, device);
  EXPECT_EQ(opening, "attn-tuned 1");
  const std::string key =
      "forward engine=f32 dtype=f32 dtype_kv=f32 dim_qk=64 dim_vo=64 heads=1 rows=64 keys=64 "
      "causal=0 window=0 bias_bytes=0 mask=0 softcap=0 alibi=0 dropout=0 : ";
  const std::string info =
      "info --backend cpu --explain 'heads_q=1 heads_kv=1 len_q=64 len_kv=64 dim_qk=64 dim_vo=64'";
  write(file, opening + "\n" + device + "\n" + key +
                  "tile_rows=48 strip_rows=12 tile_kv=32 block_kv=0\n");
  const Result explained = run(info);
  EXPECT_NE(explained.out.find("tile_rows=48 strip_rows=12 tile_kv=32"), std::string::npos)
      << explained.out;
  EXPECT_NE(explained.out.find(" tuned=1"), std::string::npos) << explained.out;
  EXPECT_NE(run("info").out.find("tiles of 1 kinds of problems by attn tune"), std::string::npos);
  write(file, opening + "\n" + device + "\n" + key + "tile_rows=48\n");
  EXPECT_NE(run("info").out.find("is not used: can't read 'forward"), std::string::npos);
  EXPECT_EQ(run(info).out.find(" tuned=1"), std::string::npos);
  unsetenv("ATTN_CACHE_DIR");
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
