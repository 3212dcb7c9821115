// bias_gradient: dbias, the sum of dS over what the bias broadcasts, recomputed from q, k, v, dout and
// statistics; two products more, but no atomics, so that any shape of bias has a fixed order.
//
// Grid: x tiles of keys, y tiles of queries, z (part, entry, head), the head fastest; what dbias is
// broadcast along (dbias_full) counts once. A workgroup adds up the tiles that share its place, in
// the order keys, queries, heads, entries; part n has split_tiles of them from n * split_tiles on.
// Entries and heads are those of the chunk (`batch`, `heads`), z begins at part first_split.
// Writes f32 of the bias's own shape at dbias, dbias_part elements from part to part, keys adjacent;
// `accumulate`: adds to what is there. bias_gradient_sum.wgsl adds up parts.
// Roles: ROWS x COLUMNS threads, each with R queries (its number modulo ROWS, in steps of ROWS) and 4
// neighbouring keys of S, dP and the sum, all in registers; rows and columns are added up at the end.
// Workgroup memory, in vectors of 4: a slice of Q or dO and of K or V transposed [SLICE, TILE_KV]; in the
// same place, at the end, sums [TILE_Q, TILE_KV]. Bytes: 16 * (OPERANDS + TILE_Q) + 4 * KEEP_WORDS. R 8, 8 x 8 threads, SLICE 32:
// 14340.

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
@group(0) @binding(4) var<storage, read> dout: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> info: array<u32>;
@group(0) @binding(6) var<storage, read> bias: array<u32>;
@group(0) @binding(7) var<storage, read> mask: array<u32>;
@group(0) @binding(8) var<storage, read_write> dbias: array<f32>;

const kMaxR = 8u;
const kLog2E = 1.44269504;

override TYPE_Q: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_KV: u32 = 0u;
override TYPE_DOUT: u32 = 0u;
override R: u32 = 8u;  // rows of a thread, at most kMaxR
override ROWS: u32 = 8u;
override COLUMNS: u32 = 8u;
override SLICE: u32 = 32u;
override DROPOUT: bool = false;
override OPTIONS: u32 = 2u;  // 0: none that act on scores, 1: softcap or ALiBi alone, 2: any

const KEPT_AT = 0u;  // K and V come anew for each tile
const KEPT_QK = 0u;
const KEPT_VO = 0u;

override THREADS = ROWS * COLUMNS;
override TILE_Q = ROWS * R;
override TILE_KV = COLUMNS * 4u;
override ROWS_STRIDE = SLICE / 4u + 1u;  // of a slice of Q or dO
override COLUMNS_AT = TILE_Q * ROWS_STRIDE;
override PAIRS_STRIDE = COLUMNS + 1u;
override OPERANDS = max(COLUMNS_AT + SLICE * COLUMNS, TILE_Q * PAIRS_STRIDE);
override KEEP_WORDS = select(1u, (TILE_Q / 16u + 1u) * (TILE_KV / 16u + 1u) * 16u, DROPOUT);

var<workgroup> s_operands: array<vec4<f32>, OPERANDS>;
var<workgroup> s_rows: array<vec4<u32>, TILE_Q>;
var<workgroup> s_keep: array<u32, KEEP_WORDS>;

var<private> r_s: array<vec4<f32>, kMaxR>;
var<private> r_tile: array<vec4<f32>, kMaxR>;
var<private> r_bias: array<vec4<u32>, kMaxR>;
var<private> r_mask: array<u32, kMaxR>;
var<private> r_sum: array<vec4<f32>, kMaxR>;

// begin: inputs
// 16 bytes of one of the inputs; `source` is a constant wherever it is called.
fn words_of(source: u32, at: u32) -> vec4<u32> {
  switch source {
    case 0u: { return q[at]; }
    case 1u: { return k[at]; }
    case 2u: { return v[at]; }
    default: { return dout[at]; }
  }
}
// end: inputs

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

// begin: multiply
// r_tile += A B: A the thread's rows, `depth` long, of vectors of 4 neighbouring elements in
// s_operands; B [depth, columns] with 4 columns of the thread.
fn multiply_operands(a: u32, a_stride: u32, b: u32, b_stride: u32, depth: u32) {
  for (var d = 0u; d < depth; d += 4u) {
    let b0 = s_operands[b + d * b_stride];
    let b1 = s_operands[b + (d + 1u) * b_stride];
    let b2 = s_operands[b + (d + 2u) * b_stride];
    let b3 = s_operands[b + (d + 3u) * b_stride];
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      let x = s_operands[a + r * ROWS * a_stride + d / 4u];
      r_tile[r] = fma(vec4(x.x), b0, fma(vec4(x.y), b1, fma(vec4(x.z), b2, fma(vec4(x.w), b3, r_tile[r]))));
    }
  }
}
// end: multiply

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

