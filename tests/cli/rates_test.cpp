// The rates of the machine that `attn bench` compares cells with.
#include "bench/rates.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "command.hpp"

namespace attn::cli::test {
namespace {

using nlohmann::json;

TEST_F(Cli, BenchRowsHaveTheRatesOfTheRun) {
  const std::string sizes = " --problem 'heads_q=2 heads_kv=2 len_q=8 len_kv=64' --seconds 0";
  const Result run_of_fwd = run("bench --device host --json --pass fwd" + sizes);
  ASSERT_EQ(run_of_fwd.code, 0) << run_of_fwd.err;
  const json forward = json::parse(run_of_fwd.out);
  EXPECT_GT(forward.at("rates").at("read_gbps").get<double>(), 0.0);
  EXPECT_FALSE(forward.contains("share_of_read"));
  const json& gemm = forward.at("rates").at("gemm_tflops");
  EXPECT_EQ(forward.contains("share_of_gemm"), !gemm.empty());
  if (gemm.contains("openblas")) {
    EXPECT_NEAR(forward.at("share_of_gemm").get<double>(),
                forward.at("tflops").get<double>() / gemm.at("openblas").get<double>(), 1e-3);
  }

  const Result run_of_decode = run("bench --device host --json --pass decode" + sizes);
  ASSERT_EQ(run_of_decode.code, 0) << run_of_decode.err;
  const json decode = json::parse(run_of_decode.out);
  // Rows have 1e-4 of the share and 1e-3 GB/s of each rate. A loaded machine reads the trial's 1
  // MiB at far less than 1 GB/s, so the error of that rate counts relative to it.
  const double read = decode.at("rates").at("read_gbps").get<double>();
  ASSERT_GT(read, 0.0) << run_of_decode.out;
  const double share = decode.at("gbps").get<double>() / read;
  EXPECT_NEAR(decode.at("share_of_read").get<double>(), share, 1e-4 + (1.0 + share) * 1e-3 / read);
  EXPECT_FALSE(decode.contains("share_of_gemm"));

  const Result table = run("bench --device host --pass decode" + sizes);
  EXPECT_NE(table.out.find("GB/s"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("rates on "), std::string::npos) << table.out;
}

#if defined(__has_feature)
#define ATTN_HAS_FEATURE(name) __has_feature(name)
#else
#define ATTN_HAS_FEATURE(name) 0
#endif
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !ATTN_HAS_FEATURE(address_sanitizer)
// A child process measures while it has too little address space for the stacks of 64 threads, and
// again without that limit. Returns its exit status: 0 if the first left out both rates.
int exit_status_without_threads() {
  const pid_t child = fork();
  if (child == 0) {
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (rlim_t{24} << 20);
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    const rlimit before = limit;
    limit.rlim_cur = bytes;
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    const bench::Rates refused = bench::measure_rates(64, 0.0, nullptr);
    if (setrlimit(RLIMIT_AS, &before) != 0) _exit(2);
    const bench::Rates measured = bench::measure_rates(64, 0.0, nullptr);
    const bool as_expected =
        refused.gemm.empty() && refused.read_gbps == 0.0 && measured.read_gbps > 0.0;
    _exit(as_expected ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST(Rates, AreLeftOutIfTheSystemRefusesThreads) {
  EXPECT_EQ(exit_status_without_threads(), 0);
}
#endif

}  // namespace
}  // namespace attn::cli::test
