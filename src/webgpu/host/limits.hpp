// Limits: how much work one submission may hold, and into how many chunks a call is cut.
// Pure functions.
#pragma once

#include <cstdint>

#include "webgpu/host/device.hpp"

namespace attn::webgpu {

// Work of one submission, in floating-point operations. It stays under about 100 ms, so that a
// desktop stays responsive and no watchdog (about 2 s on Windows) resets the device. `fma_rate`:
// operations per second that Device::probe_rate measured; 0: the rate of the slowest of each kind.
double flops_of_submission(AdapterType type, double fma_rate);

// The work of a call: workgroups for `batches` x `heads` x `tiles`, each with `visits` iterations
// of a loop that may continue in a later dispatch (1: it may not).
struct Extents {
  std::int64_t batches = 1;
  std::int64_t heads = 1;
  std::int64_t tiles = 1;
  std::int64_t visits = 1;

  bool operator==(const Extents&) const = default;
};

// Into how many chunks to cut each of `whole`, which costs `flops`, so that no chunk costs more
// than `most` (but for one of a single workgroup's turn). Workgroups are what fills a device, so
// their loops are cut first, then as few chunks are made as will do.
Extents num_chunks(const Extents& whole, double flops, double most);

// Where chunk n of `chunks` begins; it ends where the next begins. None is longer than the first.
inline std::int64_t begin_of_chunk(std::int64_t n, std::int64_t whole, std::int64_t chunks) {
  return (whole * n + chunks - 1) / chunks;
}

}  // namespace attn::webgpu
