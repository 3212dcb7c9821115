// Reads the machine's description; see machine.hpp.
#include "bench/machine.hpp"

#include <array>
#include <attn/attn.hpp>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string_view>

#include "bench/own_folder.hpp"
#include "platform/platform.hpp"

namespace attn::bench {
namespace {

std::string trim(std::string text) {
  const std::size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

std::string as_folder(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      out += static_cast<char>(std::tolower(byte));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out;
}

// The release of NVIDIA's kernel module, "" if unknown:
// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 ..."
std::string kernel_module() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0 &&
        word.find('.') != std::string::npos) {
      return word;
    }
  }
  return "";
}

void name_gpu(const std::string& name, Machine& machine) {
  constexpr std::string_view kMaker = "nvidia-";
  machine.device = name;
  machine.folder = as_folder(name);
  if (machine.folder.starts_with(kMaker)) machine.folder.erase(0, kMaker.size());
}

void describe(const harness::DeviceQueue& device, Machine& machine) {
  name_gpu(device.device_name(), machine);
  const std::string release = kernel_module();
  machine.driver = release + (release.empty() ? "CUDA " : ", CUDA ") + device.driver_version();
}

void describe(const harness::WebgpuQueue& device, Machine& machine) {
  name_gpu(device.device_name(), machine);
  machine.driver = device.driver();
}

void describe_host(Machine& machine) {
  machine.device = platform::processor_name();
  machine.folder =
      as_folder(machine.device) + "-" + std::to_string(platform::online_processors()) + "cpu";
  machine.driver = platform::system_name();
}

// ATTN_BENCH_COMMIT overrides the commit, because a binary that was copied to another machine finds
// no repository. A wheel has no sources either; its version replaces the commit.
std::string commit() {
  if (const char* given = std::getenv("ATTN_BENCH_COMMIT"); given != nullptr) return given;
  const std::string found = trim(
      platform::output_of("git -C '" + own_folder() +
                          "' describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null"));
  return found.empty() ? std::string("v") + attn::version() : found;
}

}  // namespace

Machine this_machine(const Opened& opened) {
  Machine machine;
  if (opened.cuda) {
    describe(*opened.cuda, machine);
  } else if (opened.webgpu) {
    describe(*opened.webgpu, machine);
  } else {
    describe_host(machine);
  }
  machine.commit = commit();
  const std::time_t now = std::time(nullptr);
  const std::tm utc = *std::gmtime(&now);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  machine.date = text.data();
  return machine;
}

}  // namespace attn::bench
