// forward: o and lse of a tile of queries of one head, by online softmax over tiles of keys.
//
// Grid: tiles of queries, query heads and batch entries of a chunk. Workgroups take the last tiles
// first, of all heads and entries: with a causal diagonal they are the longest.
// Roles: ROWS x COLUMNS threads. A thread has 8 queries, two times 4 neighbours, and KEYS times 4
// neighbouring keys: their scores and probabilities stay in its registers, with the running maximum
// of its queries and the sum over its own keys; and of o the same queries and BLOCKS_VO times 4
// neighbouring dimensions.
// Products are sums of outer products, so both operands lie with the index that is summed over
// first, in vectors of 4 neighbours: 2 vectors of queries and KEYS (BLOCKS_VO) of keys (dimensions)
// for 32 * KEYS (BLOCKS_VO) multiplications and additions.
// Workgroup memory, in vectors of 4: Q transposed, a slice of it or all of it [dims, TILE_Q]; one
// after the other a slice of K transposed [SLICE, TILE_KV] and DEPTH keys of V [DEPTH, dims], in place
// of Q too unless all of it is kept; probabilities transposed [TILE_KV, TILE_Q]; maxima of each thread's keys.
// What is multiplied next is on its way from memory, in registers, during a product.
// Softmax (Milakov, Gimelshein 2018, algorithm 3): units of log2 without a bias; with one natural
// units, in which no finite bias overflows.

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
@group(0) @binding(7) var<storage, read_write> o: array<u32>;
@group(0) @binding(8) var<storage, read_write> lse: array<u32>;

const R = 8u;  // queries of a thread
const kMaxKeys = 2u;    // KEYS at most
const kMaxBlocks = 4u;  // BLOCKS_VO at most
const kLog2E = 1.44269504;
const kLn2 = 0.69314718;
const kLowest = -3.4028234e38;
const kSlack = 8.0;  // in units of log2, that a maximum may stay behind

override TYPE_Q: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_KV: u32 = 0u;
override ROWS: u32 = 8u;  // a power of 2
override COLUMNS: u32 = 8u;  // a multiple of 8
override KEYS: u32 = 2u;
override SLICE: u32 = 32u;
override Q_SLICES: u32 = 0u;  // those of Q, all of which stay in workgroup memory; 0: one at a time
override DEPTH: u32 = 32u;    // a multiple of 4
override BLOCKS_VO: u32 = 2u;
override DROPOUT: bool = false;
override OPTIONS: u32 = 2u;  // 0: none that act on scores, 1: softcap or ALiBi alone, 2: any

override THREADS = ROWS * COLUMNS;
override TILE_Q = ROWS * 8u;
override TILE_KV = COLUMNS * 4u * KEYS;
override Q_STRIDE = ROWS * 2u;
override K_STRIDE = COLUMNS * KEYS;
override V_STRIDE = COLUMNS * BLOCKS_VO;
override KEEP_Q = Q_SLICES != 0u;
override K_AT = max(Q_SLICES, 1u) * SLICE * Q_STRIDE;
override V_AT = select(0u, K_AT, KEEP_Q);
override OPERANDS = max(K_AT + SLICE * K_STRIDE, V_AT + DEPTH * V_STRIDE);
override ITEMS_K = K_STRIDE * (SLICE / 8u);
override ITEMS_QK = ITEMS_K + select(Q_STRIDE * (SLICE / 8u), 0u, KEEP_Q);
override ITEMS_V = DEPTH * V_STRIDE / 2u;
override ROUNDS_QK = (ITEMS_QK + THREADS - 1u) / THREADS;  // 2 at most
override ROUNDS_V = (ITEMS_V + THREADS - 1u) / THREADS;    // 8 at most
override SWIZZLE = min(ROWS, 8u) - 1u;
override KEEP_WORDS = select(1u, (TILE_Q / 16u + 1u) * (TILE_KV / 16u + 1u) * 16u, DROPOUT);

