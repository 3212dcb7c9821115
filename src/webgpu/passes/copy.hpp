// Copies of rows by copy.wgsl: to another layout or type, rotated, added, or into a cache.
#pragma once

#include <array>
#include <attn/problem.hpp>
#include <cstdint>

#include "core/status.hpp"
#include "webgpu/host/work.hpp"
#include "webgpu/passes/geometry.hpp"

namespace attn::webgpu {

// Rotary embedding of the copied rows. The position of row i of a sequence is i + offset plus the
// value that `from` selects; or positions[i], with or without the offset.
struct Rotation {
  enum class From : U32 { row = 0, diagonal = 1, cached = 2 };
  Rope style = Rope::none;
  std::int64_t rot_dim = 0;
  bool inverse = false;
  double base = 10000.0;
  View cosines{.rows = 0}, sines{.rows = 0};  // [positions, rot_dim / 2]; replace base
  View positions{.rows = 0};                  // i32, rows of one element
  bool from_positions = false;                // positions are added to the offset
  std::int64_t offset = 0;
  From from = From::row;
};

struct Copy {
  View from, to;
  bool accumulate = false;      // adds to the destination
  bool nonfinite_zero = false;  // writes 0 for non-finite elements
  View count{.rows = 0};        // their number is added to this
  Rotation rotation{};

  // Selects rows of each sequence by `info`. zero_past: rows past the length become 0.
  enum class Which : U32 { all = 0, queries = 1, keys = 2, new_keys = 3 };
  Which which = Which::all;
  bool zero_past = false;
  Operand info{};
  U32 sequences_at = 0;
  std::int64_t batch = 0;  // sequences; 0: as in the tensors
  std::int64_t rows = 0;   // of the longest sequence; 0: as in `from`

  // Which tensor is paged; its view is [pages, page_size, heads, dim].
  enum class Paged : U32 { none = 0, from = 1, to = 2 };
  Paged paged = Paged::none;
  std::int64_t page_size = 1;
  View block_table{.rows = 0};
};

// Adds the dispatches. Dimensions that `from` lacks become 0.
core::Status add_copy(Work& work, const DeviceFacts& facts, const Copy& copy);

}  // namespace attn::webgpu
