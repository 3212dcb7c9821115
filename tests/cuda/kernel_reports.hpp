// What the assembler says of the kernels that tests choose. Compiling them takes minutes, so what
// it said of unchanged kernels is read from tests/cuda/tested_kernels.record (resource_record.hpp).
// With ATTN_WRITE_RECORD=1 in the environment the others are added to that file:
//   ATTN_WRITE_RECORD=1 build/release/tests/cuda/attn_cuda_test --gtest_filter='*Compile*'
#pragma once

#include <vector>

#include "cuda/host/config.hpp"
#include "cuda/host/nvrtc.hpp"
#include "cuda/host/ptxas_log.hpp"

namespace attn::cuda::test {

// Bytes that a thread spills, stores plus loads, where a test has no limit of its own.
inline constexpr int kMostSpilled = 540;

// A report for each of `configs`, compiled for a device of `capability`.
core::Status kernel_reports(const Nvrtc& nvrtc, const std::vector<Config>& configs, int capability,
                            std::vector<ResourceReport>& reports);

}  // namespace attn::cuda::test