var<workgroup> s_operands: array<vec4<f32>, OPERANDS>;
var<workgroup> s_p: array<vec4<f32>, TILE_KV * Q_STRIDE>;
var<workgroup> s_part: array<vec4<f32>, COLUMNS * Q_STRIDE>;
var<workgroup> s_grown: array<atomic<u32>, 2>;
var<workgroup> s_range: array<vec2<u32>, TILE_Q>;
var<workgroup> s_keep: array<u32, KEEP_WORDS>;

var<private> r_s: array<vec4<f32>, R * kMaxKeys>;    // [query][4 keys]
var<private> r_o: array<vec4<f32>, R * kMaxBlocks>;  // [query][4 dimensions]
var<private> r_max: array<vec4<f32>, 2>;             // [4 queries]
var<private> r_sum: array<vec4<f32>, 2>;
var<private> r_next: array<vec4<u32>, 16>;           // on its way from memory

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

// begin: eight
// Elements [dim, dim + 8) of the row that begins at `row`; 0 from `dims` on.
fn eight(source: u32, element: u32, row: u32, dim: u32, dims: u32) -> Eight {
  var x = Eight(vec4(0.0), vec4(0.0));
  if (dim < dims) {
    if (element == 0u) {
      x.low = bitcast<vec4<f32>>(words_of(source, row + dim / 4u));
      if (dim + 4u < dims) {
        x.high = bitcast<vec4<f32>>(words_of(source, row + dim / 4u + 1u));
      }
    } else {
      let words = words_of(source, row + dim / 8u);
      x.low = vec4(halves(words.x, element), halves(words.y, element));
      x.high = vec4(halves(words.z, element), halves(words.w, element));
    }
  }
  return x;
}
// end: eight

// begin: load_rows
// Rows of a tensor as a tile is loaded from: the first, how far apart, how many there are; the
// dimensions [dim, dims) of them.
struct Source {
  row: u32,
  step: u32,
  valid: u32,
  dim: u32,
  dims: u32,
}

// Rows and dimensions that do not exist are 0. By all threads.
fn load_rows(source: u32, element: u32, x: Source, at: u32, stride: u32, rows: u32, dims: u32,
             thread: u32) {
  for (var n = thread; n < rows * (dims / 8u); n += THREADS) {
    let row = n / (dims / 8u);
    let dim = n % (dims / 8u) * 8u;
    var values = Eight(vec4(0.0), vec4(0.0));
    if (row < x.valid) {
      values = eight(source, element, x.row + row * x.step, x.dim + dim, x.dims);
    }
    s_operands[at + row * stride + dim / 4u] = values.low;
    s_operands[at + row * stride + dim / 4u + 1u] = values.high;
  }
}

// The same, transposed: [dims, rows / 4] of vectors of 4 neighbouring rows.
fn load_transposed(source: u32, element: u32, x: Source, at: u32, rows: u32, dims: u32,
                   thread: u32) {
  let quads = rows / 4u;
  for (var n = thread; n < quads * (dims / 8u); n += THREADS) {
    let quad = n % quads;
    let dim = n / quads * 8u;
    var low = mat4x4<f32>();
    var high = mat4x4<f32>();
    for (var i = 0u; i < 4u; i += 1u) {  // unrolled
      if (quad * 4u + i < x.valid) {
        let row = x.row + (quad * 4u + i) * x.step;
        let values = eight(source, element, row, x.dim + dim, x.dims);
        low[i] = values.low;
        high[i] = values.high;
      }
    }
    low = transpose(low);
    high = transpose(high);
    for (var i = 0u; i < 4u; i += 1u) {  // unrolled
      s_operands[at + (dim + i) * quads + quad] = low[i];
      s_operands[at + (dim + 4u + i) * quads + quad] = high[i];
    }
  }
}
// end: load_rows

// r_s += A^T B: A [SLICE, TILE_Q], B [SLICE, TILE_KV], of the thread's first vector in each.
fn multiply_scores(a: u32, b: u32) {
  for (var d = 0u; d < SLICE; d += 1u) {
    let low = s_operands[a + d * Q_STRIDE];
    let high = s_operands[a + d * Q_STRIDE + ROWS];
    for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
      let x = s_operands[b + d * K_STRIDE + c * COLUMNS];
      for (var n = 0u; n < 4u; n += 1u) {  // unrolled
        r_s[n * kMaxKeys + c] = fma(vec4(low[n]), x, r_s[n * kMaxKeys + c]);
        r_s[(n + 4u) * kMaxKeys + c] = fma(vec4(high[n]), x, r_s[(n + 4u) * kMaxKeys + c]);
      }
    }
  }
}

