// Tuning of sm90/forward.cu: tiles as text, whether they fit, and which are worth measuring.
#pragma once

#include <attn/problem.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cuda/families/sm90/forward_tiles.hpp"

namespace attn::cuda::sm90 {

// "sm90 forward dim=64 f8=0 ... keys=1024": the compile-time constants, and the number of keys
// rounded up to a power of 2.
std::string tuning_key(const Problem& problem);
// "tile_q=128 tile_kv=64 stages=3 ...". Parsing requires every field; the text has no dim.
std::string to_string(const Tiles& tiles);
std::optional<Tiles> parse_tiles(const std::string& text);

// Why the kernel can't use the tiles for a problem that it supports; empty if it can.
std::string misfit(const Problem& problem, const Tiles& tiles, const DeviceFacts& facts);
// All tiles that fit, with as many stages of Q and columns of O as shared memory allows.
std::vector<Tiles> candidate_tiles(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda::sm90
