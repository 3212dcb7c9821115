// Tiling: the tile sizes of a kernel on a device. Chooses the fastest of a few that fit its
// workgroup memory. Pure functions.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

#include "webgpu/host/device.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu {

// The constants of forward.wgsl with these names.
struct Tiling {
  std::uint32_t rows = 8;     // threads along queries; a thread owns 8 queries
  std::uint32_t columns = 8;  // threads along keys and dimensions
  std::uint32_t keys = 2;     // groups of 4 keys per thread
  std::uint32_t slice = 32;   // dimensions of Q and K in workgroup memory at once
  std::uint32_t depth = 32;   // keys of V in workgroup memory at once
  bool keep_q = false;        // all of Q stays in workgroup memory

  [[nodiscard]] std::uint32_t tile_q() const { return rows * 8; }
  [[nodiscard]] std::uint32_t tile_kv() const { return columns * 4 * keys; }
};

// Bytes of var<workgroup> of forward.wgsl.
std::uint64_t forward_bytes(const Tiling& tiling, const Problem& problem);
Tiling forward_tiling(const Problem& problem, const DeviceFacts& facts);
void add_tiling_constants(const Tiling& tiling, const Problem& problem, KernelSpec& spec);

// The constants of backward_q.wgsl and backward_q_bias.wgsl, backward_kv.wgsl and
// bias_gradient.wgsl.
enum class BackwardKernel { q, kv, bias };
struct BackwardTiling {
  std::uint32_t r = 8;  // rows per thread
  std::uint32_t rows = 8;
  std::uint32_t columns = 8;
  std::uint32_t slice = 32;
  std::uint32_t depth = 16;

  [[nodiscard]] std::uint32_t tile_q() const { return r * rows; }
  [[nodiscard]] std::uint32_t tile_kv() const { return columns * 4; }
};
std::uint64_t backward_bytes(BackwardKernel kernel, const BackwardTiling& tiling,
                             const Problem& problem);
BackwardTiling backward_tiling(BackwardKernel kernel, const Problem& problem,
                               const DeviceFacts& facts);
void add_tiling_constants(BackwardKernel kernel, const BackwardTiling& tiling,
                          const Problem& problem, KernelSpec& spec);

// The constants of decode.wgsl.
struct DecodeTiling {
  std::uint32_t threads = 128;
  std::uint32_t rows = 4;    // per workgroup: 1, 2, 4 or 8
  std::uint32_t unroll = 4;  // keys in flight per group of lanes
  std::uint32_t lanes = 8;   // threads that share a key
  bool subgroups = false;    // decode_subgroups.wgsl

  [[nodiscard]] std::uint32_t tile() const;  // keys
};
std::uint64_t decode_bytes(const DecodeTiling& tiling, bool dropout);
DecodeTiling decode_tiling(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::webgpu
