// Which pairs dropout keeps (docs/semantics.md, "Dropout"). Philox4x32-10 is written down here
// after Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3", section 4.3.
#pragma once

#include <array>
#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>

#include "reference/entry.hpp"

namespace attn::reference {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                    std::array<std::uint32_t, 2> key);

// t of the definition: the chance to keep is t / 256.
int keep_threshold(double dropout_p);

// The factor of pair (i, j): 256 / t or 0; 1 in a problem without dropout.
double drop_factor(const Problem& problem, const Arguments& arguments, const Entry& entry,
                   std::int64_t head_q, std::int64_t i, std::int64_t j);

}  // namespace attn::reference
