#include "cpu/host/plan_traits.hpp"

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

}  // namespace attn::cpu
