// AttentionPlan: what all calls of a pass and problem on a device have in common: kernels and their
// constants, splits of decode, and the layout of `info`. Pure functions.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>

#include "webgpu/host/device.hpp"
#include "webgpu/host/work.hpp"

namespace attn::webgpu {

// Tile sizes of a kernel, and where `info` holds the key ranges of its tiles (prepare.wgsl).
struct Tiles {
  std::uint32_t q = 0;
  std::uint32_t kv = 0;  // 0: the kernel needs no ranges of query tiles per tile of keys
  U32 tiles_at = 0;
  U32 keys_at = 0;

  [[nodiscard]] U32 count_q(const Problem& p) const { return count(p.len_q, q); }
  [[nodiscard]] U32 count_kv(const Problem& p) const { return kv == 0 ? 0 : count(p.len_kv, kv); }

 private:
  static U32 count(std::int64_t len, std::uint32_t tile) {
    return static_cast<U32>((len + tile - 1) / tile);
  }
};

// A kernel with its constants, before anything is bound. `runs` is false for kernels that the
// problem does not need.
struct PlannedKernel {
  bool runs = false;
  KernelSpec spec{};
  Tiles tiles{};
  std::uint32_t tile_kv = 0;  // keys of a tile, for summaries
};

// Decode splits the keys into `count` splits of `keys` keys; the last may be shorter.
struct Splits {
  std::int64_t keys = 0;
  std::int64_t count = 1;
};

struct AttentionPlan {
  enum class Path : std::uint8_t { forward, decode, backward };
  Path path = Path::forward;
  DeviceFacts facts{};  // its limits decide how a call is cut into chunks

  PlannedKernel forward;  // Path::forward
  PlannedKernel decode;   // Path::decode
  Splits splits;
  PlannedKernel delta;  // Path::backward: this and the kernels below
  PlannedKernel dq;
  PlannedKernel dkv;
  PlannedKernel dbias;
  bool dq_writes_dbias = false;  // the kernel of dq computes dbias, too

  // Parameters that are the same for all calls. The others are numbers of a call and positions of
  // its tensors.
  AttentionParameters common{};
  PrepareParameters prepare{};
  std::uint64_t info_bytes = 0;

  // The kernel that a summary describes.
  [[nodiscard]] const PlannedKernel& main() const {
    for (const PlannedKernel* kernel : {&forward, &decode, &dkv, &dq, &dbias}) {
      if (kernel->runs) return *kernel;
    }
    return delta;
  }
};

AttentionPlan plan_attention(Pass pass, const Problem& problem, const DeviceFacts& facts);

// forward.cpp, decode.cpp, backward.cpp: the kernels of each path.

// Whether decode.wgsl is used: few rows per key head, a paged cache, or splits set by the caller.
bool takes_decode(const Problem& problem);
void plan_forward(Pass pass, const Problem& problem, AttentionPlan& plan);
void plan_decode(Pass pass, const Problem& problem, AttentionPlan& plan);
void plan_backward(const Problem& problem, AttentionPlan& plan);

// A kernel without constants. The default entry point has the name of the source.
KernelSpec kernel_spec(const char* source, const char* entry = nullptr);
// Adds the constants of kernels that read q, k and v: types and dropout.
void add_input_constants(Pass pass, const Problem& problem, KernelSpec& spec);
// OPTIONS of kernels with score modifiers: 0: none, 1: softcap or ALiBi only, 2: any.
std::uint32_t score_options(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::webgpu
