// Where the folder bench/ lies on this machine, with the programs that run peers.
#pragma once

#include <string>

namespace attn::bench {

// ATTN_BENCH_FOLDER, else the folder in the sources that this program was built from; ".", if it
// was built to run without them.
std::string own_folder();

}  // namespace attn::bench