// r_o += P V of DEPTH keys from `key` on; the vectors of probabilities lie where store_p put them.
fn multiply_values(key: u32, tr: u32, tc: u32) {
  for (var d = 0u; d < DEPTH; d += 4u) {
    let a = (key + d) * Q_STRIDE + (tr ^ (((key + d) / 4u) & SWIZZLE));
    for (var i = 0u; i < 4u; i += 1u) {  // unrolled
      let low = s_p[a + i * Q_STRIDE];
      let high = s_p[a + i * Q_STRIDE + ROWS];
      for (var c = 0u; c < BLOCKS_VO; c += 1u) {  // unrolled to 4
        let x = s_operands[V_AT + (d + i) * V_STRIDE + c * COLUMNS + tc];
        for (var n = 0u; n < 4u; n += 1u) {  // unrolled
          r_o[n * kMaxBlocks + c] = fma(vec4(low[n]), x, r_o[n * kMaxBlocks + c]);
          r_o[(n + 4u) * kMaxBlocks + c] = fma(vec4(high[n]), x, r_o[(n + 4u) * kMaxBlocks + c]);
        }
      }
    }
  }
}

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

// Stands for a score that is hidden: no score of finite parts has just these bits by design.
const kHidden = -3.3931567e38;

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

// begin: draw
// Blocks of 16 x 16 placed pairs that a tile of `rows` x `columns` from (i, j) on touches.
struct KeepTile {
  i: u32,
  j: u32,
  wide: u32,
}

// Draws for the tile: a word of s_keep for each call, [block of rows][block of columns][bits 1, 2
// of i][bits 1, 2 of j]. By all threads.
fn draw(first_i: u32, first_j: u32, rows: u32, columns: u32, head: u32, thread: u32) -> KeepTile {
  let i = p.origin.z + first_i;
  let j = p.origin.w + first_j;
  let tile = KeepTile(i / 16u, j / 16u, (j + columns - 1u) / 16u - j / 16u + 1u);
  let high = (i + rows - 1u) / 16u - i / 16u + 1u;
  for (var n = thread; n < high * tile.wide * 16u; n += THREADS) {
    let block_i = tile.i + n / 16u / tile.wide;
    let block_j = tile.j + n / 16u % tile.wide;
    s_keep[n] = keep_bits(block_i * 16u + (n / 4u % 4u) * 2u, block_j * 16u + (n % 4u) * 2u, head);
  }
  return tile;
}

fn keeps(tile: KeepTile, first_i: u32, first_j: u32) -> bool {
  let i = p.origin.z + first_i;
  let j = p.origin.w + first_j;
  let block = (i / 16u - tile.i) * tile.wide + j / 16u - tile.j;
  let word = s_keep[block * 16u + (i / 2u % 4u) * 4u + j / 2u % 4u];
  let bit = (i / 8u % 2u) * 8u + (i % 2u) * 4u + (j / 8u % 2u) * 2u + j % 2u;
  return ((word >> bit) & 1u) != 0u;
}
// end: draw

// begin: bf16
// Nearest even.
fn bf16_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (bits >> 16u) | 0x40u;
  }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
// end: bf16

// begin: packed_pair
// f16 by the language's own conversion.
fn packed_pair(x: vec2<f32>, element: u32) -> u32 {
  if (element == 1u) {
    return pack2x16float(x);
  }
  return bf16_bits(x.x) | (bf16_bits(x.y) << 16u);
}
// end: packed_pair

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

