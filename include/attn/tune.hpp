// Tuning: the tiles of a kernel, chosen by measuring on the device at hand instead of by the table
// that is built in. What was found is kept in the user's cache folder (ATTN_CACHE_DIR, not
// ContextOptions::cache_dir) and read by every process that uses the device. `attn tune` does all
// of it. Only the CUDA backend has such a choice.
#pragma once

#include <attn/export.h>

#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <string>
#include <vector>

namespace attn {

// All take the calling thread's current device, and throw Error (unsupported: no such choice, or no
// kernel for the problem; with reasons).

// What one choice is made for, in words: problems with the same key share it.
ATTN_API std::string tune_key(Context& context, Pass pass, const Problem& problem,
                              Device device = Device::cuda);

struct TuneCandidate {
  std::string tiles{};  // "tile_q=128 tile_kv=64 ..."
  std::string flaw{};   // why it is not worth measuring (it spills, ...); empty: it is
};
// Every choice that could hold on the device, compiled.
ATTN_API std::vector<TuneCandidate> tune_candidates(Context& context, Pass pass,
                                                    const Problem& problem,
                                                    Device device = Device::cuda);
// Takes these tiles for plans made from now on in this process; "" = the table's. Not while other
// threads make calls. invalid_argument where they can't hold.
ATTN_API void tune_use(Context& context, Pass pass, const Problem& problem,
                       const std::string& tiles, Device device = Device::cuda);
// Keeps what is in use; the path of the file.
ATTN_API std::string tune_store(Context& context, Device device = Device::cuda);

}  // namespace attn
