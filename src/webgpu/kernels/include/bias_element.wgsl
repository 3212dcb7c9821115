// An element of the bias as f32, and whether it is -inf, which hides the key.
struct BiasElement {
  value: f32,
  hides: bool,
}

fn bias_element(at: u32) -> BiasElement {
  if (p.bias_type == 1u) {
    let bits = bias[at];
    return BiasElement(bitcast<f32>(bits), bits == 0xff800000u);
  }
  let word = bias[at / 2u];
  let bits = select(word & 0xffffu, word >> 16u, (at & 1u) != 0u);
  if (p.bias_type == 2u) {
    return BiasElement(unpack2x16float(bits).x, bits == 0xfc00u);
  }
  return BiasElement(bitcast<f32>(bits << 16u), bits == 0xff80u);
}