// Two loads of 16 bytes, the second of f32 alone, of elements [dim, dim + 8) of a row; from `dims` on
// of the last ones. Loads wait for no branch, and words() makes 0 of what does not exist.
fn fetch_eight(source: u32, element: u32, row: u32, dim: u32, dims: u32, to: u32) {
  if (element == 0u) {
    let last = (dims - 1u) / 4u;
    r_next[to] = words_of(source, row + min(dim / 4u, last));
    r_next[to + 1u] = words_of(source, row + min(dim / 4u + 1u, last));
  } else {
    r_next[to] = words_of(source, row + min(dim / 8u, (dims - 1u) / 8u));
  }
}

// They as f32; `exists`: of the row.
fn fetched_eight(element: u32, dim: u32, dims: u32, exists: bool, at: u32) -> Eight {
  let low = select(vec4(0u), r_next[at], exists && dim < dims);
  if (element == 0u) {
    let high = select(vec4(0u), r_next[at + 1u], exists && dim + 4u < dims);
    return Eight(bitcast<vec4<f32>>(low), bitcast<vec4<f32>>(high));
  }
  return Eight(vec4(halves(low.x, element), halves(low.y, element)),
               vec4(halves(low.z, element), halves(low.w, element)));
}

// Of the rows of Q or of K that a thread stores transposed: 4 neighbouring rows, 8 dimensions. Past
// the last row it comes again: no query sees that key, and nothing is made of that query.
fn fetch_quad(source: u32, element: u32, x: Source, quad: u32, round: u32) {
  for (var i = 0u; i < 4u; i += 1u) {  // unrolled
    fetch_eight(source, element, x.row + min(quad * 4u + i, x.valid - 1u) * x.step, x.dim, x.dims,
                round * 8u + i * 2u);
  }
}

fn put_quad(element: u32, dim: u32, at: u32, stride: u32, round: u32) {
  var low = mat4x4<f32>();
  var high = mat4x4<f32>();
  for (var i = 0u; i < 4u; i += 1u) {  // unrolled
    let values = fetched_eight(element, dim, p.dim_qk, true, round * 8u + i * 2u);
    low[i] = values.low;
    high[i] = values.high;
  }
  low = transpose(low);
  high = transpose(high);
  for (var i = 0u; i < 4u; i += 1u) {  // unrolled
    s_operands[at + i * stride] = low[i];
    s_operands[at + (4u + i) * stride] = high[i];
  }
}

// Where the rows of a workgroup's queries and of its head's keys begin.
struct Place {
  q: u32,
  k: u32,
  v: u32,
  first: u32,  // query
  len_q: u32,
  len_kv: u32,
}

// A slice of K, of keys from j on, and of Q unless all of it is kept.
fn fetch_slice(x: Place, j: u32, slice: u32, thread: u32) {
  for (var n = 0u; n < ROUNDS_QK; n += 1u) {  // unrolled to 2
    let item = thread + n * THREADS;
    if (item < ITEMS_K) {
      let dim = slice * SLICE + item / K_STRIDE * 8u;
      fetch_quad(1u, TYPE_KV, Source(x.k + j * p.k.row, p.k.row, x.len_kv - j, dim, p.dim_qk),
                 item % K_STRIDE, n);
    } else if (item < ITEMS_QK) {
      let dim = slice * SLICE + (item - ITEMS_K) / Q_STRIDE * 8u;
      let valid = max(x.len_q, x.first) - x.first;
      fetch_quad(0u, TYPE_Q, Source(x.q + x.first * p.q.row, p.q.row, valid, dim, p.dim_qk),
                 (item - ITEMS_K) % Q_STRIDE, n);
    }
  }
}

fn put_slice(slice: u32, thread: u32) {
  for (var n = 0u; n < ROUNDS_QK; n += 1u) {  // unrolled to 2
    let item = thread + n * THREADS;
    if (item < ITEMS_K) {
      let dim = item / K_STRIDE * 8u;
      put_quad(TYPE_KV, slice * SLICE + dim, K_AT + dim * K_STRIDE + item % K_STRIDE, K_STRIDE, n);
    } else if (item < ITEMS_QK) {
      let dim = (item - ITEMS_K) / Q_STRIDE * 8u;
      put_quad(TYPE_Q, slice * SLICE + dim, dim * Q_STRIDE + (item - ITEMS_K) % Q_STRIDE, Q_STRIDE, n);
    }
  }
}

