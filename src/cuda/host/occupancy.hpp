// Occupancy: whether a compiled kernel reaches the occupancy that its plan expects, given
// registers, shared memory and threads. Needs no device.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/host/modules.hpp"
#include "cuda/host/ptxas_log.hpp"

namespace attn::cuda {

// How many blocks of the kernel fit on a multiprocessor; 0 if not even one fits.
int blocks_that_fit(const DeviceFacts& facts, const Resources& kernel, unsigned threads,
                    std::int64_t dynamic_shared_bytes);

// The same from shared memory and threads alone, which are known before compilation.
int blocks_without_registers(const DeviceFacts& facts, unsigned threads,
                             std::int64_t dynamic_shared_bytes);

// The blocks per multiprocessor that a plan expects: the constant `blocks` of the Config, else 1.
int wanted_blocks(const KernelSpec& spec);

// The defect of a compiled kernel: spill stores and loads are more than `most_spilled` bytes per
// thread, or fewer blocks fit than the plan expects. Empty if there is none.
std::string flaw_of(const ResourceReport& report, const KernelSpec& spec, const DeviceFacts& facts,
                    int most_spilled = 0);

}  // namespace attn::cuda
