// Limits: how much one submission may do on a device, and into which parts a call is cut for that.
// Pure functions.
#pragma once

#include <cstdint>

#include "webgpu/host/device.hpp"

namespace attn::webgpu {

// Work of one submission, in floating-point operations. It stays under about 100 ms, so that a
// desktop goes on and no watchdog (about 2 s on Windows) resets the device. `fma_rate`: what
// Device::probe_rate measured, operations a second, 0 where it was not; else the rates count that
// the slowest of each kind reach.
double flops_of_submission(AdapterType type, double fma_rate);

// What a call is made of: workgroups for `batches` x `heads` x `tiles`, each with `visits` turns of
// its loop that can be left to dispatches that follow (1: none).
struct Extents {
  std::int64_t batches = 1;
  std::int64_t heads = 1;
  std::int64_t tiles = 1;
  std::int64_t visits = 1;

  bool operator==(const Extents&) const = default;
};

// Into how many parts to cut each of `whole`, which costs `flops`, so that no piece costs more than
// `most` (but for one of a single workgroup's turn). Workgroups are what fills a device, so their
// loops are cut first, then as few pieces are made as will do.
Extents parts_of(const Extents& whole, double flops, double most);

// Part n of `parts` begins here and ends where the next begins; none is longer than the first.
inline std::int64_t begin_of_part(std::int64_t n, std::int64_t whole, std::int64_t parts) {
  return (whole * n + parts - 1) / parts;
}

}  // namespace attn::webgpu
