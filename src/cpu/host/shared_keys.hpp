// Whether the tasks of a forward share keys. Documents and masks are known only when a call runs.
#pragma once

#include "cpu/host/call.hpp"
#include "cpu/host/config.hpp"

namespace attn::cpu {

// The number of row tiles that see a key, on average: an estimate from samples of the rows.
double row_tiles_of_key(const Call& call, const Config& config);

// For a plan with the step pack_keys: returns whether the step pays in this call. If it does not,
// tasks pack what they see, and config.tile_rows may shrink, so that tiles end where documents do.
// No choice changes a bit of the result.
bool pack_or_shrink_tiles(const Call& call, Config& config);

}  // namespace attn::cpu
