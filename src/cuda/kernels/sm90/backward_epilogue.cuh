// Epilogue of a tile of keys in sm90/backward.cu and sm90/backward_head.cu: writes dK and dV of a
// consumer warpgroup's keys from registers.
#pragma once
#include "sm90/backward_gradient.cuh"
#include "sm90/backward_scores.cuh"

namespace sm90 {

struct BackwardEpilogue {
  const KeyWarpgroup& c;

  __device__ __forceinline__ void Run() const {
    const Arguments& a = c.p.common;
    if (a.dv.base != nullptr) Write(a.dv, c.dv, DvFactor(a), a.dim_vo);
    if (a.dk.base != nullptr) Write(a.dk, c.dk, a.scale, a.dim_qk);
  }

 private:
  // The factor still missing in dV: dropout's factor, divided by the scale of P.
  __device__ __forceinline__ static float DvFactor(const Arguments& a) {
    return kDropout ? a.keep_scale / kPScale : 1 / kPScale;
  }

  __device__ __forceinline__ void Write(const shared::StridedTensor& tensor,
                                        const KeyGradient& sums, float factor, int dim) const {
    const Sequence& seq = c.keys.seq;
    const GradientRows rows{c.p.common,   tensor,      seq.idx, c.keys.head_kv,
                            seq.first_kv, seq.rows_kv, factor,  dim};
    rows.Write(c.keys.j0 + 64 * c.warpgroup + 16 * c.warp + c.lane / 4, sums);
  }
};

}  // namespace sm90
