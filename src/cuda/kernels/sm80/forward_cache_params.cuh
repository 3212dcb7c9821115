// Parameters of sm80/forward_cache.cu, for the host and the kernel.
#pragma once
#include "shared/cache.cuh"

namespace attn::device {

struct ForwardCacheParams {
  Arguments common;
  Cache cache;
  Descale descale_k, descale_v;
  int descale_rows = 0;  // 1: one factor per row or page; 0: per sequence
};

}  // namespace attn::device
