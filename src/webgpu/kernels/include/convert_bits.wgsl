// Conversion of elements between their bits and f32.
//! include bf16

fn value_of(bits: u32, element: u32) -> f32 {
  switch element {
    case 0u: { return bitcast<f32>(bits); }
    case 1u: { return unpack2x16float(bits).x; }
    default: { return bitcast<f32>(bits << 16u); }
  }
}

// Rounds to nearest, ties to even. Overflow gives infinity, which WGSL's conversion to f16 does not
// promise.
fn bits_of(x: f32, element: u32) -> u32 {
  let bits = bitcast<u32>(x);
  if (element == 0u) {
    return bits;
  }
  if (element == 2u) {
    return bf16_bits(x);
  }
  let magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) {
    return ((bits >> 16u) & 0x8000u) | select(0x7c00u, 0x7e00u, magnitude > 0x7f800000u);
  }
  return pack2x16float(vec2(x, 0.0)) & 0xffffu;
}

fn is_finite(bits: u32, element: u32) -> bool {
  let exponent = select(select(0x7f80u, 0x7c00u, element == 1u), 0x7f800000u, element == 0u);
  return (bits & exponent) != exponent;
}
