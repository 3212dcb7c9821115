// prepare: computes the data about sequences that the other kernels of a call read, in words of `info`:
//   sequences   {len_q, len_kv, first_q, first_kv, first_row, diag, cached, 0} per sequence: struct
//               Sequence, and the number of cached keys before len_new are appended
//   slopes      f32 per (sequence, head); sinks: f32 per head
//   key_ranges  {low, high} per query: the keys that causal, window, ranges and lengths allow, the same
//               for all heads; low = high if there are none
//   tiles       {low, high} per tile of queries: the hull of its rows' ranges
//   keys        {first, end} per tile of keys: the tiles of queries whose hulls touch it
// Four entry points compute them and are dispatched in this order. A fifth, `positions`, is for rope: the
// position of each packed row in its sequence. One thread per element, 64 per workgroup. Indices and
// lengths from memory are clamped, so that no value leads to an access outside a tensor.
//
// Strides of lists: `batch` from sequence to sequence, `row` from element to element; head is 0.

//! include strided_tensor

struct PrepareParameters {
  batch: u32,
  heads_q: u32,
  len_q: u32,  // of the longest sequence
  len_kv: u32,
  total_q: u32,  // rows of packed tensors
  total_kv: u32,
  packed: u32,  // 1: queries, 2: keys
  given: u32,   // 1: lengths of queries, 2: of keys, 4: slopes, 8: sinks, 16: kv_begin, 32: kv_end
  lengths_q: StridedTensor,
  lengths_kv: StridedTensor,
  slopes: StridedTensor,
  sinks: StridedTensor,
  kv_begin: StridedTensor,
  kv_end: StridedTensor,

  // Query i is aligned with key i + diag; with `bottom_right`, + len_kv - len_q. It sees keys
  // i + low_band to i + high_band, with the same shift.
  bottom_right: u32,
  diag: i32,
  low_band: i32,
  high_band: i32,
  tile: u32,      // rows of a tile of queries
  tile_kv: u32,   // of keys
  tiles: u32,     // of queries, of the longest sequence
  tiles_kv: u32,

  len_new: u32,
  sequences_at: u32,
  slopes_at: u32,
  sinks_at: u32,
  key_ranges_at: u32,
  tiles_at: u32,
  keys_at: u32,
}

@group(0) @binding(0) var<uniform> p: PrepareParameters;
@group(0) @binding(1) var<storage, read_write> info: array<u32>;
@group(0) @binding(2) var<storage, read> lengths_q: array<i32>;
@group(0) @binding(3) var<storage, read> lengths_kv: array<i32>;
@group(0) @binding(4) var<storage, read> slopes: array<u32>;
@group(0) @binding(5) var<storage, read> sinks: array<u32>;
@group(0) @binding(2) var<storage, read> kv_begin: array<i32>;
@group(0) @binding(3) var<storage, read> kv_end: array<i32>;

// The thread's element; the grid has rows of 65535 workgroups.
fn element(group: vec3<u32>, thread: u32) -> u32 {
  return (group.y * 65535u + group.x) * 64u + thread;
}

// {length, first row} of a sequence.
fn rows_of(b: u32, packed: bool, given: bool, longest: u32, total: u32, first: i32, last: i32) -> vec2<u32> {
  if (!given) {
    return vec2(longest, 0u);
  }
  if (!packed) {
    return vec2(u32(clamp(first, 0, i32(longest))), 0u);
  }
  let begin = clamp(first, 0, i32(total));
  let end = clamp(last, begin, min(begin + i32(longest), i32(total)));
  return vec2(u32(end - begin), u32(begin));
}

@compute @workgroup_size(64)
fn sequences(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let n = element(group, thread);
  if (n < p.heads_q && (p.given & 8u) != 0u) {
    info[p.sinks_at + n] = sinks[p.sinks.base + n * p.sinks.row];
  }
  if (n < p.batch * p.heads_q && (p.given & 4u) != 0u) {
    let b = n / p.heads_q;
    info[p.slopes_at + n] = slopes[p.slopes.base + b * p.slopes.batch + n % p.heads_q * p.slopes.row];
  }
  if (n >= p.batch) {
    return;
  }
  var x = vec2(0, 0);
  if ((p.given & 1u) != 0u) {
    x.x = lengths_q[p.lengths_q.base + n * p.lengths_q.row];
    if ((p.packed & 1u) != 0u) {
      x.y = lengths_q[p.lengths_q.base + (n + 1u) * p.lengths_q.row];
    }
  }
  let queries = rows_of(n, (p.packed & 1u) != 0u, (p.given & 1u) != 0u, p.len_q, p.total_q, x.x, x.y);
  x = vec2(0, 0);
  if ((p.given & 2u) != 0u) {
    x.x = lengths_kv[p.lengths_kv.base + n * p.lengths_kv.row];
    if ((p.packed & 2u) != 0u) {
      x.y = lengths_kv[p.lengths_kv.base + (n + 1u) * p.lengths_kv.row];
    }
  }
  let keys = rows_of(n, (p.packed & 2u) != 0u, (p.given & 2u) != 0u, p.len_kv, p.total_kv, x.x, x.y);
  let at = p.sequences_at + n * 8u;
  info[at] = queries.x;
  let len_kv = min(keys.x + p.len_new, p.len_kv);
  info[at + 1u] = len_kv;
  info[at + 2u] = queries.y;
  info[at + 3u] = keys.y;
  info[at + 4u] = select(n * p.len_q, queries.y, (p.packed & 1u) != 0u);
  let corner = i32(len_kv) - i32(queries.x);
  info[at + 5u] = bitcast<u32>(p.diag + select(0, corner, p.bottom_right != 0u));
  info[at + 6u] = keys.x;
}

