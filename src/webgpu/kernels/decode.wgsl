// decode: partial results of few queries against a contiguous or paged cache, split over keys.
//
// Grid: x tiles of ROWS rows (from first_tile_q on), y key heads, z entries * splits, splits first.
// A key head's rows are its queries' heads, those of a query together: row n is head n % group of
// query n / group. A split is the keys [n, n + 1) * split_keys, the first the one in which the
// tile's rows see their first key, so that a row's result does not depend on other entries.
// Roles: LANES threads share a key and its value, 8 dimensions of each, which they load straight into
// registers; UNROLL keys of a thread are under way at once. The lanes' parts of the products meet in
// workgroup memory, where a thread adds those of a key and a row and turns the sum into a score. Each
// group of lanes goes its own way through softmax, in units as in forward.wgsl; at the end the groups
// are merged.
// Workgroup memory, f32: parts [TILE, ROWS, LANES + 1], later [8, THREADS + 4] of o; scores
// [TILE, ROWS], as much again with dropout; {maximum, sum} [GROUPS, ROWS]. With dims of 128, 128
// threads, 4 rows and UNROLL = 4: 9.5 KiB.
// Written: o of a split, normalised, dim_vo words for each split of a row; and its lse, a word for
// each (-inf: no key; its o is then not written).

// begin: rows
// A tensor's rows: element x of row i, head h, entry b is at
// base + b * batch + i * row + h * head + x.
struct Rows {
  base: u32,
  batch: u32,
  row: u32,
  head: u32,
}
// end: rows

// begin: parameters
// One slice of it serves one dispatch. Rows of tensors in units of 16 bytes, of outputs in words,
// of statistics in elements; packed tensors have batch 0 and start at the entry's first row.
struct Parameters {
  q: Rows,
  k: Rows,
  v: Rows,
  dout: Rows,
  o: Rows,
  dq: Rows,
  dk: Rows,
  dv: Rows,
  lse: Rows,
  dlse: Rows,
  delta: Rows,
  dsink: Rows,
  bias: Rows,
  mask: Rows,
  dbias: Rows,
  bias_kv: u32,
  mask_kv: u32,
  dbias_part: u32,  // elements of one part of dbias
  dim_qk: u32,
  dim_vo: u32,
  heads_q: u32,
  group: u32,  // query heads of one key head
  packed: u32,  // 1: queries, 2: keys

  // The chunk: what its first workgroup is in the whole call.
  first_batch: u32,
  first_head_q: u32,
  first_head_kv: u32,
  first_tile_q: u32,
  first_tile_kv: u32,
  tiles_q: u32,  // of the longest entry
  tiles_kv: u32,
  rows: u32,  // of all entries' queries

  // Words of `info` where its parts begin.
  entries_at: u32,
  ranges_at: u32,
  tiles_at: u32,
  keys_at: u32,
  slopes_at: u32,  // 0: no ALiBi
  sinks_at: u32,   // 0: no sinks
  stats_at: u32,
  split_tiles: u32,  // of one split of dbias: tiles of pairs

  scale: f32,
  softcap: f32,  // 0: none
  keep_scale: f32,  // 256 / keep_below
  keep_below: u32,
  seed: vec2<u32>,  // Philox key: seed, high word with that of the offset
  offset: u32,
  accumulate: u32,
  origin: vec4<u32>,  // batch, head, query, key
  origin_heads: u32,
  splits: u32,
  len_q: u32,  // the longest
  len_kv: u32,
  batch: u32,  // entries of the chunk
  heads: u32,  // query heads of the chunk
  first_split: u32,
  dbias_full: u32,  // what dbias is not broadcast along; 1: keys, 2: queries, 4: heads, 8: batch

  // Decode. A paged cache: k.batch and v.batch are from page to page. block_table in words.
  page_size: u32,  // 0: contiguous
  num_pages: u32,
  table_at: u32,
  table_batch: u32,
  table_page: u32,
  split_keys: u32,  // of one split
  bias_type: u32,  // 0: none, 1: f32, 2: f16, 3: bf16
  mask_given: u32,

  unit: f32,      // 1 of a natural score in the units of scores: log2 e; with a bias 1
  to_log2: f32,   // a unit of scores in those of log2: 1; with a bias log2 e
  out_type: u32,  // of o and dq; 0: f32, 1: f16, 2: bf16
  gathered: u32,  // 1: keys and values were put in order; pages only say which of them exist
}
// end: parameters

