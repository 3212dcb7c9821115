// Heuristics: the measured choice of tiles, and the model of what a block needs, which says where a
// rule can hold. Pure functions of shape and device facts.
#pragma once

#include <attn/problem.hpp>
#include <optional>
#include <string>

#include "cuda/host/device.hpp"
#include "cuda/kernels/sm80/backward_shared.cuh"

namespace attn::cuda::sm80 {

// What of a problem the choice depends on: what is compiled in, apart from the element type.
struct Shape {
  Pass pass = Pass::forward;  // decode without a cache's options is a forward
  int dim_qk = 64;            // rounded up to what kernels are compiled for
  int dim_vo = 64;
  int bias_bytes = 0;  // of an element; 0: no bias
  bool mask = false;
  bool softcap = false;
  bool alibi = false;
  bool dropout = false;
  bool banded = false;    // causal or with a window
  int element_bytes = 2;  // of q, k and v: f32 has kernels and tiles of its own
};
Shape shape_of(Pass pass, const Problem& problem);
// 64, 96, 128, 192, 256 or 512; where is_narrow(), shape_of() has 32.
int rounded_dim(std::int64_t dim);
// Above 256 a forward is a launch for each 256 columns of v and o: each computes all scores, and
// has registers for these columns. A backward has them for dk and dv of fewer keys.
inline constexpr int kMaxValueDim = 256;
bool is_wide(const Problem& problem);
// Whether both dims are at most 32 and there is a bias without other score options, as in models
// with a pair bias. Others would be many kernels.
bool is_narrow(const Problem& problem);

// Tiles of the forward, or of the backward's main kernel.
struct Tiles {
  int tile_q = 0;
  int tile_kv = 0;
  int warps = 0;
  int stages = 0;               // of the ring that tiles come through
  int blocks = 0;               // of an SM
  bool q_in_registers = false;  // forward
  // backward, see kernels/sm80/backward.cu
  int chunk = 0;
  bool p_ds_in_smem = false;
  bool split_dk_dv = false;
  bool split_s_dp = false;
  bool kv_in_registers = false;

  [[nodiscard]] device::BackwardSplit split() const {
    return {p_ds_in_smem, split_dk_dv, split_s_dp};
  }
  bool operator==(const Tiles&) const = default;
};

// Dynamic shared memory of a block.
int shared_bytes_of(const Shape& shape, const Tiles& tiles);

// Tiles of the kernel of the bias's gradient. Some of them fit every device.
struct BiasGradientTiles {
  int tile_q = 0;
  int tile_kv = 0;
  int warps = 0;
  int stages = 0;
  int blocks = 0;
};
BiasGradientTiles choose_bias_gradient_tiles(const Shape& shape, const DeviceFacts& facts);
int shared_bytes_of(const Shape& shape, const BiasGradientTiles& tiles);
// Why the tiles can't be taken on the device; "" where they can.
std::string misfit(const Shape& shape, const Tiles& tiles, const DeviceFacts& facts);
// The first rule that fits; none where the device is too small for all of them.
std::optional<Tiles> choose_tiles(const Shape& shape, const DeviceFacts& facts);

}  // namespace attn::cuda::sm80
