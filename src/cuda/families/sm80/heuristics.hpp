// Heuristics: the measured choice of tiles, and a model of a block's resources that decides whether
// tiles fit. Pure functions of shape and device facts.
#pragma once

#include <attn/problem.hpp>
#include <optional>
#include <string>

#include "cuda/host/device.hpp"
#include "cuda/kernels/sm80/backward_shared.cuh"

namespace attn::cuda::sm80 {

// The part of a problem that the choice of tiles depends on.
struct Shape {
  Pass pass = Pass::forward;  // decode counts as a forward
  int dim_qk = 64;            // rounded up to a dim that kernels are compiled for
  int dim_vo = 64;
  int bias_bytes = 0;  // per element; 0: no bias
  bool mask = false;
  bool softcap = false;
  bool alibi = false;
  bool dropout = false;
  bool banded = false;    // causal or with a window
  int element_bytes = 2;  // of q, k and v; f32 has other kernels and tiles
  int products = 1;       // tensor core products for one product: 1, 3 (tf32x3) or 0 (ieee)
};
Shape shape_of(Pass pass, const Problem& problem);
// 64, 96, 128, 192, 256 or 512. If is_narrow(), shape_of() uses 32 instead.
int rounded_dim(std::int64_t dim);
// Above 256, a forward is one launch for each 256 columns of v and o, because registers hold no
// more columns of o. Each launch computes all scores. A backward uses tiles of fewer keys instead,
// so that dk and dv fit the registers.
inline constexpr int kMaxValueDim = 256;
bool is_wide(const Problem& problem);
// Whether both dims are at most 32 and there is a bias without other score options, as in models
// with a pair bias. Other combinations would need too many kernels.
bool is_narrow(const Problem& problem);

// Tiles of the forward, or of the backward's main kernel.
struct Tiles {
  int tile_q = 0;
  int tile_kv = 0;
  int warps = 0;
  int stages = 0;               // of the pipeline that loads tiles
  int blocks = 0;               // per SM
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

// Tiles of sm80/bias_gradient.cu. The smallest fit every device.
struct BiasGradientTiles {
  int tile_q = 0;
  int tile_kv = 0;
  int warps = 0;
  int stages = 0;
  int blocks = 0;
};
BiasGradientTiles choose_bias_gradient_tiles(const Shape& shape, const DeviceFacts& facts);
int shared_bytes_of(const Shape& shape, const BiasGradientTiles& tiles);
// Why the tiles can't be used on the device; "" if they can.
std::string misfit(const Shape& shape, const Tiles& tiles, const DeviceFacts& facts);
// The tiles of the first rule that applies and fits; nullopt if the device is too small for all.
std::optional<Tiles> choose_tiles(const Shape& shape, const DeviceFacts& facts);

}  // namespace attn::cuda::sm80
