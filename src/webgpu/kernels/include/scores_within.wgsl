// Scores of 4 neighbouring keys that the query sees, as far as causal, window, ranges and lengths go.
//! include scores

// The mask bytes of 4 neighbouring keys.
fn mask_word(at: u32) -> u32 {
  let shift = at % 4u * 8u;
  return (mask_at(at / 4u) >> shift) | (mask_at((at + 3u) / 4u) << ((32u - shift) % 32u));
}

// The bias of 4 neighbouring keys; 16-bit elements are in the first two words.
fn bias_words(at: u32) -> vec4<u32> {
  if (p.bias_type == 1u) {
    return vec4(bias[at], bias[at + 1u], bias[at + 2u], bias[at + 3u]);
  }
  let words = vec3(bias[at / 2u], bias[at / 2u + 1u], bias[(at + 3u) / 2u]);
  let odd = (words.xy >> vec2(16u)) | (words.yz << vec2(16u));
  return vec4(select(words.xy, odd, (at & 1u) != 0u), 0u, 0u);
}

// Scores of 4 keys in the query's range; r_bias[r] and r_mask[r] hold their bias and mask.
fn scores_within(row: Row, j: u32, products: vec4<f32>, r: u32) -> vec4<f32> {
  var t = scaled(row, j, products);
  if (OPTIONS != 2u) {
    return t;
  }
  var hidden = vec4(false);
  if (p.bias_type != 0u) {
    var bits = r_bias[r];
    if (p.bias_type == 1u) {
      t += bitcast<vec4<f32>>(bits);
      hidden = bits == vec4(0xff800000u);
    } else {
      bits = vec4(bits.x & 0xffffu, bits.x >> 16u, bits.y & 0xffffu, bits.y >> 16u);
      if (p.bias_type == 2u) {
        t += vec4(unpack2x16float(r_bias[r].x), unpack2x16float(r_bias[r].y));
        hidden = bits == vec4(0xfc00u);
      } else {
        t += bitcast<vec4<f32>>(bits << vec4(16u));
        hidden = bits == vec4(0xff80u);
      }
    }
  }
  if (has_mask()) {
    let bytes = vec4(r_mask[r]) & vec4(0xffu, 0xff00u, 0xff0000u, 0xff000000u);
    hidden = hidden | (bytes == vec4(0u));
  }
  return select(t, vec4(kHidden), hidden);
}
