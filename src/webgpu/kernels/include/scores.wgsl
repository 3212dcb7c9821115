// Scores of 4 neighbouring keys that the query may or may not see.
//! include exp
//! include hidden
//! include tanh
//! include bias_element
//! include score_row

fn masked(at: u32) -> bool {
  return ((mask_at(at / 4u) >> (at % 4u * 8u)) & 0xffu) == 0u;
}

// Scores of keys [j, j + 4) from their products with the query, in units of 1 / p.unit, before bias and
// mask. An absent score modifier costs a uniform branch. Only OPTIONS is a constant, to keep the number
// of pipelines small.
fn scaled(row: Row, j: u32, products: vec4<f32>) -> vec4<f32> {
  if (OPTIONS == 0u) {
    return products * (p.scale * p.unit);
  }
  var t: vec4<f32>;
  if (p.softcap != 0.0) {
    t = tanh_of(products * (p.scale / p.softcap)) * (p.softcap * p.unit);
  } else {
    t = products * (p.scale * p.unit);
  }
  if (p.slopes_at != 0u) {
    let keys = vec4<i32>(vec4(j, j + 1u, j + 2u, j + 3u));
    t -= row.slope * vec4<f32>(abs(vec4(row.at) - keys));
  }
  return t;
}

// The same with bias and mask; kHidden where the query does not see the key.
fn scores_of(row: Row, j: u32, products: vec4<f32>) -> vec4<f32> {
  var t = scaled(row, j, products);
  let keys = vec4(j, j + 1u, j + 2u, j + 3u);
  var hidden = (keys < vec4(row.low)) | (keys >= vec4(row.high));
  if (has_bias_or_mask() && row.low < row.high) {
    // A key out of range is clamped into it, so that loads need not wait for a branch.
    let seen = clamp(keys, vec4(row.low), vec4(row.high - 1u));
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      if (p.bias_type != 0u) {
        let x = bias_element(row.bias + seen[n] * p.bias_kv);
        t[n] += x.value;
        hidden[n] = hidden[n] | x.hides;
      }
      if (has_mask()) {
        hidden[n] = hidden[n] | masked(row.mask + seen[n] * p.mask_kv);
      }
    }
  }
  return select(t, vec4(kHidden), hidden);
}