// begin: mask
fn has_mask() -> bool {
  return p.mask_given != 0u;
}

fn mask_at(word: u32) -> u32 {
  return mask[word];
}
// end: mask

// begin: pair_scores
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
  return ((mask_at(at / 4u) >> (at % 4u * 8u)) & 0xffu) == 0u;
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

// Scores of keys [j, j + 4) from their products with the query, in units of 1 / p.unit, before bias
// and mask. Options that cost a branch where they are not given are no constants, but that there are
// none (OPTIONS): pipelines stay few.
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

// The same with all options; kHidden where the query does not see the key.
fn scores_of(row: Row, j: u32, products: vec4<f32>) -> vec4<f32> {
  var t = scaled(row, j, products);
  let keys = vec4(j, j + 1u, j + 2u, j + 3u);
  var hidden = (keys < vec4(row.low)) | (keys >= vec4(row.high));
  if (OPTIONS == 2u && row.low < row.high) {
    // Of keys out of range the nearest one in it: loads that exist, and wait for no branch.
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

// Bytes of mask of 4 neighbouring keys.
fn mask_word(at: u32) -> u32 {
  let shift = at % 4u * 8u;
  return (mask_at(at / 4u) >> shift) | (mask_at((at + 3u) / 4u) << ((32u - shift) % 32u));
}

// Elements of bias of 4 neighbouring keys, those of 16 bits in the first two words.
fn bias_words(at: u32) -> vec4<u32> {
  if (p.bias_type == 1u) {
    return vec4(bias[at], bias[at + 1u], bias[at + 2u], bias[at + 3u]);
  }
  let words = vec3(bias[at / 2u], bias[at / 2u + 1u], bias[(at + 3u) / 2u]);
  let odd = (words.xy >> vec2(16u)) | (words.yz << vec2(16u));
  return vec4(select(words.xy, odd, (at & 1u) != 0u), 0u, 0u);
}

// Scores of 4 keys that are all in the query's range, from what r_bias and r_mask hold of row r.
fn scores_within(row: Row, j: u32, products: vec4<f32>, r: u32) -> vec4<f32> {
  var t = scaled(row, j, products);
  if (OPTIONS != 2u) {
    return t;
  }
  var hidden = vec4(false);
  if (p.bias_type != 0u) {
    var bits = r_bias[r];
    if (p.bias_type == 1u) {
      t += bitcast<vec4<f32>>(bits);
      hidden = bits == vec4(0xff800000u);
    } else {
      bits = vec4(bits.x & 0xffffu, bits.x >> 16u, bits.y & 0xffffu, bits.y >> 16u);
      if (p.bias_type == 2u) {
        t += vec4(unpack2x16float(r_bias[r].x), unpack2x16float(r_bias[r].y));
        hidden = bits == vec4(0xfc00u);
      } else {
        t += bitcast<vec4<f32>>(bits << vec4(16u));
        hidden = bits == vec4(0xff80u);
      }
    }
  }
  if (has_mask()) {
    let bytes = vec4(r_mask[r]) & vec4(0xffu, 0xff00u, 0xff0000u, 0xff000000u);
    hidden = hidden | (bytes == vec4(0u));
  }
  return select(t, vec4(kHidden), hidden);
}
// end: pair_scores

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

// begin: products
// Where the rows of an entry's first query and key begin, of a query head and its key head.
struct Starts {
  q: u32,
  k: u32,
  v: u32,
  dout: u32,
}

fn starts_of(e: Entry, b: u32, h: u32) -> Starts {
  let local_b = b - p.first_batch;
  let local_h = h - p.first_head_q;
  let local_kv = h / p.group - p.first_head_kv;
  return Starts(p.q.base + local_b * p.q.batch + e.first_q * p.q.row + local_h * p.q.head,
                p.k.base + local_b * p.k.batch + e.first_kv * p.k.row + local_kv * p.k.head,
                p.v.base + local_b * p.v.batch + e.first_kv * p.v.row + local_kv * p.v.head,
                p.dout.base + local_b * p.dout.batch + e.first_q * p.dout.row + local_h * p.dout.head);
}

fn rows_left(len: u32, first: u32) -> u32 {
  return max(len, first) - first;
}

fn q_rows(at: Starts, e: Entry, first: u32, dim: u32) -> Source {
  return Source(at.q + first * p.q.row, p.q.row, rows_left(e.len_q, first), dim, p.dim_qk);
}

fn dout_rows(at: Starts, e: Entry, first: u32, dim: u32) -> Source {
  return Source(at.dout + first * p.dout.row, p.dout.row, rows_left(e.len_q, first), dim, p.dim_vo);
}

fn k_rows(at: Starts, e: Entry, first: u32, dim: u32) -> Source {
  return Source(at.k + first * p.k.row, p.k.row, rows_left(e.len_kv, first), dim, p.dim_qk);
}

fn v_rows(at: Starts, e: Entry, first: u32, dim: u32) -> Source {
  return Source(at.v + first * p.v.row, p.v.row, rows_left(e.len_kv, first), dim, p.dim_vo);
}

// A slice of K or V as multiply_operands takes it, where the kernel does not keep all of them (KEPT,
// dimensions of it kept from `at` on); says where it is.
fn place_columns(source: u32, x: Source, at: u32, kept: u32, thread: u32) -> u32 {
  if (kept > 0u) {
    return at + x.dim * COLUMNS;
  }
  load_transposed(source, TYPE_KV, x, COLUMNS_AT, TILE_KV, SLICE, thread);
  return COLUMNS_AT;
}

// r_s = Q K^T and r_tile = dO V^T of a tile of pairs. Says whether all of the thread's rows see all of
// its keys; bias and mask of these are loaded while dO V^T is made.
fn multiply_tile(at: Starts, e: Entry, tile: Tile, thread: u32) -> bool {
  let first = tile.i;
  let j = tile.j;
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    r_tile[r] = vec4(0.0);
  }
  for (var slice = 0u; slice * SLICE < p.dim_qk; slice += 1u) {
    workgroupBarrier();  // what the memory held is read
    load_rows(0u, TYPE_Q, q_rows(at, e, first, slice * SLICE), 0u, ROWS_STRIDE, TILE_Q, SLICE, thread);
    let columns = place_columns(1u, k_rows(at, e, j, slice * SLICE), KEPT_AT, KEPT_QK, thread);
    workgroupBarrier();
    multiply_operands(tr * ROWS_STRIDE, ROWS_STRIDE, columns + tc, COLUMNS, SLICE);
  }
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    r_s[r] = r_tile[r];
    r_tile[r] = vec4(0.0);
  }
  let within = is_within(tile, tr);
  if (OPTIONS == 2u && within) {
    load_pairs(tile, tr, tc * 4u);
  }
  for (var slice = 0u; slice * SLICE < p.dim_vo; slice += 1u) {
    workgroupBarrier();
    load_rows(3u, TYPE_DOUT, dout_rows(at, e, first, slice * SLICE), 0u, ROWS_STRIDE, TILE_Q, SLICE, thread);
    let columns = place_columns(2u, v_rows(at, e, j, slice * SLICE), KEPT_AT + KEPT_QK * COLUMNS, KEPT_VO, thread);
    workgroupBarrier();
    multiply_operands(tr * ROWS_STRIDE, ROWS_STRIDE, columns + tc, COLUMNS, SLICE);
  }
  return within;
}
// end: products

