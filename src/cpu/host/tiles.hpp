// Tiles: the sizes of a CPU plan that `attn tune` may choose. Tiles measured on this machine
// (my_tuned_tiles()) replace the defaults of plan.cpp. They change the order of sums, and so the
// last bits of a result. The key leaves out the number of threads, so that the bits don't depend on
// it.
#pragma once

#include <attn/problem.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cpu/host/config.hpp"
#include "tuned/tuned_file.hpp"

namespace attn::cpu {

// The same fields as in Config. block_kv is 0 except in the backward.
struct Tiles {
  std::int64_t tile_rows = 0;
  std::int64_t strip_rows = 0;
  std::int64_t tile_kv = 0;
  std::int64_t block_kv = 0;
  bool operator==(const Tiles&) const = default;
};

// Conversion to and from "tile_rows=192 strip_rows=48 tile_kv=64 block_kv=0". All fields are
// required.
std::string to_string(const Tiles& tiles);
std::optional<Tiles> parse_tiles(const std::string& text);

// Problems with the same key share tiles. Lengths are rounded up to powers of 2:
// "forward engine=f32 dtype=bf16 dim_qk=64 ... rows=4096 keys=4096 window=256 ..."
std::string tune_key(Pass pass, const Problem& problem, Engine engine);

// Why a plan can't use these tiles; empty if it can.
std::string misfit(Pass pass, Engine engine, const Tiles& tiles);

// All tiles that are worth measuring. A pure function.
std::vector<Tiles> candidate_tiles(Pass pass, const Problem& problem, Engine engine);

// The measured tiles for this processor and instruction set.
tuned::TunedFile& my_tuned_tiles();

}  // namespace attn::cpu