@compute @workgroup_size(64)
fn key_ranges(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let n = element(group, thread);
  if (n >= p.batch * p.len_q) {
    return;
  }
  let b = n / p.len_q;
  let i = n % p.len_q;
  let at = p.sequences_at + b * 8u;
  let len_q = info[at];
  let len_kv = i32(info[at + 1u]);
  let first_row = info[at + 4u];
  if (i >= len_q) {
    if ((p.packed & 1u) == 0u) {
      info[p.key_ranges_at + (first_row + i) * 2u] = 0u;
      info[p.key_ranges_at + (first_row + i) * 2u + 1u] = 0u;
    }
    return;
  }
  let corner = select(0, len_kv - i32(len_q), p.bottom_right != 0u) + i32(i);
  var low = max(0, corner + p.low_band);
  var high = min(len_kv, corner + p.high_band + 1);
  let row = select(i, first_row + i, (p.packed & 1u) != 0u);
  if ((p.given & 16u) != 0u) {
    low = max(low, kv_begin[p.kv_begin.base + b * p.kv_begin.batch + row * p.kv_begin.row]);
  }
  if ((p.given & 32u) != 0u) {
    high = min(high, kv_end[p.kv_end.base + b * p.kv_end.batch + row * p.kv_end.row]);
  }
  if (low >= high) {
    low = 0;
    high = 0;
  }
  info[p.key_ranges_at + (first_row + i) * 2u] = u32(low);
  info[p.key_ranges_at + (first_row + i) * 2u + 1u] = u32(high);
}

@compute @workgroup_size(64)
fn tiles(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let n = element(group, thread);
  if (n >= p.batch * p.tiles) {
    return;
  }
  let sequence = p.sequences_at + n / p.tiles * 8u;
  let first = n % p.tiles * p.tile;
  let end = min(first + p.tile, info[sequence]);
  var low = 0xffffffffu;
  var high = 0u;
  for (var i = first; i < end; i += 1u) {
    let at = p.key_ranges_at + (info[sequence + 4u] + i) * 2u;
    if (info[at + 1u] > 0u) {
      low = min(low, info[at]);
      high = max(high, info[at + 1u]);
    }
  }
  info[p.tiles_at + n * 2u] = min(low, high);
  info[p.tiles_at + n * 2u + 1u] = high;
}

@compute @workgroup_size(64)
fn keys(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let n = element(group, thread);
  if (n >= p.batch * p.tiles_kv) {
    return;
  }
  let b = n / p.tiles_kv;
  let begin = n % p.tiles_kv * p.tile_kv;
  var first = 0xffffffffu;
  var end = 0u;
  for (var t = 0u; t < p.tiles; t += 1u) {
    let at = p.tiles_at + (b * p.tiles + t) * 2u;
    if (info[at] < begin + p.tile_kv && info[at + 1u] > begin) {
      first = min(first, t);
      end = t + 1u;
    }
  }
  info[p.keys_at + n * 2u] = min(first, end);
  info[p.keys_at + n * 2u + 1u] = end;
}

// The position of row n of the packed tensor, at words key_ranges_at + n. Rows that belong to no sequence
// count from row 0.
@compute @workgroup_size(64)
fn positions(@builtin(workgroup_id) group: vec3<u32>,
             @builtin(local_invocation_index) thread: u32) {
  let n = element(group, thread);
  if (n >= p.total_q) {
    return;
  }
  var first = 0u;
  for (var b = p.batch; b > 0u; b -= 1u) {  // if several sequences hold the row, the first
    let at = p.lengths_q.base + (b - 1u) * p.lengths_q.row;
    let begin = u32(clamp(lengths_q[at], 0, i32(p.total_q)));
    let end = u32(clamp(lengths_q[at + p.lengths_q.row], 0, i32(p.total_q)));
    if (n >= begin && n < end) {
      first = begin;
    }
  }
  info[p.key_ranges_at + n] = n - first;
}
