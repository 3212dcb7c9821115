// Blocks on a multiprocessor; see occupancy.hpp. Rules: CUDA C++ Programming Guide, "Technical
// Specifications per Compute Capability"; allocation granularity as in NVIDIA's occupancy
// calculator.
#include "cuda/host/occupancy.hpp"

#include <algorithm>

#include "core/divide_up.hpp"

namespace attn::cuda {
namespace {

constexpr std::int64_t kWarp = 32;
constexpr std::int64_t kRegisterPiece = 256;    // granularity per warp
constexpr std::int64_t kSharedOfSystem = 1024;  // bytes per block that the driver reserves

}  // namespace

int blocks_that_fit(const DeviceFacts& facts, const Resources& kernel, unsigned threads,
                    std::int64_t dynamic_shared_bytes) {
  const std::int64_t shared = kernel.shared_bytes + dynamic_shared_bytes;
  if (threads == 0 || shared > facts.shared_per_block) return 0;
  const std::int64_t warps = core::divide_up(threads, kWarp);
  const std::int64_t registers =
      std::max<std::int64_t>(1, core::divide_up(kernel.registers * kWarp, kRegisterPiece)) *
      kRegisterPiece * warps;
  return static_cast<int>(std::min({facts.registers_per_sm / registers,
                                    facts.shared_per_sm / (shared + kSharedOfSystem),
                                    facts.threads_per_sm / (warps * kWarp)}));
}

int blocks_without_registers(const DeviceFacts& facts, unsigned threads,
                             std::int64_t dynamic_shared_bytes) {
  return blocks_that_fit(facts, {}, threads, dynamic_shared_bytes);
}

int wanted_blocks(const KernelSpec& spec) {
  return static_cast<int>(spec.config.get("blocks").value_or(1));
}

std::string flaw_of(const ResourceReport& report, const KernelSpec& spec, const DeviceFacts& facts,
                    int most_spilled) {
  const auto found = std::find_if(report.kernels.begin(), report.kernels.end(),
                                  [&](const Resources& one) { return one.entry == spec.entry; });
  if (found == report.kernels.end()) return std::string("no entry point ") + spec.entry;
  const Resources& kernel = *found;
  if (kernel.spill_stores + kernel.spill_loads > most_spilled) {
    return kernel.entry + " spills " + std::to_string(kernel.spill_stores) + " bytes and loads " +
           std::to_string(kernel.spill_loads) + " with " + std::to_string(kernel.registers) +
           " registers";
  }
  const int fit = blocks_that_fit(facts, kernel, spec.threads, spec.shared_bytes);
  if (fit >= wanted_blocks(spec)) return {};
  return kernel.entry + ": " + std::to_string(wanted_blocks(spec)) +
         " blocks are wanted on a multiprocessor, " + std::to_string(fit) +
         " fit: " + std::to_string(spec.threads) + " threads of " +
         std::to_string(kernel.registers) + " registers, " + std::to_string(kernel.shared_bytes) +
         " + " + std::to_string(spec.shared_bytes) + " bytes of shared memory; " + facts.name +
         " has " + std::to_string(facts.registers_per_sm) + " registers, " +
         std::to_string(facts.threads_per_sm) + " threads and " +
         std::to_string(facts.shared_per_sm) + " bytes, " + std::to_string(facts.shared_per_block) +
         " of a block";
}

}  // namespace attn::cuda
