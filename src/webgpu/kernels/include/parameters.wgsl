// Parameters of the attention kernels.
//! include strided_tensor

// One slice of a uniform buffer per dispatch. Strides count 16-byte units for inputs, words for outputs,
// elements for lse, dlse and delta. Packed tensors have batch 0; a sequence starts at its first row.
struct AttentionParameters {
  q: StridedTensor,
  k: StridedTensor,
  v: StridedTensor,
  dout: StridedTensor,
  o: StridedTensor,
  dq: StridedTensor,
  dk: StridedTensor,
  dv: StridedTensor,
  lse: StridedTensor,
  dlse: StridedTensor,
  delta: StridedTensor,
  dsink: StridedTensor,
  bias: StridedTensor,
  mask: StridedTensor,
  dbias: StridedTensor,
  bias_kv: u32,
  mask_kv: u32,
  dbias_part: u32,  // elements of a part of dbias
  dim_qk: u32,
  dim_vo: u32,
  heads_q: u32,
  heads_per_kv: u32,
  packed: u32,  // bits; 1: queries, 2: keys

  // The chunk: the position of its first workgroup in the call.
  first_batch: u32,
  first_head_q: u32,
  first_head_kv: u32,
  first_tile_q: u32,
  first_tile_kv: u32,
  tiles_q: u32,  // of the longest sequence
  tiles_kv: u32,
  rows: u32,  // queries of all sequences

  // Words of `info` at which its parts begin.
  sequences_at: u32,
  key_ranges_at: u32,
  tiles_at: u32,
  keys_at: u32,
  slopes_at: u32,  // 0: no ALiBi
  sinks_at: u32,   // 0: no sinks
  lse_delta_at: u32,
  split_tiles: u32,  // visits of a part of dbias, or of a chunk of backward_kv

  scale: f32,
  softcap: f32,  // 0: none
  keep_scale: f32,  // 256 / keep_below
  keep_below: u32,
  seed: vec2<u32>,  // Philox key: the seed, its high word combined with that of the offset
  offset: u32,
  accumulate: u32,
  origin: vec4<u32>,  // batch, head, query, key
  origin_heads: u32,
  splits: u32,
  len_q: u32,  // the longest
  len_kv: u32,
  batch: u32,  // sequences of the chunk
  heads: u32,  // query heads of the chunk
  first_split: u32,
  dbias_full: u32,  // bits: axes that dbias has; 1: keys, 2: queries, 4: heads, 8: batch

  // Decode. With pages, k.batch and v.batch step from page to page. block_table is in words.
  page_size: u32,  // 0: contiguous
  num_pages: u32,
  table_at: u32,
  table_batch: u32,
  table_page: u32,
  split_keys: u32,  // keys of a split
  bias_type: u32,  // 0: none, 1: f32, 2: f16, 3: bf16
  mask_given: u32,

  unit: f32,      // natural units to units of scores: log2 e; with a bias 1
  to_log2: f32,   // units of scores to log2: 1; with a bias log2 e
  out_type: u32,  // type of o and dq; 0: f32, 1: f16, 2: bf16
  gathered: u32,  // 1: k and v are contiguous copies; page numbers only say which keys exist
}
