// The tensors that `attn run` reads: for each one the member of Arguments, the accepted names and
// the conversion.
#pragma once

#include <attn/arguments.hpp>
#include <span>
#include <string>
#include <vector>

namespace attn::cli {

enum class Kind {
  rows,        // [b, n, h, d] or packed; transposed by --layout, converted by --dtype
  out_rows,    // the same, with the type of o
  statistics,  // floats, converted to the problem's statistics type
  values,      // floats in their own type (bias), converted by --dtype
  bytes,       // u8
  indices,     // i32
};

enum class When { always, decode, backward, saved_forward, accumulate };

struct Slot {
  TensorView Arguments::* member;
  Kind kind;
  When when;
  std::vector<std::string> names;  // the slot's own name first, then other accepted names
  const char* help;
  bool listed = false;  // short vectors that may be listed in the flag: 1,2,3
};

std::span<const Slot> slots();

// The outputs of forward, decode and backward, by name.
struct OutputSlot {
  const char* name;
  TensorView Arguments::* member;
  bool rows;
};
std::span<const OutputSlot> output_slots();

}  // namespace attn::cli