@group(0) @binding(0) var<uniform> p: Parameters;
@group(0) @binding(1) var<storage, read> q: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> info: array<u32>;
@group(0) @binding(5) var<storage, read> bias: array<u32>;
@group(0) @binding(6) var<storage, read> mask: array<u32>;
@group(0) @binding(7) var<storage, read> block_table: array<u32>;
@group(0) @binding(8) var<storage, read_write> partials: array<u32>;

const kMaxRows = 8u;
const kMaxKeys = 8u;
const kLog2E = 1.44269504;
const kLn2 = 0.69314718;
const kEmpty = 0xff800000u;  // -inf

override TYPE_Q: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_KV: u32 = 0u;
override THREADS: u32 = 128u;
override ROWS: u32 = 4u;      // 1, 2, 4 or 8
override UNROLL: u32 = 4u;    // at most 8
override LANES: u32 = 8u;     // at least both dims / 8; a power of 2, divides THREADS
override DROPOUT: bool = false;

override GROUPS = THREADS / LANES;
override TILE = UNROLL * GROUPS;
override PART_STRIDE = LANES + 1u;
override O_STRIDE = THREADS + 4u;
override PARTS = max(TILE * ROWS * PART_STRIDE, 8u * O_STRIDE);
override KEPT = select(1u, TILE * ROWS, DROPOUT);

var<workgroup> s_parts: array<f32, PARTS>;
var<workgroup> s_scores: array<f32, TILE * ROWS>;
var<workgroup> s_kept: array<f32, KEPT>;
var<workgroup> s_groups: array<vec2<f32>, GROUPS * ROWS>;

// Of row r: elements 2 * r (dimensions 0 to 3 of the lane's) and 2 * r + 1; of key n alike, the
// second only where elements are f32.
var<private> r_q: array<vec4<f32>, 2u * kMaxRows>;
var<private> r_o: array<vec4<f32>, 2u * kMaxRows>;
var<private> r_k: array<vec4<u32>, 2u * kMaxKeys>;
var<private> r_v: array<vec4<u32>, 2u * kMaxKeys>;
var<private> r_page: array<u32, kMaxKeys>;      // of the next tile's keys
var<private> r_at: array<u32, kMaxKeys>;        // where they are
var<private> r_value_at: array<u32, kMaxKeys>;  // where their values are
var<private> r_maximum: array<f32, kMaxRows>;
var<private> r_sum: array<f32, kMaxRows>;

// begin: load
// 16 bytes of one of the inputs; `source` is a constant wherever it is called.
fn words_of(source: u32, at: u32) -> vec4<u32> {
  switch source {
    case 0u: { return q[at]; }
    case 1u: { return k[at]; }
    default: { return v[at]; }
  }
}
// end: load

