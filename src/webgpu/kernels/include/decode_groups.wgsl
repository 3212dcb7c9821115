// Code of both decode kernels: a workgroup's part of the work, and the merge of groups of lanes.
//! include decode_tile
//! include decode_cache
//! include dropout_pair
//! include scores
//! include exp
//! include log

// Declared after the overrides of the kernel: naga 29 aborts if an override follows an array whose size
// is an expression.
var<workgroup> s_groups: array<vec2<f32>, GROUPS * ROWS>;

// Replaces the maximum of each group in s_groups by the group's weight. Returns the bits of the row's lse.
fn weigh(r: u32) -> u32 {
  var largest = -3.4028234e38;
  for (var n = 0u; n < GROUPS; n += 1u) {
    let x = s_groups[n * ROWS + r];
    largest = max(largest, select(x.x, largest, x.y == 0.0));
  }
  var sum = 0.0;
  for (var n = 0u; n < GROUPS; n += 1u) {
    let x = s_groups[n * ROWS + r];
    let weight = select(exp_of((x.x - largest) * p.to_log2), 0.0, x.y == 0.0);
    s_groups[n * ROWS + r].x = weight;
    sum += x.y * weight;
  }
  if (!(sum == 0.0)) {  // true for NaN
    for (var n = 0u; n < GROUPS; n += 1u) {
      s_groups[n * ROWS + r].x /= sum;
    }
    return bitcast<u32>(largest * (1.0 / p.unit) + log_of(sum));
  }
  return kEmpty;
}

// The work of a workgroup: the rows of a tile and the keys [first, cache.end) of its split.
struct Part {
  seq: Sequence,
  cache: Cache,
  tile: u32,
  split: u32,
  local_b: u32,
  local_q: u32,  // its first query head in the chunk
  q: u32,        // position of query 0 of this head
  first: u32,
}

fn part_of(group: vec3<u32>) -> Part {
  let tile = p.first_tile_q + group.x;
  let local_b = group.z / p.splits;
  let split = group.z % p.splits;
  let b = p.first_batch + local_b;
  let seq = sequence_of(b);

  // The keys that any row sees, then those of the split.
  var low = 0xffffffffu;
  var high = 0u;
  for (var i = tile * ROWS / p.heads_per_kv; i < min((tile * ROWS + ROWS - 1u) / p.heads_per_kv + 1u, seq.len_q); i += 1u) {
    let range = key_range_of(seq, i);
    if (range.x < range.y) {
      low = min(low, range.x);
      high = max(high, range.y);
    }
  }
  low = min(low, high);
  let begin = (low / p.split_keys + split) * p.split_keys;
  let end = min(high, begin + p.split_keys);
  let first = begin + (max(low, begin) - begin) / TILE * TILE;

  let local_q = (p.first_head_kv + group.y) * p.heads_per_kv - p.first_head_q;
  let q = p.q.base + local_b * p.q.batch + seq.first_q * p.q.row + local_q * p.q.head;
  let sequence_k = select(local_b * p.k.batch + seq.first_kv * p.k.row, 0u, in_pages());
  let sequence_v = select(local_b * p.v.batch + seq.first_kv * p.v.row, 0u, in_pages());
  let cache = Cache(b, p.k.base + sequence_k + group.y * p.k.head,
                    p.v.base + sequence_v + group.y * p.v.head, end);
  return Part(seq, cache, tile, split, local_b, local_q, q, first);
}

// A row of the tile.
struct TileRow {
  i: u32,
  head: u32,  // from local_q on
}

fn tile_row(x: Part, n: u32) -> TileRow {
  return TileRow((x.tile * ROWS + n) / p.heads_per_kv, (x.tile * ROWS + n) % p.heads_per_kv);
}

// Merges the groups' results in s_groups and r_o. `own` is the row whose lse the thread writes; the
// first ROWS threads have different rows.
fn finish(x: Part, own: u32, thread: u32) {
  workgroupBarrier();
  if (thread < ROWS) {
    let lse = weigh(own);
    let row = tile_row(x, own);
    if (row.i < x.seq.len_q) {
      partials[p.lse.base + x.local_b * p.lse.batch + (x.local_q + row.head) * p.lse.head +
               (x.seq.first_q + row.i) * p.lse.row + x.split] = lse;
    }
  }
  if (x.first >= x.cache.end) {
    return;
  }
  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
    workgroupBarrier();  // s_parts has been read; the weights are stored
    let weight = s_groups[thread / LANES * ROWS + r].x;
    for (var c = 0u; c < 4u; c += 1u) {  // unrolled
      s_parts[c * O_STRIDE + thread] = r_o[2u * r][c] * weight;
      s_parts[(c + 4u) * O_STRIDE + thread] = r_o[2u * r + 1u][c] * weight;
    }
    workgroupBarrier();
    let row = tile_row(x, r);
    let at = p.o.base + x.local_b * p.o.batch + (x.local_q + row.head) * p.o.head +
             (x.seq.first_q + row.i) * p.o.row;
    for (var dim = thread; dim < p.dim_vo && row.i < x.seq.len_q; dim += THREADS) {
      var sum = 0.0;
      for (var n = 0u; n < GROUPS; n += 1u) {
        sum += s_parts[dim % 8u * O_STRIDE + n * LANES + dim / 8u];
      }
      partials[at + x.split * p.dim_vo + dim] = bitcast<u32>(sum);
    }
  }
}

// Starts the first loads. From then on, registers of keys or values are loaded with the next tile's
// as soon as they are free, so that loads are always in flight. Page numbers are a tile further ahead.
fn start_loads(x: Part, thread: u32) -> u32 {
  var there = 0u;
  if (x.first < x.cache.end) {
    find(x.cache, x.first, thread);
    there = load_k(x.cache, x.first, thread);
    find(x.cache, x.first + TILE, thread);
    load_v(thread);
  }
  return there;
}
