// Limits: how much work one submission may have, and into how many chunks a call is divided. Pure
// functions.
#pragma once

#include <cstdint>

#include "webgpu/host/device.hpp"

namespace attn::webgpu {

// Work of one submission, in floating-point operations. It takes less than about 100 ms, so that a
// desktop stays responsive and no watchdog (about 2 s on Windows) resets the device. `fma_rate`:
// operations per second from Device::measure_rate(). 0: assumes a slow device of the type.
double flops_of_submission(AdapterType type, double fma_rate);

// The work of a call: `batches` x `heads` x `tiles` workgroups, each with `visits` iterations of a
// loop that a later dispatch can continue (1: it can't).
struct Extents {
  std::int64_t batches = 1;
  std::int64_t heads = 1;
  std::int64_t tiles = 1;
  std::int64_t visits = 1;

  bool operator==(const Extents&) const = default;
};

// The number of chunks in each extent of `whole`, which costs `flops`, so that no chunk costs more
// than `most` (except for a single workgroup with its smallest loop). Loops are divided first,
// because the number of workgroups keeps a device busy. Then it uses as few chunks as possible.
Extents num_chunks(const Extents& whole, double flops, double most);

// Start of chunk n of `chunks`; it ends where the next one starts. No chunk is longer than the
// first.
inline std::int64_t begin_of_chunk(std::int64_t n, std::int64_t whole, std::int64_t chunks) {
  return (whole * n + chunks - 1) / chunks;
}

}  // namespace attn::webgpu