// begin: pairs
// Of a tile's queries, {lse, delta} as delta.wgsl wrote them and range_of; no keys past the length.
fn load_stats(e: Entry, h: u32, first: u32, thread: u32) {
  for (var n = thread; n < TILE_Q; n += THREADS) {
    var row = vec4(0u);
    if (first + n < e.len_q) {
      let at = p.stats_at + (h * p.rows + e.first_row + first + n) * 2u;
      row = vec4(info[at], info[at + 1u], range_of(e, first + n));
    }
    s_rows[n] = row;
  }
}

// A tile of pairs: row_of its head's query 0, its first query and key, what dropout keeps of it.
struct Tile {
  head: Row,
  i: u32,
  j: u32,
  keep: KeepTile,
}

// Whether all rows of a thread see all keys of the tile, and bias and mask can be loaded for 4 of them
// at once. After load_stats() and a barrier.
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

// Bias and mask of the thread's pairs.
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

// P with dropout and dS (the gradient of scores) of 4 neighbouring keys of a query.
struct Pairs {
  p: vec4<f32>,
  ds: vec4<f32>,
}

// Of the thread's row r, query n of the tile, and keys from `column` on of it: from products with K and
// with V. `within`: they are in the query's range.
fn pairs_of(tile: Tile, r: u32, n: u32, column: u32, s: vec4<f32>, dp: vec4<f32>, within: bool) -> Pairs {
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
  return Pairs(kept, whole * (gradient - bitcast<f32>(stats.y)));
}
// end: pairs

const kFullKv = 1u;
const kFullQ = 2u;
const kFullHeads = 4u;
const kFullBatch = 8u;

fn full(what: u32) -> bool {
  return (p.dbias_full & what) != 0u;
}

// dS of the thread's pairs to its sums. `within` is a constant wherever it is called.
fn add_ds(tile: Tile, within: bool, thread: u32) {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let n = r * ROWS + thread / COLUMNS;
    r_sum[r] += pairs_of(tile, r, n, thread % COLUMNS * 4u, r_s[r], r_tile[r], within).ds;
  }
}

