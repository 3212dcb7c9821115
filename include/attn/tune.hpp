// Tuning: chooses the tiles of a kernel by measurements on the device instead of by the built-in
// heuristics. The choices are stored in the user's cache folder (ATTN_CACHE_DIR, not
// ContextOptions::cache_dir), and every process on the device reads them. `attn tune` drives it.
// The CUDA backend has tiles to tune, and the CPU backend: its results then have other bits, the
// same for any number of threads.
#pragma once

#include <attn/export.h>

#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <string>
#include <vector>

namespace attn {

// All take the calling thread's current device, and throw Error (unsupported: no such choice, or no
// kernel for the problem; with reasons).

// The key of one choice, in words: problems with the same key share it.
ATTN_API std::string tune_key(Context& context, Pass pass, const Problem& problem,
                              Device device = Device::cuda);

struct TuneCandidate {
  std::string tiles{};  // "tile_q=128 tile_kv=64 ..."
  std::string flaw{};   // why measuring it is not worthwhile (it spills, ...); empty: it is
};
// Every choice that fits the device, compiled.
ATTN_API std::vector<TuneCandidate> tune_candidates(Context& context, Pass pass,
                                                    const Problem& problem,
                                                    Device device = Device::cuda);
// Uses these tiles in later plans of this process; "" = those of the heuristics. Not while other
// threads make calls. Throws invalid_argument if they do not fit.
ATTN_API void tune_use(Context& context, Pass pass, const Problem& problem,
                       const std::string& tiles, Device device = Device::cuda);
// Stores the tiles in use and returns the path of the file.
ATTN_API std::string tune_store(Context& context, Device device = Device::cuda);

}  // namespace attn
