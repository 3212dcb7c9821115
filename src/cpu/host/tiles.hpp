// Tiles: the sizes of a CPU plan that `attn tune` may choose. What it found on this machine takes
// precedence over the rules of plan.cpp (my_tuned_tiles()); results then have other bits, as sums
// are cut elsewhere. The key has no number of threads, so that bits don't depend on it.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu/host/config.hpp"
#include "tuned/tuned_file.hpp"

namespace attn::cpu {

// As the fields of Config with these names. block_kv is 0 but in the backward.
struct Tiles {
  std::int64_t tile_rows = 0;
  std::int64_t strip_rows = 0;
  std::int64_t tile_kv = 0;
  std::int64_t block_kv = 0;
  bool operator==(const Tiles&) const = default;
};

// "tile_rows=192 strip_rows=48 tile_kv=64 block_kv=0", and back; every field has to be there.
std::string to_string(const Tiles& tiles);
std::optional<Tiles> parse_tiles(const std::string& text);

// What shares tiles, with lengths rounded up to powers of 2:
// "forward engine=f32 dtype=bf16 dim_qk=64 ... rows=4096 keys=4096 window=256 ..."
std::string tune_key(Pass pass, const Problem& problem, Engine engine);

// Why a plan can't have these tiles; empty: it can.
std::string misfit(Pass pass, Engine engine, const Tiles& tiles);

// All tiles worth measuring. A pure function.
std::vector<Tiles> candidate_tiles(Pass pass, const Problem& problem, Engine engine);

// The process's tiles for this processor and instruction set.
tuned::TunedFile& my_tuned_tiles();

}  // namespace attn::cpu
