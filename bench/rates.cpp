// Times a matrix product and reads of memory; see rates.hpp.
#include "bench/rates.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "bench/peer.hpp"
#include "bench/timer.hpp"
#include "platform/platform.hpp"

// The OpenBLAS that CMake found. It is opened when it is needed: linked, it would start its threads
// in every call of the command.
#ifndef ATTN_BENCH_OPENBLAS
#define ATTN_BENCH_OPENBLAS ""
#endif

namespace attn::bench {
namespace {

constexpr double kMostSeconds = 0.3;  // per rate
constexpr int kLeastCalls = 3;
// 2 * 2048^3 FLOP take 0.1 s on two cores. OpenBLAS reaches its full rate from about 1024 on.
constexpr std::int64_t kGemmSize = 2048;
constexpr std::int64_t kGemmTrial = 64;
// Far larger than the caches.
constexpr std::int64_t kReadBytes = std::int64_t{512} << 20;
constexpr std::int64_t kReadTrial = std::int64_t{1} << 20;

double product_gflops(std::int64_t size, double seconds) {
  const auto n = static_cast<double>(size);
  return seconds > 0 ? 2.0 * n * n * n / seconds * 1e-9 : 0.0;
}

// The fastest of several calls: a rate bounds what cells can reach, and other programs or virtual
// machines that use the memory meanwhile would lower the median.
double fastest(const std::vector<double>& times) {
  return times.empty() ? 0.0 : *std::min_element(times.begin(), times.end());
}

// Threads that are joined in any case: a std::thread that is destroyed while it may be joined ends
// the program.
struct JoinedThreads {
  std::vector<std::thread> threads;
  ~JoinedThreads() {
    for (std::thread& thread : threads) thread.join();
  }
};

// Calls body(0), ..., body(threads - 1) in parallel, the first on this thread. Throws
// std::system_error if the system refuses a thread; those that started have ended by then.
void run_on(std::int32_t threads, const std::function<void(std::int32_t)>& body) {
  JoinedThreads others;
  others.threads.reserve(static_cast<std::size_t>(std::max(threads - 1, 0)));
  for (std::int32_t n = 1; n < threads; ++n) others.threads.emplace_back(body, n);
  body(0);
}

// cblas_sgemm and openblas_set_num_threads, opened once per process: an OpenBLAS with threads is
// not meant to be closed.
struct OpenBlas {
  using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                         const float* a, int lda, const float* b, int ldb, float beta, float* c,
                         int ldc);
  using SetThreads = void (*)(int);
  Sgemm sgemm = nullptr;
  SetThreads set_threads = nullptr;
};

OpenBlas open_blas() {
  OpenBlas blas;
  std::string error;
  void* library = platform::open_library(ATTN_BENCH_OPENBLAS, error);
  if (library == nullptr) throw std::runtime_error(error);
  blas.sgemm = reinterpret_cast<OpenBlas::Sgemm>(platform::find_symbol(library, "cblas_sgemm"));
  blas.set_threads = reinterpret_cast<OpenBlas::SetThreads>(
      platform::find_symbol(library, "openblas_set_num_threads"));
  if (blas.sgemm == nullptr || blas.set_threads == nullptr) {
    throw std::runtime_error("no cblas_sgemm in " ATTN_BENCH_OPENBLAS);
  }
  return blas;
}

double openblas_gflops(std::int32_t threads, double seconds) {
  // OpenBLAS raises SIGINT if the system refuses one of its threads. It starts one for each
  // processor when it is opened. So as many threads are tried first.
  run_on(std::max(threads, platform::online_processors()), [](std::int32_t) {});
  static const OpenBlas blas = open_blas();
  blas.set_threads(threads);
  const std::int64_t size = seconds > 0 ? kGemmSize : kGemmTrial;
  const auto elements = static_cast<std::size_t>(size * size);
  std::vector<float> a(elements), b(elements), c(elements);
  for (std::size_t n = 0; n < elements; ++n) {
    a[n] = static_cast<float>(n % 251) / 251.0f - 0.5f;
    b[n] = static_cast<float>(n % 241) / 241.0f - 0.5f;
  }
  const auto product = [&] {
    constexpr int kRowMajor = 101, kNoTranspose = 111;
    const int n = static_cast<int>(size);
    blas.sgemm(kRowMajor, kNoTranspose, kNoTranspose, n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f,
               c.data(), n);
  };
  product();  // touches the memory
  std::vector<double> times;
  sample(product, seconds, kLeastCalls, times);
  return product_gflops(size, fastest(times));
}

using Word = std::uint64_t;

// 32 sums that don't depend on each other: the compiler adds them as vectors.
__attribute__((always_inline)) inline Word sum_words(const Word* words, std::int64_t count) {
  constexpr int kSums = 32;
  Word sums[kSums] = {};
  for (std::int64_t n = 0; n + kSums <= count; n += kSums) {
    for (int m = 0; m < kSums; ++m) sums[m] += words[n + m];
  }
  Word total = 0;
  for (const Word sum : sums) total += sum;
  return total;
}

// Loads of the widest vectors: on one core of Zen 4 they read 24.5 GB/s, those of SSE2 22.
using SumWords = Word (*)(const Word*, std::int64_t);
#if defined(__x86_64__)
__attribute__((target("avx512f"))) Word sum_by_avx512(const Word* words, std::int64_t count) {
  return sum_words(words, count);
}
__attribute__((target("avx2"))) Word sum_by_avx2(const Word* words, std::int64_t count) {
  return sum_words(words, count);
}
#endif
Word sum_by_baseline(const Word* words, std::int64_t count) {
  return sum_words(words, count);
}
SumWords widest_sum() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_by_avx512;
  if (__builtin_cpu_supports("avx2")) return sum_by_avx2;
#endif
  return sum_by_baseline;
}

