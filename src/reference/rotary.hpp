// Rotary embedding of one row (docs/semantics.md, "Rotary embedding").
#pragma once

#include <attn/problem.hpp>
#include <attn/tensor.hpp>
#include <cstdint>

#include "reference/entry.hpp"

namespace attn::reference {

struct Rotation {
  Rope style = Rope::none;  // none: rotate() does nothing
  std::int64_t rot_dim = 0;
  double base = 10000.0;
  TensorView cos, sin;  // [positions, rot_dim / 2]; where given, instead of base
};
Rotation rotation_of(const Problem& problem, const Arguments& arguments);

// Rotates `row` by the angles of `position`, or by the negative ones.
void rotate(const Rotation& rotation, Wide position, bool inverse, double* row);

// Positions inside attention.
Wide query_position(const Problem& problem, const Arguments& arguments, const Entry& entry,
                    std::int64_t i);
Wide key_position(const Problem& problem, const Arguments& arguments, const Entry& entry,
                  std::int64_t j);
// The position of appended row t.
Wide new_key_position(const Problem& problem, const Arguments& arguments, const Entry& entry,
                      std::int64_t t);

}  // namespace attn::reference
