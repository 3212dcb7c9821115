// decode: attention of few queries over a contiguous or paged cache, split over keys. Writes partial
// results; combine.wgsl merges them.
//
// Grid: x tiles of ROWS rows (from first_tile_q), y key heads, z sequences * splits, splits fastest. The
// rows of a key head are all its pairs of query and query head: row n is head n % heads_per_kv of query
// n / heads_per_kv. A split is the keys [n, n + 1) * split_keys. Splits are counted from the one in which
// the tile's rows see their first key, so that a row's result does not depend on other sequences.
// Threads: LANES threads share a key and its value, 8 dimensions each, loaded straight into registers; a
// thread has UNROLL keys in flight. The lanes store their partial products in workgroup memory; for each
// key and row, one thread adds them and computes the score. Each group of lanes runs its own online
// softmax, in the units of forward.wgsl; the groups are merged at the end.
// Workgroup memory, f32:
//   parts  [TILE, ROWS, LANES + 1], at the end [8, THREADS + 4] of o
//   scores [TILE, ROWS], and dropout factors of the same size if there is dropout
//   {maximum, sum} [GROUPS, ROWS]
// With 128 dimensions, 128 threads, 4 rows and UNROLL = 4: 9.5 KiB.
// Written per row and split: o, normalized, dim_vo words; and lse, one word. A split without a visible
// key gets lse = -inf, and its o is not written.

//! include decode_tile

override PART_STRIDE = LANES + 1u;
override PARTS = max(TILE * ROWS * PART_STRIDE, 8u * O_STRIDE);
override KEPT = select(1u, TILE * ROWS, DROPOUT);

var<workgroup> s_parts: array<f32, PARTS>;
var<workgroup> s_scores: array<f32, TILE * ROWS>;
var<workgroup> s_kept: array<f32, KEPT>;

var<private> r_maximum: array<f32, kMaxRows>;
var<private> r_sum: array<f32, kMaxRows>;

//! include decode_groups

// The thread's partial products of its keys with all rows. With pages, the word after those of a key's
// row 0 says whether the key exists.
fn multiply(thread: u32, there: u32) {
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let key = thread / LANES + n * GROUPS;
    let x = eight_of(r_k[2u * n], r_k[2u * n + 1u], TYPE_KV);
    for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
      s_parts[(key * ROWS + r) * PART_STRIDE + thread % LANES] =
          dot(r_q[2u * r], x.low) + dot(r_q[2u * r + 1u], x.high);
    }
    if (p.page_size != 0u && thread % LANES == 0u) {
      s_parts[key * ROWS * PART_STRIDE + LANES] = select(0.0, 1.0, (there & (1u << n)) != 0u);
    }
  }
}

// The scores that the thread owns: all of row thread % ROWS.
fn score(cache: Cache, row: Row, h: u32, i: u32, first: u32, thread: u32) {
  for (var n = thread; n < TILE * ROWS; n += THREADS) {
    let j = first + n / ROWS;
    var product = 0.0;
    for (var c = 0u; c < LANES; c += 1u) {
      product += s_parts[n * PART_STRIDE + c];
    }
    var exists = j < cache.end;
    if (p.page_size != 0u) {
      exists = s_parts[n / ROWS * ROWS * PART_STRIDE + LANES] != 0.0;
    }
    var one = row;  // the row, restricted to this key
    one.high = select(0u, min(row.high, j + 1u), exists);
    s_scores[n] = scores_of(one, j, vec4(product)).x;
    if (DROPOUT) {
      s_kept[n] = select(0.0, p.keep_scale, kept(cache.b, h, i, j));
    }
  }
}

// Online softmax: adds the values in registers to the group's o and sums.
fn accumulate(thread: u32) {
  let group = thread / LANES;
  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
    var largest = r_maximum[r];
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      let t = s_scores[(group + n * GROUPS) * ROWS + r];
      largest = max(largest, select(t, largest, t == kHidden));
    }
    let shrink = select(exp_of((r_maximum[r] - largest) * p.to_log2), 0.0, r_sum[r] == 0.0);
    r_maximum[r] = largest;
    r_sum[r] *= shrink;
    r_o[2u * r] *= shrink;
    r_o[2u * r + 1u] *= shrink;
  }
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let at = (group + n * GROUPS) * ROWS;
    let x = eight_of(r_v[2u * n], r_v[2u * n + 1u], TYPE_KV);
    for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
      let t = s_scores[at + r];
      var probability = exp_of((t - r_maximum[r]) * p.to_log2);
      probability = select(probability, 0.0, t == kHidden);
      r_sum[r] += probability;
      if (DROPOUT) {
        probability *= s_kept[at + r];
      }
      r_o[2u * r] = fma(vec4(probability), x.low, r_o[2u * r]);
      r_o[2u * r + 1u] = fma(vec4(probability), x.high, r_o[2u * r + 1u]);
    }
  }
}

@compute @workgroup_size(THREADS)
fn decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let x = part_of(group);
  if (x.tile * ROWS / p.heads_per_kv >= x.seq.len_q) {
    return;
  }
  let own = tile_row(x, thread % ROWS);
  let h = p.first_head_q + x.local_q + own.head;
  let row = row_of(x.seq, x.cache.b, h, own.i);
  load_q(x.seq, x.q, x.tile, thread % LANES);
  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
    r_o[2u * r] = vec4(0.0);
    r_o[2u * r + 1u] = vec4(0.0);
    r_maximum[r] = -3.4028234e38;
    r_sum[r] = 0.0;
  }

  var there = start_loads(x, thread);
  for (var j = x.first; j < x.cache.end; j += TILE) {
    multiply(thread, there);
    let now = there;
    there = load_k(x.cache, j + TILE, thread);
    find(x.cache, j + 2u * TILE, thread);
    workgroupBarrier();
    score(x.cache, row, h, own.i, j, thread);
    workgroupBarrier();
    clear_v(now);
    accumulate(thread);
    load_v(thread);
  }
  if (thread % LANES == 0u) {
    for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
      s_groups[thread / LANES * ROWS + r] = vec2(r_maximum[r], r_sum[r]);
    }
  }
  finish(x, thread % ROWS, thread);
}
