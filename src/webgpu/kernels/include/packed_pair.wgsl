// Two elements of 16 bits in a word.
//! include bf16

// Two f32 as a word of f16 (WGSL's conversion) or bf16.
fn packed_pair(x: vec2<f32>, element: u32) -> u32 {
  if (element == 1u) {
    return pack2x16float(x);
  }
  return bf16_bits(x.x) | (bf16_bits(x.y) << 16u);
}
