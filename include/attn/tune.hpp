// Tuning: chooses the tiles of a kernel by measurements on the device instead of by the built-in
// heuristics. The choices are stored in the user's cache folder (ATTN_CACHE_DIR, not
// ContextOptions::cache_dir), and every process on the device reads them. `attn tune` drives it.
// The CUDA and CPU backends have tiles to tune. On the CPU, other tiles round results differently;
// results still do not depend on the number of threads.
#pragma once

#include <attn/export.h>

#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <string>
#include <vector>

namespace attn {

// All functions use the current device of the calling thread. They throw Error (unsupported) with
// the reason if the backend has no tiles to tune or no kernel for the problem.

// The key under which tiles are stored, as text. Problems with the same key share their tiles.
ATTN_API std::string tune_key(Context& context, Pass pass, const Problem& problem,
                              Device device = Device::cuda);

struct TuneCandidate {
  std::string tiles{};  // "tile_q=128 tile_kv=64 ..."
  std::string flaw{};   // why not to measure it (register spills, ...); empty = none
};
// All tiles that fit the device. Compiles their kernels.
ATTN_API std::vector<TuneCandidate> tune_candidates(Context& context, Pass pass,
                                                    const Problem& problem,
                                                    Device device = Device::cuda);
// Uses these tiles in later plans of this process; "" restores the choice of the heuristics. No
// other thread may make calls meanwhile. Throws invalid_argument if the tiles do not fit.
ATTN_API void tune_use(Context& context, Pass pass, const Problem& problem,
                       const std::string& tiles, Device device = Device::cuda);
// Stores the tiles in use and returns the path of the file.
ATTN_API std::string tune_store(Context& context, Device device = Device::cuda);

}  // namespace attn