// dS of the tile of queries from `first` and keys from `j` on, where any of them sees the other.
fn add_tile(b: u32, h: u32, tile: u32, j: u32, thread: u32) {
  let hull = p.tiles_at + (b * p.tiles_q + tile) * 2u;
  if (info[hull] >= j + TILE_KV || info[hull + 1u] <= j) {
    return;
  }
  let e = entry_of(b);
  let first = tile * TILE_Q;
  let at = starts_of(e, b, h);
  var pairs = Tile(row_of(e, b, h, 0u), first, j, KeepTile(0u, 0u, 0u));
  workgroupBarrier();  // the last tile's are read
  load_stats(e, h, first, thread);
  if (DROPOUT) {
    pairs.keep = draw(first, j, TILE_Q, TILE_KV, placed_head(b, h), thread);
  }
  if (multiply_tile(at, e, pairs, thread)) {
    add_ds(pairs, true, thread);
  } else {
    add_ds(pairs, false, thread);
  }
}

// Sums to workgroup memory, those of each row and of each column where dbias is broadcast along them:
// in the first element of a row, in the first row.
fn reduce(thread: u32) {
  workgroupBarrier();  // operands are read
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let n = r * ROWS + thread / COLUMNS;
    s_operands[n * PAIRS_STRIDE + thread % COLUMNS] = r_sum[r];
  }
  workgroupBarrier();
  if (!full(kFullKv)) {
    for (var n = thread; n < TILE_Q; n += THREADS) {
      var sum = vec4(0.0);
      for (var c = 0u; c < COLUMNS; c += 1u) {
        sum += s_operands[n * PAIRS_STRIDE + c];
      }
      s_operands[n * PAIRS_STRIDE] = vec4(sum.x + sum.y + (sum.z + sum.w), 0.0, 0.0, 0.0);
    }
    workgroupBarrier();
  }
  if (!full(kFullQ)) {
    for (var c = thread; c < COLUMNS; c += THREADS) {
      var sum = vec4(0.0);
      for (var n = 0u; n < TILE_Q; n += 1u) {
        sum += s_operands[n * PAIRS_STRIDE + c];
      }
      s_operands[c] = sum;
    }
    workgroupBarrier();
  }
}

@compute @workgroup_size(THREADS)
fn bias_gradient(@builtin(workgroup_id) group: vec3<u32>,
                 @builtin(local_invocation_index) thread: u32) {
  let places_h = select(1u, p.heads, full(kFullHeads));
  let places_b = select(1u, p.batch, full(kFullBatch));
  let place_h = group.z % places_h;
  let place_b = group.z / places_h % places_b;
  let part = p.first_split + group.z / (places_h * places_b);
  let tile_kv = select(0u, p.first_tile_kv + group.x, full(kFullKv));
  let tile_q = select(0u, p.first_tile_q + group.y, full(kFullQ));
  let num_kv = select(p.tiles_kv, 1u, full(kFullKv));
  let num_q = select(p.tiles_q, 1u, full(kFullQ));
  let num_h = select(p.heads, 1u, full(kFullHeads));
  let num_b = select(p.batch, 1u, full(kFullBatch));
  let num = num_kv * num_q * num_h * num_b;

  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    r_sum[r] = vec4(0.0);
  }
  let begin = part * p.split_tiles;
  for (var n = begin; n < min(begin + p.split_tiles, num); n += 1u) {
    let tile = tile_q + n / num_kv % num_q;
    let h = p.first_head_q + place_h + n / (num_kv * num_q) % num_h;
    let b = p.first_batch + place_b + n / (num_kv * num_q * num_h);
    add_tile(b, h, tile, (tile_kv + n % num_kv) * TILE_KV, thread);
  }
  reduce(thread);

  let rows = select(1u, rows_left(p.len_q, tile_q * TILE_Q), full(kFullQ));
  let columns = select(1u, rows_left(p.len_kv, tile_kv * TILE_KV), full(kFullKv));
  let to = p.dbias.base + part * p.dbias_part + place_b * p.dbias.batch + place_h * p.dbias.head +
           tile_q * TILE_Q * p.dbias.row + tile_kv * TILE_KV;
  for (var n = thread; n < TILE_Q * TILE_KV; n += THREADS) {
    let row = n / TILE_KV;
    let column = n % TILE_KV;
    if (row < rows && column < columns) {
      let at = to + row * p.dbias.row + column;
      let sum = s_operands[row * PAIRS_STRIDE + column / 4u][column % 4u];
      dbias[at] = sum + select(0.0, dbias[at], p.accumulate != 0u);
    }
  }
}
