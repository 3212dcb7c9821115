// The demo's second half: causal attention over a long sequence, forward and backward, by libattn
// and by textbook attention. Each runs in a separate process so that its peak memory is measured
// separately.
//
//   attn_demo [LEN]      exit status 1 if the two disagree
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <attn/attn.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "bench/textbook.hpp"

namespace {

constexpr std::size_t kHeads = 2;
constexpr std::size_t kDim = 64;
constexpr std::size_t kOutputs = 4;  // o, dq, dk, dv
constexpr std::array<const char*, kOutputs> kNames{"o", "dq", "dk", "dv"};
// Relative to the largest value: two f32 sums in different orders.
constexpr double kAllowed = 1e-4;

struct Times {
  double forward = 0;
  double backward = 0;
};

struct Tensors {
  explicit Tensors(std::size_t len) : count(len * kHeads * kDim) {
    for (auto* x : {&q, &k, &v, &dout}) {
      x->resize(count);
      for (float& value : *x) value = next_normal();
    }
    for (auto& x : outputs) x.assign(count, 0.0f);
  }
  float next_normal() {  // sum of four uniform numbers, scaled to variance 1
    float sum = 0.0f;
    for (int n = 0; n < 4; ++n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      sum += static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
    }
    return sum * 1.7320508f;
  }
  std::uint64_t state = 7;
  std::size_t count;
  std::vector<float> q, k, v, dout;
  std::array<std::vector<float>, kOutputs> outputs;
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Times run_libattn(std::size_t len, Tensors& t) {
  const auto view = [&](const std::vector<float>& x) {
    const auto n = static_cast<std::int64_t>(len);
    return attn::TensorView::contiguous(x.data(), attn::DType::f32,
                                        {1, n, std::int64_t{kHeads}, std::int64_t{kDim}});
  };
  std::vector<float> lse(kHeads * len);
  attn::Arguments a;
  a.q = view(t.q);
  a.k = view(t.k);
  a.v = view(t.v);
  a.o = view(t.outputs[0]);
  a.lse = attn::TensorView::contiguous(lse.data(), attn::DType::f32,
                                       {1, std::int64_t{kHeads}, static_cast<std::int64_t>(len)});
  attn::Problem problem = attn::describe(a);
  problem.causal = true;
  attn::Context context;
  Times times;
  double start = now();
  attn::forward(context, problem, a);
  times.forward = now() - start;
  a.dout = view(t.dout);
  a.dq = view(t.outputs[1]);
  a.dk = view(t.outputs[2]);
  a.dv = view(t.outputs[3]);
  problem = attn::describe(a);
  problem.causal = true;
  start = now();
  attn::backward(context, problem, a);
  times.backward = now() - start;
  return times;
}

Times run_textbook(std::size_t len, Tensors& t) {
  attn::bench::Textbook textbook({.len = len, .heads = kHeads, .dim = kDim});
  Times times;
  double start = now();
  textbook.forward(t.q.data(), t.k.data(), t.v.data(), t.outputs[0].data());
  times.forward = now() - start;
  start = now();
  textbook.backward(t.q.data(), t.k.data(), t.v.data(), t.outputs[0].data(), t.dout.data(),
                    t.outputs[1].data(), t.outputs[2].data(), t.outputs[3].data());
  times.backward = now() - start;
  return times;
}

struct Result {
  bool ok = false;
  Times times;
  double peak_mib = 0;
  std::vector<float> outputs;
};

// Runs one of the two in a child process, which returns times and outputs through a file.
Result measure(std::size_t len, bool libattn) {
  Result result;
  std::FILE* file = std::tmpfile();
  if (file == nullptr) return result;
  const pid_t child = fork();
  if (child == 0) {
    Tensors tensors(len);
    const Times times = libattn ? run_libattn(len, tensors) : run_textbook(len, tensors);
    bool written = std::fwrite(&times, sizeof times, 1, file) == 1;
    for (const auto& x : tensors.outputs) {
      written = written && std::fwrite(x.data(), sizeof(float), x.size(), file) == x.size();
    }
    _exit(written && std::fflush(file) == 0 ? 0 : 1);
  }
  int status = 1;
  rusage usage{};
  if (child > 0 && wait4(child, &status, 0, &usage) == child && status == 0) {
    result.outputs.resize(kOutputs * len * kHeads * kDim);
    std::rewind(file);
    result.ok = std::fread(&result.times, sizeof result.times, 1, file) == 1 &&
                std::fread(result.outputs.data(), sizeof(float), result.outputs.size(), file) ==
                    result.outputs.size();
    result.peak_mib = static_cast<double>(usage.ru_maxrss) / 1024.0;
  }
  std::fclose(file);
  return result;
}

double available_mib() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  double kib = 0;
  while (file >> word) {
    if (word == "MemAvailable:" && file >> kib) return kib / 1024.0;
  }
  return 0;
}

void print(const char* name, const Result& r) {
  std::printf("  %-28s %8.2f s %8.2f s %10.0f MiB\n", name, r.times.forward, r.times.backward,
              r.peak_mib);
}

// True if every output agrees within kAllowed times its largest value.
bool agree(const Result& a, const Result& b) {
  bool good = true;
  const std::size_t count = a.outputs.size() / kOutputs;
  std::printf("  largest difference, of the largest value:");
  for (std::size_t n = 0; n < kOutputs; ++n) {
    double difference = 0, largest = 0;
    for (std::size_t i = n * count; i < (n + 1) * count; ++i) {
      const double d = std::fabs(static_cast<double>(a.outputs[i]) - b.outputs[i]);
      if (std::isnan(d) || d > difference) difference = d;  // a NaN stays
      largest = std::max(largest, std::fabs(static_cast<double>(b.outputs[i])));
    }
    std::printf(" %s %.1e", kNames[n], difference / largest);
    good = good && difference <= kAllowed * largest;
  }
  std::printf("\n");
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t len = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 16384;
  if (len == 0 || len > 65536) {
    std::fprintf(stderr, "usage: attn_demo [LEN], 1 to 65536\n");
    return 2;
  }
  // The matrix of each head and the gradient of one of them, with a margin.
  const double available = available_mib();
  const auto matrices = [](std::size_t n) {
    return (kHeads + 1) * static_cast<double>(n) * static_cast<double>(n) * 4 / 1048576;
  };
  const std::size_t wanted = len;
  while (len > 512 && matrices(len) * 1.2 + 200 > available) len /= 2;
  if (len != wanted) {
    std::printf(
        "textbook attention on %zu tokens needs %.0f MiB, there are %.0f: %zu tokens instead\n",
        wanted, matrices(wanted), available, len);
  }
  std::printf("%zu tokens, %zu heads of dim %zu, f32, causal\n", len, kHeads, kDim);
  std::printf("  %-28s %10s %10s %14s\n", "", "forward", "backward", "peak memory");
  std::fflush(stdout);
  const Result ours = measure(len, true);
  if (ours.ok) print("libattn", ours);
  std::fflush(stdout);
  const Result theirs = measure(len, false);
  if (theirs.ok) print("textbook (stores the matrix)", theirs);
  if (!ours.ok || !theirs.ok) {
    std::fprintf(stderr, "attn_demo: the %s process failed\n", ours.ok ? "textbook" : "libattn");
    return 1;
  }
  const double total_ours = ours.times.forward + ours.times.backward;
  const double total_theirs = theirs.times.forward + theirs.times.backward;
  std::printf("  libattn: %.1f times as fast, %.0f times less memory\n", total_theirs / total_ours,
              theirs.peak_mib / ours.peak_mib);
  return agree(ours, theirs) ? 0 : 1;
}
