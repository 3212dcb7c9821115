#include "cpu/host/plan_traits.hpp"

#include <cstring>

#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/tile_ops/bf16_engine.hpp"

#ifdef __linux__
#include <unistd.h>
#endif

namespace attn::cpu {

bool has_few_processors() {
#ifdef __linux__
  constexpr long kFewProcessors = 4;
  static const long processors = sysconf(_SC_NPROCESSORS_CONF);
  return processors <= kFewProcessors;
#else
  return false;
#endif
}

bool reads_faster_in_order() {
  static const bool faster = is_amd() && std::strcmp(target_name(), "AVX2") == 0;
  return faster;
}

}  // namespace attn::cpu
