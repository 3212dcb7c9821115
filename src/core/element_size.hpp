// element_size: an inline attn::size_of.
#pragma once

#include <attn/tensor.hpp>

namespace attn::core {

// The same as attn::size_of. Each call needs it many times, and an exported function can't be
// inlined.
constexpr std::int64_t element_size(DType dtype) {
  switch (dtype) {
    case DType::f64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::u8:
    case DType::i8: return 1;
    case DType::none: break;
  }
  return 0;
}

}  // namespace attn::core