// begin: halves
// Two 16-bit elements of a word, the first in its low half.
fn halves(word: u32, element: u32) -> vec2<f32> {
  if (element == 1u) {
    return unpack2x16float(word);
  }
  return vec2(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}

struct Eight {
  low: vec4<f32>,
  high: vec4<f32>,
}
// end: halves

// begin: entry
// A batch entry, as prepare.wgsl wrote it.
struct Entry {
  len_q: u32,
  len_kv: u32,
  first_q: u32,   // row of its first query in the tensors, 0 where they are padded
  first_kv: u32,
  first_row: u32,  // of its first query among all entries' (info, stats)
  diag: i32,
}

fn entry_of(b: u32) -> Entry {
  let at = p.entries_at + b * 8u;
  return Entry(info[at], info[at + 1u], info[at + 2u], info[at + 3u], info[at + 4u],
               bitcast<i32>(info[at + 5u]));
}

// The keys [x, y) that causal, window, ranges and lengths leave to a query.
fn range_of(e: Entry, i: u32) -> vec2<u32> {
  let at = p.ranges_at + (e.first_row + i) * 2u;
  return vec2(info[at], info[at + 1u]);
}
// end: entry

// begin: exp
// 2^x, 0 from -200 down; not by max(), in which NaN would get lost.
fn exp_of(x: f32) -> f32 {
  return select(exp2(x), 0.0, x < -200.0);
}
// end: exp

// begin: score
// Stands for a score that is hidden: no score of finite parts has just these bits by design.
const kHidden = -3.3931567e38;

fn exps_of(x: vec4<f32>) -> vec4<f32> {
  return select(exp2(x), vec4(0.0), x < vec4(-200.0));
}

// tanh to about 2 units of rounding (series below 0.55, where the quotient cancels).
fn tanh_of(x: vec4<f32>) -> vec4<f32> {
  let y = x * x;
  let series = x + x * y * (-0.33333333 + y * (0.13333333 + y * (-0.05396825 + y * (0.02186949 +
               y * (-0.00886324 + y * (0.00359213 - y * 0.00145583))))));
  let e = exp2(-2.0 * kLog2E * min(abs(x), vec4(20.0)));
  return select(sign(x) * (1.0 - e) / (1.0 + e), series, abs(x) < vec4(0.55));
}

// An element of bias as f32 and whether it is -inf, which hides.
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

fn masked(at: u32) -> bool {
  return ((mask[at / 4u] >> (at % 4u * 8u)) & 0xffu) == 0u;
}

// Where a query's row of bias and mask begins, its head's slope, the key that it stands at and its
// range.
struct Row {
  bias: u32,
  mask: u32,
  slope: f32,
  at: i32,
  low: u32,
  high: u32,
}

fn row_of(e: Entry, b: u32, h: u32, i: u32) -> Row {
  var row: Row;
  let local_b = b - p.first_batch;
  let local_h = h - p.first_head_q;
  row.bias = p.bias.base + local_b * p.bias.batch + local_h * p.bias.head + i * p.bias.row;
  row.mask = p.mask.base + local_b * p.mask.batch + local_h * p.mask.head + i * p.mask.row;
  row.slope = 0.0;
  if (p.slopes_at != 0u) {
    row.slope = bitcast<f32>(info[p.slopes_at + b * p.heads_q + h]) * p.unit;
  }
  row.at = bitcast<i32>(i) + e.diag;
  row.low = 0u;
  row.high = 0u;
  if (i < e.len_q) {
    let range = range_of(e, i);
    row.low = range.x;
    row.high = range.y;
  }
  return row;
}

// Scores of keys [j, j + 4) from their products with the query, in units of 1 / p.unit;
// kHidden where the query does not see the key. Options that cost a branch where they are not given
// are no constants: pipelines stay few.
fn scores_of(row: Row, j: u32, products: vec4<f32>) -> vec4<f32> {
  var t: vec4<f32>;
  if (p.softcap != 0.0) {
    t = tanh_of(products * (p.scale / p.softcap)) * (p.softcap * p.unit);
  } else {
    t = products * (p.scale * p.unit);
  }
  let keys = vec4(j, j + 1u, j + 2u, j + 3u);
  if (p.slopes_at != 0u) {
    t -= row.slope * vec4<f32>(abs(vec4(row.at) - bitcast<vec4<i32>>(keys)));
  }
  var hidden = (keys < vec4(row.low)) | (keys >= vec4(row.high));
  if ((p.bias_type != 0u || p.mask_given != 0u) && row.low < row.high) {
    // Of keys out of range the nearest one in it: loads that exist, and wait for no branch.
    let seen = clamp(keys, vec4(row.low), vec4(row.high - 1u));
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      if (p.bias_type != 0u) {
        let x = bias_element(row.bias + seen[n] * p.bias_kv);
        t[n] += x.value;
        hidden[n] = hidden[n] | x.hides;
      }
      if (p.mask_given != 0u) {
        hidden[n] = hidden[n] | masked(row.mask + seen[n] * p.mask_kv);
      }
    }
  }
  return select(t, vec4(kHidden), hidden);
}
// end: score

