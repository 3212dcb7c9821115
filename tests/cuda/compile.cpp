// attn_cuda_compile: compiles an embedded kernel for a Config, without a device, and prints what it
// takes: for kernel authors and CI. Exit status 1 where it fails, spills or draws a note.
//   attn_cuda_compile sm80/forward.cu dtype=3 dim_qk=64 ... [--arch 80,90,120] [-o FILE]
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <string>
#include <vector>

#include "cuda/host/binaries.hpp"
#include "cuda/host/ptxas_log.hpp"

namespace attn::cuda {
namespace {

int usage() {
  std::fprintf(stderr,
               "usage: attn_cuda_compile SOURCE [NAME=VALUE ...] [--arch 80,90,120] "
               "[-o FILE]\n");
  return 2;
}

std::vector<int> numbers(const std::string& text) {
  std::vector<int> list;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    list.push_back(std::atoi(text.substr(at, end - at).c_str()));
    at = end + 1;
  }
  return list;
}

// False where it fails, spills or draws a note.
bool compile(Binaries& binaries, const Config& config, int capability, const std::string& output) {
  const Binary* binary = nullptr;
  const core::Status status = binaries.get(config, capability, binary);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message.c_str());
    return false;
  }
  if (!output.empty()) std::ofstream(output, std::ios::binary) << binary->cubin;
  const ResourceReport report = read_resources(binary->log);
  bool good = true;
  for (const Resources& kernel : report.kernels) {
    std::printf(
        "%s %s: %d registers, %d bytes of shared memory, stack %d, spills %d + %d, %.2f s\n",
        binary->architecture.c_str(), kernel.entry.c_str(), kernel.registers, kernel.shared_bytes,
        kernel.stack_bytes, kernel.spill_stores, kernel.spill_loads, binary->seconds);
    good = good && kernel.spill_stores + kernel.spill_loads == 0;
  }
  for (const std::string& note : report.notes) std::printf("%s\n", note.c_str());
  return good && report.notes.empty();
}

int run(const std::vector<std::string>& words) {
  std::deque<std::string> names;  // Config keeps the pointers
  std::vector<int> capabilities{80, 90, 120};
  std::string output;
  if (words.empty()) return usage();
  Config config(words[0].c_str());
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::size_t equals = words[i].find('=');
    if (words[i] == "--arch" && i + 1 < words.size()) {
      capabilities = numbers(words[++i]);
    } else if (words[i] == "-o" && i + 1 < words.size()) {
      output = words[++i];
    } else if (equals != std::string::npos) {
      names.push_back(words[i].substr(0, equals));
      config.set(names.back().c_str(),
                 std::int64_t{std::strtoll(words[i].c_str() + equals + 1, nullptr, 0)});
    } else {
      return usage();
    }
  }
  std::string reason;
  const Nvrtc* nvrtc = Nvrtc::get(0, reason);
  Binaries binaries(Cache(""), 0, nvrtc, reason);
  bool good = true;
  for (const int capability : capabilities) {
    good = compile(binaries, config, capability, output) && good;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace attn::cuda

int main(int argc, char** argv) {
  return attn::cuda::run(std::vector<std::string>(argv + 1, argv + argc));
}
