// The CPU backend: every option of docs/semantics.md, f32, f64, f16 and bf16.
#pragma once

#include "core/backend.hpp"

namespace attn::cpu {

const core::Backend& backend();

}  // namespace attn::cpu
