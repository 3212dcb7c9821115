// Strides of views whose shape is set.
#pragma once

#include <attn/tensor.hpp>

namespace attn::core {

// Sets the strides of a contiguous tensor of view's shape.
void set_contiguous_strides(TensorView& view);

}  // namespace attn::core