// DEPTH keys of V from j on.
fn fetch_values(x: Place, j: u32, thread: u32) {
  for (var n = 0u; n < ROUNDS_V; n += 1u) {  // unrolled to 8
    let item = thread + n * THREADS;
    let key = min(j + item / (V_STRIDE / 2u), x.len_kv - 1u);
    fetch_eight(2u, TYPE_KV, x.v + key * p.v.row, item % (V_STRIDE / 2u) * 8u, p.dim_vo, n * 2u);
  }
}

fn put_values(x: Place, j: u32, thread: u32) {
  for (var n = 0u; n < ROUNDS_V; n += 1u) {  // unrolled to 8
    let item = thread + n * THREADS;
    let exists = j + item / (V_STRIDE / 2u) < x.len_kv;
    let values = fetched_eight(TYPE_KV, item % (V_STRIDE / 2u) * 8u, p.dim_vo, exists, n * 2u);
    if (item < ITEMS_V) {
      s_operands[V_AT + item * 2u] = values.low;
      s_operands[V_AT + item * 2u + 1u] = values.high;
    }
  }
}

// What the scores of a workgroup's pairs need beside products.
struct Scores {
  bias: u32,  // where pair (0, 0) is
  mask: u32,
  slope: f32,
  at: i32,  // the key that query 0 stands at
  last_q: u32,
  last_kv: u32,
  inside: vec2<u32>,  // keys that all queries of the thread see, but for bias and mask
}

// The number within the tile of query r of a thread.
fn row_of(r: u32, tr: u32) -> u32 {
  return (r / 4u * ROWS + tr) * 4u + r % 4u;
}

// Bias and mask: all of a thread's words are loaded before the first is looked at, by addresses that
// exist (of queries and keys past the last, the last) and without branches between them.
fn elements_of(start: u32, step: u32, step_kv: u32, x: Scores, i: u32, key: u32) -> vec4<u32> {
  let keys = min(vec4(key, key + 1u, key + 2u, key + 3u), vec4(x.last_kv));
  return vec4(start + min(i, x.last_q) * step) + keys * step_kv;
}

// Adds 4 biases, the bits of f32 or those of 16-bit elements; -inf hides.
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
    // Neighbours in one word.
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
    // Neighbours in one word.
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

// r_s from products to scores in units of 1 / p.unit; kHidden where the query does not see the key.
// Few constants say which options there are (OPTIONS): pipelines stay few. False: nothing is hidden.
fn make_scores(x: Scores, first: u32, j: u32, tr: u32, tc: u32) -> bool {
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

// s_part: of the thread's queries the largest of the running maximum and of its keys' scores; and
// whether that is far above. `turn` is another one in the tile of keys that follows.
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
  let slack = kSlack / p.to_log2;
  if (any(largest[0] > r_max[0] + slack) || any(largest[1] > r_max[1] + slack)) {
    atomicStore(&s_grown[turn], 1u);
  }
}

