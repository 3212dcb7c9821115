// Online softmax of the forward: maxima, probabilities, dropout.
//! include exp
//! include dropout
//! include forward_scores

// Stores the maxima over the thread's keys in s_part, at least the running maximum, and sets
// s_grown[turn] if one exceeds the running maximum by more than the threshold. `turn` alternates
// between tiles of keys.
fn store_maxima(some_hidden: bool, turn: u32, tr: u32, tc: u32) {
  var largest = array<vec4<f32>, 2>(r_max[0], r_max[1]);
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
      var t = r_s[r * kMaxKeys + c];
      if (some_hidden) {
        t = select(t, vec4(r_max[r / 4u][r % 4u]), t == vec4(kHidden));
      }
      largest[r / 4u][r % 4u] = max(largest[r / 4u][r % 4u], max(max(t.x, t.y), max(t.z, t.w)));
    }
  }
  s_part[tc * Q_STRIDE + tr] = largest[0];
  s_part[tc * Q_STRIDE + ROWS + tr] = largest[1];
  let threshold = kRescaleThreshold / p.to_log2;
  if (any(largest[0] > r_max[0] + threshold) || any(largest[1] > r_max[1] + threshold)) {
    atomicStore(&s_grown[turn], 1u);
  }
}

// Lazy rescaling, after a barrier: the running maximum is updated, and o and the sums rescaled, only
// if a score exceeds it by more than the threshold. Most tiles need neither. Each query decides by
// its own scores, so its result does not depend on its neighbours.
fn update_maxima(turn: u32, tr: u32) {
  if (atomicLoad(&s_grown[turn]) == 0u) {
    return;
  }
  for (var half = 0u; half < 2u; half += 1u) {  // unrolled
    var largest = s_part[half * ROWS + tr];
    for (var n = 1u; n < COLUMNS; n += 1u) {
      largest = max(largest, s_part[n * Q_STRIDE + half * ROWS + tr]);
    }
    largest = select(r_max[half], largest, largest > r_max[half] + kRescaleThreshold / p.to_log2);
    let shrink = exps_of((r_max[half] - largest) * p.to_log2);
    r_max[half] = largest;
    r_sum[half] *= shrink;
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      for (var c = 0u; c < BLOCKS_VO; c += 1u) {  // unrolled to 4
        r_o[(half * 4u + n) * kMaxBlocks + c] *= shrink[n];
      }
    }
  }
}

// Turns scores in r_s into probabilities and adds them to the sums.
fn exponentiate() {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
      let t = r_s[r * kMaxKeys + c];
      let x = (t - r_max[r / 4u][r % 4u]) * p.to_log2;
      let e = select(exp2(x), vec4(0.0), (x < vec4(-200.0)) | (t == vec4(kHidden)));
      r_sum[r / 4u][r % 4u] += (e.x + e.y) + (e.z + e.w);
      r_s[r * kMaxKeys + c] = e;
    }
  }
}

fn drop(keep: DropoutBits, first: u32, j: u32, tr: u32, tc: u32) {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
      for (var n = 0u; n < 4u; n += 1u) {  // unrolled
        let kept = keeps(keep, first + row_of(r, tr), j + (c * COLUMNS + tc) * 4u + n);
        let x = r_s[r * kMaxKeys + c][n];
        r_s[r * kMaxKeys + c][n] = select(0.0, x * p.keep_scale, kept);
      }
    }
  }
}

// Stores the probabilities transposed. Neighbouring threads write rows of different keys. The order of
// vectors differs from key to key, because otherwise these stores would hit the same banks.
fn store_p(tr: u32, tc: u32) {
  let place = tr ^ (tc & SWIZZLE);
  for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      for (var half = 0u; half < 2u; half += 1u) {  // unrolled
        s_p[((c * COLUMNS + tc) * 4u + n) * Q_STRIDE + half * ROWS + place] =
            vec4(r_s[(half * 4u) * kMaxKeys + c][n], r_s[(half * 4u + 1u) * kMaxKeys + c][n],
                 r_s[(half * 4u + 2u) * kMaxKeys + c][n], r_s[(half * 4u + 3u) * kMaxKeys + c][n]);
      }
    }
  }
}
