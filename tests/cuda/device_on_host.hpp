// What device code that is no kernel needs to be compiled for the host, one thread at a time: the
// words of the language and the functions that it takes from the compiler.
#pragma once

#include <algorithm>

#define __device__
#define __forceinline__ inline

namespace shared {

using std::max;
using std::min;

struct ThreadIndex {
  unsigned x = 0;
};
inline constexpr ThreadIndex threadIdx;              // NOLINT: the language's name
inline void __syncthreads() {}                       // NOLINT
inline int __reduce_min_sync(unsigned, int value) {  // NOLINT
  return value;
}
inline int __reduce_max_sync(unsigned, int value) {  // NOLINT
  return value;
}

}  // namespace shared