// begin: multiply_high
fn multiply_high(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let mid = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (mid & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (mid >> 16u) + (other >> 16u);
}
// end: multiply_high

// begin: philox
// Philox4x32-10 (Salmon et al. 2011, section 4.3).
fn philox(first: vec4<u32>) -> vec4<u32> {
  var x = first;
  var key = p.seed;
  for (var round = 0u; round < 10u; round += 1u) {
    x = vec4(multiply_high(0xCD9E8D57u, x.z) ^ x.y ^ key.x, 0xCD9E8D57u * x.z,
             multiply_high(0xD2511F53u, x.x) ^ x.w ^ key.y, 0xD2511F53u * x.x);
    key += vec2(0x9E3779B9u, 0xBB67AE85u);
  }
  return x;
}

// Which of the 16 pairs of a call are kept: bit n is that of byte n.
fn keep_bits(i: u32, j: u32, head: u32) -> u32 {
  let bytes = philox(vec4(i, j, head, p.offset));
  var bits = 0u;
  for (var n = 0u; n < 16u; n += 1u) {
    let byte = (bytes[n / 4u] >> (n % 4u * 8u)) & 0xffu;
    bits |= select(0u, 1u << n, byte < p.keep_below);
  }
  return bits;
}

fn placed_head(b: u32, h: u32) -> u32 {
  return (p.origin.x + b) * p.origin_heads + p.origin.y + h;
}
// end: philox

// begin: log
// ln x for x > 0: 2^n (1 + f) / (1 - f), and the series of atanh. Infinity and NaN are themselves.
fn log_of(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if (bits >= 0x7f800000u) {
    return x;
  }
  var n = f32(bits >> 23u) - 127.0;
  var m = bitcast<f32>((bits & 0x007fffffu) | 0x3f800000u);
  if (m > 1.41421356) {
    m *= 0.5;
    n += 1.0;
  }
  let f = (m - 1.0) / (m + 1.0);
  let y = f * f;
  let series = 1.0 + y * (0.33333333 + y * (0.2 + y * (0.14285714 + y * 0.11111111)));
  return n * kLn2 + 2.0 * f * series;
}
// end: log

// begin: cache
fn eight_of(low: vec4<u32>, high: vec4<u32>, element: u32) -> Eight {
  if (element == 0u) {
    return Eight(bitcast<vec4<f32>>(low), bitcast<vec4<f32>>(high));
  }
  return Eight(vec4(halves(low.x, element), halves(low.y, element)),
               vec4(halves(low.z, element), halves(low.w, element)));
}

// Words of elements [dim, dim + 8) of a row: the first four, and for f32 the others; 0 from `dims` on.
fn low_words(source: u32, element: u32, row: u32, dim: u32, dims: u32) -> vec4<u32> {
  if (dim < dims) {
    return words_of(source, row + dim / select(8u, 4u, element == 0u));
  }
  return vec4(0u);
}

fn high_words(source: u32, element: u32, row: u32, dim: u32, dims: u32) -> vec4<u32> {
  if (element == 0u && dim + 4u < dims) {
    return words_of(source, row + dim / 4u + 1u);
  }
  return vec4(0u);
}

// What all keys of a workgroup have in common.
struct Cache {
  b: u32,
  k: u32,  // where key 0 is, or key 0 of page 0
  v: u32,
  end: u32,
}

// Whether keys and values lie in pages.
fn in_pages() -> bool {
  return p.page_size != 0u && p.gathered == 0u;
}

// j / p.page_size and what is left of it, without a division where they are bits of j.
fn page_and_slot(j: u32) -> vec2<u32> {
  let last = p.page_size - 1u;
  if ((p.page_size & last) == 0u) {
    return vec2(j >> firstTrailingBit(p.page_size), j & last);
  }
  let page = j / p.page_size;
  return vec2(page, j - page * p.page_size);
}

fn load_q(e: Entry, start: u32, tile: u32, lane: u32) {
  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
    let i = (tile * ROWS + r) / p.group;
    let head = (tile * ROWS + r) % p.group;
    var words = array<vec4<u32>, 2>(vec4(0u), vec4(0u));
    if (i < e.len_q) {
      let row = start + i * p.q.row + head * p.q.head;
      words[0] = low_words(0u, TYPE_Q, row, lane * 8u, p.dim_qk);
      words[1] = high_words(0u, TYPE_Q, row, lane * 8u, p.dim_qk);
    }
    let x = eight_of(words[0], words[1], TYPE_Q);
    r_q[2u * r] = x.low;
    r_q[2u * r + 1u] = x.high;
  }
}

// The pages of the thread's keys of the tile from `first` on, on their way ahead of load_k.
fn find(cache: Cache, first: u32, thread: u32) {
  if (p.page_size == 0u) {
    return;
  }
  let table = p.table_at + cache.b * p.table_batch;
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let j = min(first + thread / LANES + n * GROUPS, cache.end - 1u);
    r_page[n] = block_table[table + page_and_slot(j).x * p.table_page];
  }
}

