// The CPU backend: every option of docs/semantics.md, in f32, f64, f16 and bf16, with f8 queries,
// and with f8 and i8 caches.
#pragma once

#include "core/backend.hpp"

namespace attn::cpu {

const core::Backend& backend();

}  // namespace attn::cpu
