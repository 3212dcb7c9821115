// delta: of each query of each head, {lse, delta} in `info`, as the other kernels of the backward
// take them: delta = dot(dout, o) - dlse, or what the caller gave.
//
// Grid: x eights of queries, y query heads, z batch entries, all of a chunk.
// Roles: 8 rows x 16 threads, each of which adds up every 16th dimension.
// Reads the caller's own views by elements: here Rows count elements of o, dout, lse, dlse and delta.
// Packed lse, dlse and delta have batch 0 as well.
// A row with lse = -inf sees nothing: it gets {kNothing, 0}. kNothing is finite, larger than any
// score of such a row and than a sink, even in units of log2: P is 0.

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
@group(0) @binding(1) var<storage, read> o: array<u32>;
@group(0) @binding(2) var<storage, read> dout: array<u32>;
@group(0) @binding(3) var<storage, read> lse: array<u32>;
@group(0) @binding(4) var<storage, read> dlse: array<u32>;
@group(0) @binding(5) var<storage, read> delta: array<u32>;
@group(0) @binding(6) var<storage, read_write> info: array<u32>;

const kRows = 8u;
const kLanes = 16u;
const kNothing = 2.0e38;

override TYPE_O: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_DOUT: u32 = 0u;
override DLSE: bool = false;   // is given
override DELTA: bool = false;  // is given: o, dout and dlse are not read

var<workgroup> s_sums: array<f32, kRows * kLanes>;

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

fn element(word: u32, at: u32, type_: u32) -> f32 {
  if (type_ == 0u) {
    return bitcast<f32>(word);
  }
  let bits = select(word & 0xffffu, word >> 16u, (at & 1u) != 0u);
  if (type_ == 1u) {
    return unpack2x16float(bits).x;
  }
  return bitcast<f32>(bits << 16u);
}

fn o_element(at: u32) -> f32 {
  return element(o[select(at / 2u, at, TYPE_O == 0u)], at, TYPE_O);
}

fn dout_element(at: u32) -> f32 {
  return element(dout[select(at / 2u, at, TYPE_DOUT == 0u)], at, TYPE_DOUT);
}

fn place_of(rows: Rows, b: u32, h: u32, i: u32) -> u32 {
  return rows.base + b * rows.batch + h * rows.head + i * rows.row;
}

@compute @workgroup_size(kRows * kLanes)
fn write_stats(@builtin(workgroup_id) group: vec3<u32>,
               @builtin(local_invocation_index) thread: u32) {
  let b = p.first_batch + group.z;
  let h = p.first_head_q + group.y;
  let e = entry_of(b);
  let i = (p.first_tile_q + group.x) * kRows + thread / kLanes;
  let row = e.first_q + i;
  var sum = 0.0;
  if (!DELTA && i < e.len_q) {
    let at_o = place_of(p.o, group.z, group.y, row);
    let at_dout = place_of(p.dout, group.z, group.y, row);
    for (var x = thread % kLanes; x < p.dim_vo; x += kLanes) {
      sum = fma(o_element(at_o + x), dout_element(at_dout + x), sum);
    }
  }
  s_sums[thread] = sum;
  workgroupBarrier();
  if (thread % kLanes != 0u || i >= e.len_q) {
    return;
  }
  for (var n = 1u; n < kLanes; n += 1u) {
    sum += s_sums[thread + n];
  }
  if (DLSE) {
    sum -= bitcast<f32>(dlse[place_of(p.dlse, group.z, group.y, row)]);
  }
  if (DELTA) {
    sum = bitcast<f32>(delta[place_of(p.delta, group.z, group.y, row)]);
  }
  let lse_bits = lse[place_of(p.lse, group.z, group.y, row)];
  let nothing = lse_bits == 0xff800000u;
  let at = p.stats_at + (h * p.rows + e.first_row + i) * 2u;
  info[at] = select(lse_bits, bitcast<u32>(kNothing), nothing);
  info[at + 1u] = select(bitcast<u32>(sum), 0u, nothing);
}
