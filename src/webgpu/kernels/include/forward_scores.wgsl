// Scores of the forward: scale, softcap, ALiBi, bias, mask and visibility.
//! include hidden
//! include tanh

// The data that turn products into scores.
struct Scores {
  bias: u32,  // position of (query 0, key 0)
  mask: u32,
  slope: f32,
  at: i32,  // the key on the diagonal of query 0
  last_q: u32,
  last_kv: u32,
  inside: vec2<u32>,  // keys that all queries of the thread see, before bias and mask
}

// The index in the tile of the thread's query r.
fn row_of(r: u32, tr: u32) -> u32 {
  return (r / 4u * ROWS + tr) * 4u + r % 4u;
}

// Positions of 4 neighbouring keys of a query in bias or mask. Queries and keys past the end are
// clamped, so that all loads of a thread can be issued before the first result is used.
fn elements_of(start: u32, step: u32, step_kv: u32, x: Scores, i: u32, key: u32) -> vec4<u32> {
  let keys = min(vec4(key, key + 1u, key + 2u, key + 3u), vec4(x.last_kv));
  return vec4(start + min(i, x.last_q) * step) + keys * step_kv;
}

// Adds 4 biases, given by the bits of an f32 or a 16-bit element. -inf hides the key.
fn add_biases(at: u32, bits: vec4<u32>) {
  var value = bitcast<vec4<f32>>(bits);
  var hides = bits == vec4(0xff800000u);
  if (p.bias_type == 2u) {
    value = vec4(unpack2x16float(bits.x | (bits.y << 16u)), unpack2x16float(bits.z | (bits.w << 16u)));
    hides = bits == vec4(0xfc00u);
  } else if (p.bias_type == 3u) {
    value = bitcast<vec4<f32>>(bits << vec4(16u));
    hides = bits == vec4(0xff80u);
  }
  r_s[at] = select(r_s[at] + value, vec4(kHidden), hides);
}

fn add_bias(x: Scores, first: u32, j: u32, tr: u32, tc: u32) {
  var words: array<vec4<u32>, R * kMaxKeys>;
  if (p.bias_type != 1u && p.bias_kv == 1u && ((x.bias | p.bias.row) & 1u) == 0u) {
    // Two keys per word.
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      let row = x.bias + min(first + row_of(r, tr), x.last_q) * p.bias.row;
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let key = j + (c * COLUMNS + tc) * 4u;
        let at = (vec2(row) + min(vec2(key, key + 2u), vec2(x.last_kv & 0xfffffffeu))) / 2u;
        words[r * kMaxKeys + c] = vec4(bias[at.x], bias[at.y], 0u, 0u);
      }
    }
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let pairs = words[r * kMaxKeys + c].xxyy;
        add_biases(r * kMaxKeys + c, (pairs >> vec4(0u, 16u, 0u, 16u)) & vec4(0xffffu));
      }
    }
  } else {
    let shift = select(1u, 0u, p.bias_type == 1u);
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let key = j + (c * COLUMNS + tc) * 4u;
        let at = elements_of(x.bias, p.bias.row, p.bias_kv, x, first + row_of(r, tr), key) >> vec4(shift);
        words[r * kMaxKeys + c] = vec4(bias[at.x], bias[at.y], bias[at.z], bias[at.w]);
      }
    }
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        var bits = words[r * kMaxKeys + c];
        if (shift == 1u) {
          let key = j + (c * COLUMNS + tc) * 4u;
          let at = elements_of(x.bias, p.bias.row, p.bias_kv, x, first + row_of(r, tr), key);
          bits = (bits >> ((at & vec4(1u)) * 16u)) & vec4(0xffffu);
        }
        add_biases(r * kMaxKeys + c, bits);
      }
    }
  }
}

fn hide_masked(x: Scores, first: u32, j: u32, tr: u32, tc: u32) {
  if (p.mask_kv == 1u && ((x.mask | p.mask.row) & 3u) == 0u) {
    // Four keys per word.
    var words: array<u32, R * kMaxKeys>;
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      let row = x.mask + min(first + row_of(r, tr), x.last_q) * p.mask.row;
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let key = j + (c * COLUMNS + tc) * 4u;
        words[r * kMaxKeys + c] = mask[(row + min(key, x.last_kv & 0xfffffffcu)) / 4u];
      }
    }
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let bytes = vec4(words[r * kMaxKeys + c]) & vec4(0xffu, 0xff00u, 0xff0000u, 0xff000000u);
        r_s[r * kMaxKeys + c] = select(r_s[r * kMaxKeys + c], vec4(kHidden), bytes == vec4(0u));
      }
    }
  } else {
    var words: array<vec4<u32>, R * kMaxKeys>;
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let key = j + (c * COLUMNS + tc) * 4u;
        let at = elements_of(x.mask, p.mask.row, p.mask_kv, x, first + row_of(r, tr), key) / 4u;
        words[r * kMaxKeys + c] = vec4(mask[at.x], mask[at.y], mask[at.z], mask[at.w]);
      }
    }
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let key = j + (c * COLUMNS + tc) * 4u;
        let at = elements_of(x.mask, p.mask.row, p.mask_kv, x, first + row_of(r, tr), key);
        let bytes = (words[r * kMaxKeys + c] >> ((at & vec4(3u)) * 8u)) & vec4(0xffu);
        r_s[r * kMaxKeys + c] = select(r_s[r * kMaxKeys + c], vec4(kHidden), bytes == vec4(0u));
      }
    }
  }
}

// Turns products in r_s into scores in units of 1 / p.unit; kHidden where the query does not see the
// key. Returns false if nothing can be hidden. OPTIONS is the only constant that depends on the score
// modifiers, to keep the number of pipelines small.
fn modify_scores(x: Scores, first: u32, j: u32, tr: u32, tc: u32) -> bool {
  if (OPTIONS != 0u && p.softcap != 0.0) {
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        r_s[r * kMaxKeys + c] = tanh_of(r_s[r * kMaxKeys + c] * (p.scale / p.softcap)) * (p.softcap * p.unit);
      }
    }
  } else {
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        r_s[r * kMaxKeys + c] *= p.scale * p.unit;
      }
    }
  }
  let offsets = vec4(0u, 1u, 2u, 3u);
  if (OPTIONS != 0u && p.slopes_at != 0u) {
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      let at = x.at + bitcast<i32>(first + row_of(r, tr));
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let keys = vec4(j + (c * COLUMNS + tc) * 4u) + offsets;
        r_s[r * kMaxKeys + c] -= x.slope * vec4<f32>(abs(vec4(at) - bitcast<vec4<i32>>(keys)));
      }
    }
  }
  if (OPTIONS == 2u && p.bias_type != 0u) {
    add_bias(x, first, j, tr, tc);
  }
  if (OPTIONS == 2u && p.mask_given != 0u) {
    hide_masked(x, first, j, tr, tc);
  }
  let inside = x.inside.x <= j && j + TILE_KV <= x.inside.y;
  if (!inside) {
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      let range = s_range[row_of(r, tr)];
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        let keys = vec4(j + (c * COLUMNS + tc) * 4u) + offsets;
        let hidden = (keys < vec4(range.x)) | (keys >= vec4(range.y));
        r_s[r * kMaxKeys + c] = select(r_s[r * kMaxKeys + c], vec4(kHidden), hidden);
      }
    }
  }
  return !inside || (OPTIONS == 2u && (p.bias_type != 0u || p.mask_given != 0u));
}
