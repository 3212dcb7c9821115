// sink_gradient: dsink_h = -sum over all rows of exp(sink_h - lse) * delta, of the statistics that
// delta.wgsl left. A row that sees no key and has lse = sink_h adds its dlse. The order is fixed.
//
// Grid: x query heads, of a chunk whose entries are first_batch and the `batch - 1` behind it.
// Roles: a thread adds up every 256th row of each entry.
// `accumulate`: adds to what dsink holds. Head h of the chunk is at word dsink.base + h * dsink.head.

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
@group(0) @binding(1) var<storage, read> info: array<u32>;
@group(0) @binding(2) var<storage, read_write> dsink: array<f32>;

const kThreads = 256u;
const kLog2E = 1.44269504;

var<workgroup> s_sums: array<f32, kThreads>;

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

@compute @workgroup_size(kThreads)
fn sink_gradient(@builtin(workgroup_id) group: vec3<u32>,
                 @builtin(local_invocation_index) thread: u32) {
  let h = p.first_head_q + group.x;
  let sink_bits = info[p.sinks_at + h];
  let sink = bitcast<f32>(sink_bits);
  var sum = 0.0;
  if (sink_bits != 0xff800000u) {
    for (var b = p.first_batch; b < p.first_batch + p.batch; b += 1u) {
      let e = entry_of(b);
      for (var i = thread; i < e.len_q; i += kThreads) {
        let at = p.stats_at + (h * p.rows + e.first_row + i) * 2u;
        let lse = bitcast<f32>(info[at]);
        let weight = exp_of((sink - lse) * kLog2E);
        sum = fma(-weight, bitcast<f32>(info[at + 1u]), sum);
      }
    }
  }
  s_sums[thread] = sum;
  for (var rest = kThreads / 2u; rest > 0u; rest /= 2u) {
    workgroupBarrier();
    if (thread < rest) {
      s_sums[thread] += s_sums[thread + rest];
    }
  }
  if (thread == 0u) {
    let at = p.dsink.base + group.x * p.dsink.head;
    dsink[at] = s_sums[0] + select(0.0, dsink[at], p.accumulate != 0u);
  }
}
