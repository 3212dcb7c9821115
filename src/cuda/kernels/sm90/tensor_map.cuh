// CUtensorMap, declared again, because no header that NVRTC can include declares it.
#pragma once

namespace attn::device::sm90 {

struct alignas(64) TensorMap {
  unsigned long long words[16];
};

}  // namespace attn::device::sm90
