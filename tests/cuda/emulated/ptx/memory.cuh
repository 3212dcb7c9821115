// What headers name that emulated kernels include but don't use of them: shared memory by address.
#pragma once
#include <cstdlib>

#include "config.cuh"

namespace ptx {

inline void CopyAsync(unsigned, const void*, int) {
  std::abort();
}
inline unsigned LoadShared32(unsigned) {
  std::abort();
}
inline uint4 LoadShared128(unsigned) {
  std::abort();
}
inline void StoreShared16(unsigned, unsigned) {
  std::abort();
}
inline void StoreShared32(unsigned, unsigned) {
  std::abort();
}
inline void StoreShared64(unsigned, float, float) {
  std::abort();
}
inline void StoreShared128(unsigned, uint4) {
  std::abort();
}

}  // namespace ptx
