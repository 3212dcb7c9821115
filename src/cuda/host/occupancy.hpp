// Occupancy: whether as many blocks of a compiled kernel fit on a multiprocessor as its plan wants,
// by registers, shared memory and threads. Needs no device.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/host/modules.hpp"
#include "cuda/host/ptxas_log.hpp"

namespace attn::cuda {

// How many blocks of the kernel a multiprocessor holds; 0 where not even one fits.
int blocks_that_fit(const DeviceFacts& facts, const Resources& kernel, unsigned threads,
                    std::int64_t dynamic_shared_bytes);

// The same by shared memory and threads alone: known before anything is compiled.
int blocks_without_registers(const DeviceFacts& facts, unsigned threads,
                             std::int64_t dynamic_shared_bytes);

// The blocks that a plan wants on a multiprocessor: the constant `blocks` of the Config, else 1.
int wanted_blocks(const KernelSpec& spec);

// What is wrong with a kernel of the plan as it was compiled: it spills and loads more than
// `most_spilled` bytes of a thread, or the blocks do not fit. Empty: nothing.
std::string flaw_of(const ResourceReport& report, const KernelSpec& spec, const DeviceFacts& facts,
                    int most_spilled = 0);

}  // namespace attn::cuda