// After a barrier. Where no query's maximum grew far, in most tiles, nothing is to be done: what
// exponents are taken from need not be the largest, only near it. A query's results depend on its own
// scores alone.
fn take_maxima(turn: u32, tr: u32) {
  if (atomicLoad(&s_grown[turn]) == 0u) {
    return;
  }
  for (var half = 0u; half < 2u; half += 1u) {  // unrolled
    var largest = s_part[half * ROWS + tr];
    for (var n = 1u; n < COLUMNS; n += 1u) {
      largest = max(largest, s_part[n * Q_STRIDE + half * ROWS + tr]);
    }
    largest = select(r_max[half], largest, largest > r_max[half] + kSlack / p.to_log2);
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

// r_s from scores to probabilities, and their sums.
fn make_probabilities() {
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

fn drop(keep: KeepTile, first: u32, j: u32, tr: u32, tc: u32) {
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

// Probabilities, transposed. Neighbouring threads write rows of different keys: each key's vectors
// are in an order of their own, for else those would lie in the same banks.
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

// Elements [dim, dim + 4) of the row of o at word `at`, as far as they exist.
fn store_o(at: u32, dim: u32, x: vec4<f32>) {
  if (p.out_type == 0u) {
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      if (dim + n < p.dim_vo) {
        o[at + dim + n] = bitcast<u32>(x[n]);
      }
    }
  } else {
    if (dim < p.dim_vo) {
      o[at + dim / 2u] = packed_pair(x.xy, p.out_type);
    }
    if (dim + 2u < p.dim_vo) {
      o[at + dim / 2u + 1u] = packed_pair(x.zw, p.out_type);
    }
  }
}

// What makes o of its sums, for a query, by sum and maximum; `writes` its lse.
fn finish_row(i: u32, e: Entry, h: u32, sum: f32, maximum: f32, lse_at: u32, writes: bool) -> f32 {
  var lse_bits = 0xff800000u;
  var scale = 0.0;
  let some = !(sum == 0.0);  // also of NaN
  let natural = maximum * (1.0 / p.unit);
  if (some) {
    scale = 1.0 / sum;
  }
  if (p.sinks_at != 0u && info[p.sinks_at + h] != 0xff800000u) {
    let sink = bitcast<f32>(info[p.sinks_at + h]);
    if (some) {
      let largest = max(natural, sink);
      let whole = sum * exp_of((natural - largest) * kLog2E);
      let with_sink = whole + exp_of((sink - largest) * kLog2E);
      scale = exp_of((natural - largest) * kLog2E) / with_sink;
      lse_bits = bitcast<u32>(largest + log_of(with_sink));
    } else if (i < e.len_q) {
      lse_bits = bitcast<u32>(sink);
    }
  } else if (some) {
    lse_bits = bitcast<u32>(natural + log_of(sum));
  }
  if (writes) {
    lse[lse_at] = lse_bits;
  }
  return scale;
}

@compute @workgroup_size(THREADS)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
           @builtin(local_invocation_index) thread: u32) {
  let number = group.x + groups.x * (group.y + groups.y * group.z);
  let local_h = number % groups.y;
  let local_b = number / groups.y % groups.z;
  let tile = p.first_tile_q + groups.x - 1u - number / (groups.y * groups.z);
  let b = p.first_batch + local_b;
  let h = p.first_head_q + local_h;
  let e = entry_of(b);
  let first = tile * TILE_Q;
  if (first >= e.len_q && (p.packed & 1u) != 0u) {
    return;
  }
  let local_kv = h / p.group - p.first_head_kv;
  let place = Place(p.q.base + local_b * p.q.batch + e.first_q * p.q.row + local_h * p.q.head,
                    p.k.base + local_b * p.k.batch + e.first_kv * p.k.row + local_kv * p.k.head,
                    p.v.base + local_b * p.v.batch + e.first_kv * p.v.row + local_kv * p.v.head,
                    first, e.len_q, e.len_kv);
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  let tiles_at = p.tiles_at + (b * p.tiles_q + tile) * 2u;
  let low = info[tiles_at];
  let high = info[tiles_at + 1u];

  let slices = select((p.dim_qk + SLICE - 1u) / SLICE, Q_SLICES, KEEP_Q);
  let begin = low / TILE_KV * TILE_KV;
  if (begin < high) {
    fetch_slice(place, begin, 0u, thread);
  }
  if (thread == 0u) {
    atomicStore(&s_grown[0], 0u);
    atomicStore(&s_grown[1], 0u);
  }
  for (var n = thread; n < TILE_Q; n += THREADS) {
    var range = vec2(0u);
    if (first + n < e.len_q) {
      range = range_of(e, first + n);
    }
    s_range[n] = range;
  }
  if (KEEP_Q) {
    let valid = max(e.len_q, first) - first;
    load_transposed(0u, TYPE_Q, Source(place.q + first * p.q.row, p.q.row, valid, 0u, p.dim_qk), 0u,
                    TILE_Q, SLICE * Q_SLICES, thread);
  }
  var scores: Scores;
  scores.bias = p.bias.base + local_b * p.bias.batch + local_h * p.bias.head;
  scores.mask = p.mask.base + local_b * p.mask.batch + local_h * p.mask.head;
  scores.slope = 0.0;
  if (p.slopes_at != 0u) {
    scores.slope = bitcast<f32>(info[p.slopes_at + b * p.heads_q + h]) * p.unit;
  }
  scores.at = e.diag;
  scores.last_q = max(e.len_q, 1u) - 1u;
  scores.last_kv = max(e.len_kv, 1u) - 1u;
  scores.inside = vec2(0u, 0xffffffffu);
  workgroupBarrier();
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let range = s_range[row_of(r, tr)];
    scores.inside = vec2(max(scores.inside.x, range.x), min(scores.inside.y, range.y));
    for (var c = 0u; c < BLOCKS_VO; c += 1u) {  // unrolled to 4
      r_o[r * kMaxBlocks + c] = vec4(0.0);
    }
  }
  for (var half = 0u; half < 2u; half += 1u) {  // unrolled
    r_max[half] = vec4(kLowest);
    r_sum[half] = vec4(0.0);
  }

  for (var j = begin; j < high; j += TILE_KV) {
    var keep: KeepTile;
    if (DROPOUT) {
      keep = draw(first, j, TILE_Q, TILE_KV, placed_head(b, h), thread);
    }
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
        r_s[r * kMaxKeys + c] = vec4(0.0);
      }
    }
    for (var slice = 0u; slice < slices; slice += 1u) {
      workgroupBarrier();  // the last product's operands are read
      put_slice(slice, thread);
      workgroupBarrier();
      if (slice + 1u < slices) {
        fetch_slice(place, j, slice + 1u, thread);
      } else {
        fetch_values(place, j, thread);
      }
      multiply_scores(select(0u, slice * SLICE * Q_STRIDE, KEEP_Q) + tr, K_AT + tc);
    }
    let turn = (j / TILE_KV) & 1u;
    store_maxima(make_scores(scores, first, j, tr, tc), turn, tr, tc);
    workgroupBarrier();  // maxima are there; K and Q are read
    if (thread == 0u) {
      atomicStore(&s_grown[1u - turn], 0u);
    }
    put_values(place, j, thread);
    take_maxima(turn, tr);
    make_probabilities();
    if (DROPOUT) {
      drop(keep, first, j, tr, tc);
    }
    store_p(tr, tc);
    for (var key = 0u; key < TILE_KV; key += DEPTH) {
      if (key > 0u) {
        workgroupBarrier();  // the last keys' values are read
        put_values(place, j + key, thread);
      }
      workgroupBarrier();
      if (key + DEPTH < TILE_KV) {
        fetch_values(place, j + key + DEPTH, thread);
      } else if (j + TILE_KV < high) {
        fetch_slice(place, j + TILE_KV, 0u, thread);
      }
      multiply_values(key, tr, tc);
    }
  }

  // Sums over all keys. Padded tensors also have rows past the length.
  workgroupBarrier();
  s_part[tc * Q_STRIDE + tr] = r_sum[0];
  s_part[tc * Q_STRIDE + ROWS + tr] = r_sum[1];
  workgroupBarrier();
  let end = select(p.len_q, e.len_q, (p.packed & 1u) != 0u);
  for (var half = 0u; half < 2u; half += 1u) {  // unrolled
    var sum = vec4(0.0);
    for (var n = 0u; n < COLUMNS; n += 1u) {
      sum += s_part[n * Q_STRIDE + half * ROWS + tr];
    }
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      let i = first + row_of(half * 4u + n, tr);
      if (i < end) {
        let lse_at = p.lse.base + local_b * p.lse.batch + local_h * p.lse.head + (e.first_q + i) * p.lse.row;
        let scale = finish_row(i, e, h, sum[n], r_max[half][n], lse_at, tc == 0u);
        let at = p.o.base + local_b * p.o.batch + local_h * p.o.head + (e.first_q + i) * p.o.row;
        for (var c = 0u; c < BLOCKS_VO; c += 1u) {  // unrolled to 4
          store_o(at, (c * COLUMNS + tc) * 4u, r_o[(half * 4u + n) * kMaxBlocks + c] * scale);
        }
      }
    }
  }
}