// Starts to load the thread's keys of the tile from `first` on, whose pages were asked for, and
// notes where their values are. Gives a bit for each key that exists; of others some words that do.
// Dimensions that keys don't have stay 0, as r_k begins.
fn load_k(cache: Cache, first: u32, thread: u32) -> u32 {
  let part = thread % LANES * select(1u, 2u, TYPE_KV == 0u);  // of a row, in units of 16 bytes
  let start_k = cache.k + part;
  let start_v = cache.v + part;
  var there = 0u;
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let j = first + thread / LANES + n * GROUPS;
    there |= select(0u, 1u << n, j < cache.end && (p.page_size == 0u || r_page[n] < p.num_pages));
    r_at[n] = start_k + j * p.k.row;
    r_value_at[n] = start_v + j * p.v.row;
  }
  if (in_pages()) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      let slot = page_and_slot(first + thread / LANES + n * GROUPS).y;
      r_at[n] = start_k + r_page[n] * p.k.batch + slot * p.k.row;
      r_value_at[n] = start_v + r_page[n] * p.v.batch + slot * p.v.row;
    }
  }
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let exists = (there & (1u << n)) != 0u;
    r_at[n] = select(0u, r_at[n], exists);
    r_value_at[n] = select(0u, r_value_at[n], exists);
  }
  let dim = thread % LANES * 8u;
  if (dim < p.dim_qk) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      r_k[2u * n] = k[r_at[n]];
    }
  }
  if (TYPE_KV == 0u && dim + 4u < p.dim_qk) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      r_k[2u * n + 1u] = k[r_at[n] + 1u];
    }
  }
  return there;
}

// Starts to load the values of the keys that load_k was asked for last.
fn load_v(thread: u32) {
  let dim = thread % LANES * 8u;
  if (dim < p.dim_vo) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      r_v[2u * n] = v[r_value_at[n]];
    }
  }
  if (TYPE_KV == 0u && dim + 4u < p.dim_vo) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      r_v[2u * n + 1u] = v[r_value_at[n] + 1u];
    }
  }
}

// Values of keys that don't exist: 0 times what memory holds there could be NaN.
fn clear_v(there: u32) {
  if (there == (1u << UNROLL) - 1u) {
    return;
  }
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    if ((there & (1u << n)) == 0u) {
      r_v[2u * n] = vec4(0u);
      r_v[2u * n + 1u] = vec4(0u);
    }
  }
}
// end: cache

// begin: kept
// Whether a pair is kept, as draw and keeps of forward.wgsl say, one pair a call.
fn kept(b: u32, h: u32, local_i: u32, local_j: u32) -> bool {
  let i = p.origin.z + local_i;
  let j = p.origin.w + local_j;
  let bit = (i / 8u % 2u) * 8u + (i % 2u) * 4u + (j / 8u % 2u) * 2u + j % 2u;
  return ((keep_bits(i & ~9u, j & ~9u, placed_head(b, h)) >> bit) & 1u) != 0u;
}

// end: kept

// The thread's parts of the products of its keys with all rows. Behind those of a key's row 0,
// where keys have pages: whether it exists.
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

// Scores of the tile's pairs that the thread owns: all of row thread % ROWS.
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
    var one = row;  // the row, but this key alone
    one.high = select(0u, min(row.high, j + 1u), exists);
    s_scores[n] = scores_of(one, j, vec4(product)).x;
    if (DROPOUT) {
      s_kept[n] = select(0.0, p.keep_scale, kept(cache.b, h, i, j));
    }
  }
}

// The group's o and sums go on by the values that the thread has.
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

// begin: weigh
// Turns a row's {maximum, sum} of each group into the group's weight; gives the bits of lse.
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
  if (!(sum == 0.0)) {  // also of NaN
    for (var n = 0u; n < GROUPS; n += 1u) {
      s_groups[n * ROWS + r].x /= sum;
    }
    return bitcast<u32>(largest * (1.0 / p.unit) + log_of(sum));
  }
  return kEmpty;
}

// What a workgroup does: rows of a tile, keys [first, end) of its split.
struct Part {
  e: Entry,
  cache: Cache,
  tile: u32,
  split: u32,
  local_b: u32,
  local_q: u32,  // the first of its heads
  q: u32,        // where query 0 of this head begins
  first: u32,
}

