// Compute capabilities; see architectures.hpp.
#include "cuda/host/architectures.hpp"

#include <array>

namespace attn::cuda {
namespace {

constexpr std::int64_t kKiB = 1024;

DeviceFacts facts(const char* name, int capability, int num_sms, int threads, int shared_kib,
                  int l2_mib, int memory_gib) {
  DeviceFacts made;
  made.name = name;
  made.major = capability / 10;
  made.minor = capability % 10;
  made.num_sms = num_sms;
  made.registers_per_sm = 65536;
  made.threads_per_sm = threads;
  made.shared_per_sm = shared_kib * kKiB;
  made.shared_per_block = (shared_kib - 1) * kKiB;
  made.l2_bytes = l2_mib * kKiB * kKiB;
  made.memory_bytes = memory_gib * kKiB * kKiB * kKiB;
  return made;
}

const std::array<DeviceFacts, 9>& table() {
  static const std::array<DeviceFacts, 9> kTable{
      facts("NVIDIA A100", 80, 108, 2048, 164, 40, 80),
      facts("NVIDIA GeForce RTX 3090", 86, 82, 1536, 100, 6, 24),
      facts("NVIDIA Jetson AGX Orin", 87, 16, 1536, 164, 4, 64),
      facts("NVIDIA GeForce RTX 4090", 89, 128, 1536, 100, 72, 24),
      facts("NVIDIA H200", 90, 132, 2048, 228, 50, 140),
      facts("NVIDIA B200", 100, 148, 2048, 228, 126, 180),
      facts("NVIDIA B300", 103, 148, 2048, 228, 126, 268),
      facts("NVIDIA GeForce RTX 5090", 120, 170, 1536, 100, 96, 32),
      facts("NVIDIA GB10", 121, 48, 1536, 100, 24, 119)};
  return kTable;
}

}  // namespace

const DeviceFacts* typical_facts(int capability) {
  for (const DeviceFacts& one : table()) {
    if (one.capability() == capability) return &one;
  }
  return nullptr;
}

std::string known_capabilities() {
  std::string text;
  for (const DeviceFacts& one : table()) {
    text.append(text.empty() ? "" : ", ").append(std::to_string(one.capability()));
  }
  return text;
}

}  // namespace attn::cuda
