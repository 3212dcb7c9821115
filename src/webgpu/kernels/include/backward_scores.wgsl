// P and dS of the pairs of a tile.
//! include backward_memory
//! include scores_within
//! include dropout

// Loads {lse, delta} of a tile's queries (delta.wgsl) and their key ranges; none past the length.
fn load_lse_delta(seq: Sequence, h: u32, first: u32, thread: u32) {
  for (var n = thread; n < TILE_Q; n += THREADS) {
    var row = vec4(0u);
    if (first + n < seq.len_q) {
      let at = p.lse_delta_at + (h * p.rows + seq.first_row + first + n) * 2u;
      row = vec4(info[at], info[at + 1u], key_range_of(seq, first + n));
    }
    s_rows[n] = row;
  }
}

// A tile of scores.
struct Tile {
  head: Row,  // of query 0 of the head
  i: u32,     // first query
  j: u32,     // first key
  keep: DropoutBits,
}

// Whether all rows of a thread see all keys of the tile, and bias and mask can be loaded for 4 keys at
// once. After load_lse_delta() and a barrier.
fn is_within(tile: Tile, tr: u32) -> bool {
  var low = 0u;
  var high = 0xffffffffu;
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let stats = s_rows[r * ROWS + tr];
    low = max(low, stats.z);
    high = min(high, stats.w);
  }
  var neighbours = true;
  if (OPTIONS == 2u) {
    neighbours = (p.bias_type == 0u || p.bias_kv == 1u) && (!has_mask() || p.mask_kv == 1u);
  }
  return low <= tile.j && high >= tile.j + TILE_KV && neighbours;
}

// Loads bias and mask of the thread's scores.
fn load_pairs(tile: Tile, tr: u32, column: u32) {
  let j = tile.j + column;
  if (p.bias_type != 0u) {
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      r_bias[r] = bias_words(tile.head.bias + (tile.i + r * ROWS + tr) * p.bias.row + j);
    }
  }
  if (has_mask()) {
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      r_mask[r] = mask_word(tile.head.mask + (tile.i + r * ROWS + tr) * p.mask.row + j);
    }
  }
}

// P after dropout, and dS, of 4 neighbouring keys of a query.
struct PAndDs {
  p: vec4<f32>,
  ds: vec4<f32>,
}

// For the thread's row r, query n of the tile, and 4 keys from `column` on, from products with K (s) and V (dp).
// `within`: all are in the query's range.
fn pairs_of(tile: Tile, r: u32, n: u32, column: u32, s: vec4<f32>, dp: vec4<f32>, within: bool) -> PAndDs {
  let i = tile.i + n;
  let j = tile.j + column;
  let stats = s_rows[n];
  let row = Row(tile.head.bias + i * p.bias.row, tile.head.mask + i * p.mask.row, tile.head.slope,
                tile.head.at + bitcast<i32>(i), stats.z, stats.w);
  var t: vec4<f32>;
  if (within) {
    t = scores_within(row, j, s, r);
  } else {
    t = scores_of(row, j, s);
  }
  let x = (t - bitcast<f32>(stats.x) * p.unit) * p.to_log2;
  var whole = exps_of(x);
  if (!within || OPTIONS == 2u) {
    whole = select(whole, vec4(0.0), t == vec4(kHidden));
  }
  var kept = whole;
  var gradient = dp;
  if (DROPOUT) {
    for (var m = 0u; m < 4u; m += 1u) {  // unrolled
      let keep = keeps(tile.keep, i, j + m);
      kept[m] = select(0.0, kept[m] * p.keep_scale, keep);
      gradient[m] = select(0.0, gradient[m] * p.keep_scale, keep);
    }
  }
  return PAndDs(kept, whole * (gradient - bitcast<f32>(stats.y)));
}
