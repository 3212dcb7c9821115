// The path of the folder bench/, which has the programs that run peers.
#pragma once

#include <string>

namespace attn::bench {

// ATTN_BENCH_FOLDER if it is set, else the folder in the sources of this program. "." in a build
// that runs without its sources.
std::string own_folder();

}  // namespace attn::bench