double read_gbps(std::int32_t threads, double seconds) {
  const std::int64_t bytes = seconds > 0 ? kReadBytes : kReadTrial;
  const std::int64_t all = bytes / static_cast<std::int64_t>(sizeof(Word));
  const std::unique_ptr<Word[]> words(new Word[static_cast<std::size_t>(all)]);
  // Each thread first touches what it reads, so that it lies in the memory of its socket.
  const auto part = [&](std::int32_t n, auto&& body) {
    const std::int64_t begin = all * n / threads;
    body(words.get() + begin, all * (n + 1) / threads - begin);
  };
  run_on(threads, [&](std::int32_t n) {
    part(n, [n](Word* at, std::int64_t count) { std::fill_n(at, count, static_cast<Word>(n)); });
  });
  const SumWords sum = widest_sum();
  std::atomic<Word> total{0};  // so that the reads are not optimized away
  const auto read = [&] {
    run_on(threads, [&](std::int32_t n) {
      part(n, [&](const Word* at, std::int64_t count) { total += sum(at, count); });
    });
  };
  std::vector<double> times;
  sample(read, seconds, kLeastCalls, times);
  return static_cast<double>(bytes) / fastest(times) * 1e-9;
}

// The rate; 0, with the reason on stderr, if it can't be measured.
double measured(const char* what, const std::function<double()>& rate) {
  try {
    return rate();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rate of %s not measured: %s\n", what, error.what());
    return 0.0;
  }
}

}  // namespace

double Rates::best_gemm() const {
  double best = 0.0;
  for (const auto& [name, gflops] : gemm) best = std::max(best, gflops);
  return best;
}

Rates measure_rates(std::int32_t threads, double seconds, TorchPeer* peer) {
  const double budget = std::min(seconds, kMostSeconds);
  Rates rates;
  const auto add_gemm = [&](const char* name, const char* what,
                            const std::function<double()>& rate) {
    if (const double gflops = measured(what, rate); gflops > 0) rates.gemm[name] = gflops;
  };
  if (ATTN_BENCH_OPENBLAS[0] != '\0') {
    add_gemm("openblas", "OpenBLAS's matrix product",
             [&] { return openblas_gflops(threads, budget); });
  }
  if (peer != nullptr) {
    add_gemm("torch", "PyTorch's matrix product", [&] {
      const std::int64_t size = budget > 0 ? kGemmSize : kGemmTrial;
      return product_gflops(size, fastest(peer->sample_gemm(size, budget, kLeastCalls)));
    });
  }
  rates.read_gbps = measured("reading memory", [&] { return read_gbps(threads, budget); });
  return rates;
}

}  // namespace attn::bench
