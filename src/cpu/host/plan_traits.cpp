#include "cpu/host/plan_traits.hpp"

#include <cstdlib>
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
  static const bool faster = [] {
    const char* wanted = std::getenv("ATTN_CPU_DECODE_ORDER");
    if (wanted != nullptr && std::strcmp(wanted, "memory") == 0) return true;
    if (wanted != nullptr && std::strcmp(wanted, "heads") == 0) return false;
    return is_amd() && std::strcmp(target_name(), "AVX2") == 0;
  }();
  return faster;
}

}  // namespace attn::cpu
