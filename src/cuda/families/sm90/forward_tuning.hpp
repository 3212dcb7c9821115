// Tuning of sm90/forward.cu: tiles as text, which fit, and which are worth measuring.
#pragma once

#include <attn/problem.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cuda/families/sm90/forward_tiles.hpp"

namespace attn::cuda::sm90 {

// "sm90 forward dim=64 f8=0 ... keys=1024": what is compiled in, and the number of keys rounded up
// to a power of 2.
std::string tuning_key(const Problem& problem);
// "tile_q=128 tile_kv=64 stages=3 ...", and back; every field but dim has to be there.
std::string to_string(const Tiles& tiles);
std::optional<Tiles> parse_tiles(const std::string& text);

// Why the kernel can't take the tiles for a problem that it does not refuse; empty where it can.
std::string misfit(const Problem& problem, const Tiles& tiles, const DeviceFacts& facts);
// All that fit, with as many tiles of Q and columns of O in shared memory as have room.
std::vector<Tiles> candidate_tiles(const Problem& problem, const DeviceFacts& facts);

}  // namespace attn::cuda::sm90
