// The append of decode (docs/semantics.md, "Decode").
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>

namespace attn::reference {

// Writes k_new (rotated where the problem has rope) and v_new after each entry's rows. Rows beyond
// the capacity len_kv or on a missing page are dropped.
void append_rows(const Problem& problem, const Arguments& arguments);

}  // namespace attn::reference
