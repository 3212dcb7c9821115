// Parameters of the attention kernels.
//! include rows

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
