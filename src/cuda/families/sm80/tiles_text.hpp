// Shapes and tiles of sm80 as text: the keys and values of tuned tiles (families/tuned.hpp).
#pragma once

#include <optional>
#include <string>

#include "cuda/families/sm80/heuristics.hpp"

namespace attn::cuda::sm80 {

// "forward dim_qk=64 dim_vo=64 bias_bytes=0 mask=0 ..."
std::string to_string(const Shape& shape);
// "tile_q=128 tile_kv=64 warps=4 ...". Parsing requires every field.
std::string to_string(const Tiles& tiles);
std::optional<Tiles> parse_tiles(const std::string& text);

}  // namespace attn::cuda::sm80
