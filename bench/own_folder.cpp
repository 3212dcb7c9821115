// Finds the folder bench/; see own_folder.hpp.
#include "bench/own_folder.hpp"

#include <cstdlib>

#ifndef ATTN_BENCH_SOURCE_DIR
#define ATTN_BENCH_SOURCE_DIR "."
#endif

namespace attn::bench {

std::string own_folder() {
  const char* given = std::getenv("ATTN_BENCH_FOLDER");
  return given != nullptr ? given : ATTN_BENCH_SOURCE_DIR;
}

}  // namespace attn::bench