fn part_of(group: vec3<u32>) -> Part {
  let tile = p.first_tile_q + group.x;
  let local_b = group.z / p.splits;
  let split = group.z % p.splits;
  let b = p.first_batch + local_b;
  let e = entry_of(b);

  // The keys that some row sees, and of these the split's.
  var low = 0xffffffffu;
  var high = 0u;
  for (var i = tile * ROWS / p.group; i < min((tile * ROWS + ROWS - 1u) / p.group + 1u, e.len_q); i += 1u) {
    let range = range_of(e, i);
    if (range.x < range.y) {
      low = min(low, range.x);
      high = max(high, range.y);
    }
  }
  low = min(low, high);
  let begin = (low / p.split_keys + split) * p.split_keys;
  let end = min(high, begin + p.split_keys);
  let first = begin + (max(low, begin) - begin) / TILE * TILE;

  let local_q = (p.first_head_kv + group.y) * p.group - p.first_head_q;
  let q = p.q.base + local_b * p.q.batch + e.first_q * p.q.row + local_q * p.q.head;
  let entry_k = select(local_b * p.k.batch + e.first_kv * p.k.row, 0u, in_pages());
  let entry_v = select(local_b * p.v.batch + e.first_kv * p.v.row, 0u, in_pages());
  let cache = Cache(b, p.k.base + entry_k + group.y * p.k.head,
                    p.v.base + entry_v + group.y * p.v.head, end);
  return Part(e, cache, tile, split, local_b, local_q, q, first);
}

// A row of the tile, by its number there.
struct TileRow {
  i: u32,
  head: u32,  // from local_q on
}

fn tile_row(x: Part, n: u32) -> TileRow {
  return TileRow((x.tile * ROWS + n) / p.group, (x.tile * ROWS + n) % p.group);
}

// Merges what the groups of lanes have in s_groups and r_o. `own` is the row whose lse a thread
// writes, of the first ROWS threads each another one.
fn finish(x: Part, own: u32, thread: u32) {
  workgroupBarrier();
  if (thread < ROWS) {
    let lse = weigh(own);
    let row = tile_row(x, own);
    if (row.i < x.e.len_q) {
      partials[p.lse.base + x.local_b * p.lse.batch + (x.local_q + row.head) * p.lse.head +
               (x.e.first_q + row.i) * p.lse.row + x.split] = lse;
    }
  }
  if (x.first >= x.cache.end) {
    return;
  }
  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
    workgroupBarrier();  // parts, or the last row's, are read; weights are there
    let weight = s_groups[thread / LANES * ROWS + r].x;
    for (var c = 0u; c < 4u; c += 1u) {  // unrolled
      s_parts[c * O_STRIDE + thread] = r_o[2u * r][c] * weight;
      s_parts[(c + 4u) * O_STRIDE + thread] = r_o[2u * r + 1u][c] * weight;
    }
    workgroupBarrier();
    let row = tile_row(x, r);
    let at = p.o.base + x.local_b * p.o.batch + (x.local_q + row.head) * p.o.head +
             (x.e.first_q + row.i) * p.o.row;
    for (var dim = thread; dim < p.dim_vo && row.i < x.e.len_q; dim += THREADS) {
      var sum = 0.0;
      for (var n = 0u; n < GROUPS; n += 1u) {
        sum += s_parts[dim % 8u * O_STRIDE + n * LANES + dim / 8u];
      }
      partials[at + x.split * p.dim_vo + dim] = bitcast<u32>(sum);
    }
  }
}
// end: weigh

@compute @workgroup_size(THREADS)
fn decode(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let x = part_of(group);
  if (x.tile * ROWS / p.group >= x.e.len_q) {
    return;
  }
  let own = tile_row(x, thread % ROWS);
  let h = p.first_head_q + x.local_q + own.head;
  let row = row_of(x.e, x.cache.b, h, own.i);
  load_q(x.e, x.q, x.tile, thread % LANES);
  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
    r_o[2u * r] = vec4(0.0);
    r_o[2u * r + 1u] = vec4(0.0);
    r_maximum[r] = -3.4028234e38;
    r_sum[r] = 0.0;
  }

  // Registers that a tile's keys or values were in take the next tile's as soon as they are free, so
  // that either are on their way all the time; pages are a tile further ahead.
  var there = 0u;
  if (x.first < x.cache.end) {
    find(x.cache, x.first, thread);
    there = load_k(x.cache, x.first, thread);
    find(x.cache, x.first + TILE, thread);
    load_v(thread);
  }
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
