// The handlers for XLA's foreign function interface: see xla.cpp.
#pragma once

#include <cstdint>

namespace attn::api::xla {

// Later calls on the CPU use this many threads; 0 = the default of a Context.
void set_threads(std::int32_t threads);

}  // namespace attn::api::xla
