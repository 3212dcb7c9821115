// enable subgroups
// decode_subgroups: decode.wgsl for devices whose subgroups hold at least LANES consecutive threads. Lanes
// exchange data by shuffles; there is neither workgroup memory nor a barrier until the end.
//
// Grid, threads, results: decode.wgsl. LANES is at least ROWS and at most 32. Each step of the sum over lanes halves
// the rows whose products a lane holds, until it owns one row (own_row). The lane computes the scores
// and probabilities of that row for all keys of its group, and the other lanes read them by shuffles.
// Workgroup memory, f32: [8, THREADS + 4] of o; {maximum, sum} [GROUPS, ROWS].

//! include decode_tile

const kMaxPairs = 64u;

override PAIRS = UNROLL * ROWS;  // of a group of lanes in a tile, at most 32
override OWNED = max(PAIRS / LANES, 1u);  // pairs of a lane

var<workgroup> s_parts: array<f32, 8u * O_STRIDE>;

var<private> r_products: array<f32, kMaxPairs>;
var<private> r_scores: array<f32, kMaxKeys>;  // of the pairs that the thread owns

//! include decode_groups

// A pair is a row and a key: row * UNROLL + key. sum_lanes() leaves the products of consecutive pairs in
// a lane; first_pair() is the first of them, owner_of() the lane of a pair. The high bits of the pair
// are the low bits of the lane, in reverse order.
fn first_pair(lane: u32) -> u32 {
  var pair = 0u;
  for (var step = 0u; step < 5u; step += 1u) {  // unrolled
    if ((1u << step) < LANES) {
      pair |= select(0u, PAIRS >> (step + 1u), (lane & (1u << step)) != 0u);
    }
  }
  return pair;
}

fn owner_of(pair: u32) -> u32 {
  var lane = 0u;
  for (var step = 0u; step < 5u; step += 1u) {  // unrolled
    if ((1u << step) < LANES) {
      lane |= select(0u, 1u << step, (pair & (PAIRS >> (step + 1u))) != 0u);
    }
  }
  return lane;
}

fn own_row(lane: u32) -> u32 {
  return first_pair(lane) / UNROLL;
}

// Sums r_products over lanes. Each step halves the products that a lane holds.
fn sum_lanes(lane: u32) {
  for (var step = 0u; step < 5u; step += 1u) {  // unrolled
    if ((1u << step) < LANES) {
      let upper = (lane & (1u << step)) != 0u;
      for (var m = 0u; m < max(PAIRS >> (step + 1u), 1u); m += 1u) {  // unrolled to 16
        var mine = r_products[m];
        var theirs = mine;
        if ((PAIRS >> (step + 1u)) > 0u) {
          let other = r_products[m + (PAIRS >> (step + 1u))];
          theirs = select(other, mine, upper);
          mine = select(mine, other, upper);
        }
        r_products[m] = mine + subgroupShuffleXor(theirs, 1u << step);
      }
    }
  }
}

// Whether lanes that differ in this bit own different keys of the same row.
fn splits_keys(bit: u32) -> bool {
  return bit >= ROWS && bit < min(PAIRS, LANES);
}

// The value of x in the lane that owns the pair, among the LANES from `base` on.
fn from_owner(x: f32, pair: u32, base: u32) -> f32 {
  return subgroupShuffle(x, base + owner_of(pair));
}

// r_products = the lane's partial products of its keys with all rows.
fn multiply_keys() {
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let keys = eight_of(r_k[2u * n], r_k[2u * n + 1u], TYPE_KV);
    for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
      r_products[r * UNROLL + n] = dot(r_q[2u * r], keys.low) + dot(r_q[2u * r + 1u], keys.high);
    }
  }
}

// r_o += P V of the keys in registers; their probabilities are in r_scores of the lanes that own them.
fn add_values(base: u32) {
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let values = eight_of(r_v[2u * n], r_v[2u * n + 1u], TYPE_KV);
    for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
      let pair = r * UNROLL + n;
      let of_row = vec4(from_owner(r_scores[pair % OWNED], pair, base));
      r_o[2u * r] = fma(of_row, values.low, r_o[2u * r]);
      r_o[2u * r + 1u] = fma(of_row, values.high, r_o[2u * r + 1u]);
    }
  }
}

@compute @workgroup_size(THREADS)
fn decode_subgroups(@builtin(workgroup_id) group: vec3<u32>,
                    @builtin(local_invocation_index) thread: u32,
                    @builtin(subgroup_invocation_id) subgroup_lane: u32) {
  let x = part_of(group);
  if (x.tile * ROWS / p.heads_per_kv >= x.seq.len_q) {
    return;
  }
  let lane = thread % LANES;
  let base = subgroup_lane - lane;
  let own = tile_row(x, own_row(lane));
  let own_key = first_pair(lane) % UNROLL;
  let h = p.first_head_q + x.local_q + own.head;
  let row = row_of(x.seq, x.cache.b, h, own.i);
  load_q(x.seq, x.q, x.tile, lane);
  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
    r_o[2u * r] = vec4(0.0);
    r_o[2u * r + 1u] = vec4(0.0);
  }
  var maximum = -3.4028234e38;  // of the lane's row
  var sum = 0.0;                // of the lane's pairs

  var there = start_loads(x, thread);
  for (var first = x.first; first < x.cache.end; first += TILE) {
    multiply_keys();
    let now = there;
    there = load_k(x.cache, first + TILE, thread);
    find(x.cache, first + 2u * TILE, thread);
    sum_lanes(lane);
    var largest = maximum;
    for (var c = 0u; c < OWNED; c += 1u) {  // unrolled to 8
      let n = own_key + c;
      let j = first + thread / LANES + n * GROUPS;
      var one = row;  // the row, restricted to this key
      one.high = select(0u, min(row.high, j + 1u), (now & (1u << n)) != 0u);
      let t = scores_of(one, j, vec4(r_products[c])).x;
      r_scores[c] = t;
      largest = max(largest, select(t, largest, t == kHidden));
    }
    for (var step = 0u; step < 5u; step += 1u) {  // unrolled
      if (splits_keys(1u << step)) {
        largest = max(largest, subgroupShuffleXor(largest, 1u << step));
      }
    }
    let shrink = exp_of((maximum - largest) * p.to_log2);
    maximum = largest;
    sum *= shrink;
    for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
      let of_row = from_owner(shrink, r * UNROLL, base);
      r_o[2u * r] *= of_row;
      r_o[2u * r + 1u] *= of_row;
    }
    for (var c = 0u; c < OWNED; c += 1u) {  // unrolled to 8
      let t = r_scores[c];
      var probability = exp_of((t - maximum) * p.to_log2);
      probability = select(probability, 0.0, t == kHidden);
      sum += probability;
      if (DROPOUT) {
        let j = first + thread / LANES + (own_key + c) * GROUPS;
        probability *= select(0.0, p.keep_scale, kept(x.cache.b, h, own.i, j));
      }
      r_scores[c] = probability;
    }
    clear_v(now);
    add_values(base);
    load_v(thread);
  }
  for (var step = 0u; step < 5u; step += 1u) {  // unrolled
    if (splits_keys(1u << step)) {
      sum += subgroupShuffleXor(sum, 1u << step);
    }
  }
  if (lane < ROWS) {
    s_groups[thread / LANES * ROWS + own_row(lane)] = vec2(maximum, sum);
  }
  finish(x, own_row(thread % LANES), thread);
}
