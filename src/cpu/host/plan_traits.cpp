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

namespace {

// The value of a choice between two rules: what the environment variable names, else `unset`.
bool chosen(const char* variable, const char* if_true, const char* if_false, bool unset) {
  const char* wanted = std::getenv(variable);
  if (wanted != nullptr && std::strcmp(wanted, if_true) == 0) return true;
  if (wanted != nullptr && std::strcmp(wanted, if_false) == 0) return false;
  return unset;
}

}  // namespace

bool reads_faster_in_order() {
  static const bool faster = chosen("ATTN_CPU_DECODE_ORDER", "memory", "heads",
                                    is_amd() && std::strcmp(target_name(), "AVX2") == 0);
  return faster;
}

bool has_long_blocks() {
  static const bool is_long = chosen("ATTN_CPU_KEY_BLOCKS", "long", "short", is_amd());
  return is_long;
}

}  // namespace attn::cpu
