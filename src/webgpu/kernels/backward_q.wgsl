// backward_q: dq of a tile of queries of one head, over tiles of keys. P is recomputed from lse.
//
// Grid: x tiles of queries (from first_tile_q), y query heads, z sequences, of a chunk.
// Threads: ROWS x COLUMNS. A thread owns R rows (its row, in steps of ROWS) and 4 neighbouring columns:
// keys in S = Q K^T and dP = dO V^T, which it turns into dS in registers, then dimensions of each
// block of 4 * COLUMNS in dQ += dS K.
// Workgroup memory (vec4 elements), one region used in turn:
//   a slice of Q or dO [TILE_Q, SLICE] and of K or V transposed [SLICE, TILE_KV]
//   dS [TILE_Q, TILE_KV] and DEPTH rows of K
// Bytes: 16 * (OPERANDS + TILE_Q) + 4 * KEEP_WORDS; with dimension 64, R 4, 16 x 16 threads, SLICE 32
// and DEPTH 16: 22532.
// Tried:
//   what               | where                                  | before       | after        | why
//   keep all of Q, dO  | H200, dim 64, f16, causal, 2026-11,    | 7.0 TFLOP/s  | 5.0 TFLOP/s  | 47108 bytes:
//                      | the whole backward                     |              |              | occupancy

//! include backward_q_tile
//! include backward_mask
//! include backward_dq
//! include softcap_slope

@group(0) @binding(8) var<storage, read_write> dq: array<u32>;

// Stores dS of the thread's scores in s_operands. Callers pass `within` as a constant.
fn store_ds(tile: Tile, within: bool, tr: u32, tc: u32) {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let n = r * ROWS + tr;
    let x = pairs_of(tile, r, n, tc * 4u, r_s[r], r_tile[r], within);
    s_operands[n * PAIRS_STRIDE + tc] = x.ds * slope_of(r_s[r]);
  }
}

@compute @workgroup_size(THREADS)
fn backward_q(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
              @builtin(local_invocation_index) thread: u32) {
  let b = p.first_batch + group.z;
  let h = p.first_head_q + group.y;
  // The last tiles run first: under a causal diagonal they take longest.
  let tile = p.first_tile_q + (groups.x - 1u - group.x);
  let seq = sequence_of(b);
  let first = tile * TILE_Q;
  let end = select(p.len_q, seq.len_q, (p.packed & 1u) != 0u);
  if (first >= end) {
    return;
  }
  let at = starts_of(seq, b, h);
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  let hull = p.tiles_at + (b * p.tiles_q + tile) * 2u;
  let low = info[hull];
  let high = info[hull + 1u];

  var pairs = Tile(row_of(seq, b, h, 0u), first, 0u, DropoutBits(0u, 0u, 0u));
  r_dq = array<vec4<f32>, kMaxR * kMaxBlocks>();
  load_lse_delta(seq, h, first, thread);
  for (var j = low / TILE_KV * TILE_KV; j < high; j += TILE_KV) {
    pairs.j = j;
    if (DROPOUT) {
      pairs.keep = draw_bits(first, j, TILE_Q, TILE_KV, dropout_head(b, h), thread);
    }
    let within = multiply_tile(at, seq, pairs, thread);
    workgroupBarrier();  // dS overwrites the operands
    if (within) {
      store_ds(pairs, true, tr, tc);
    } else {
      store_ds(pairs, false, tr, tc);
    }
    multiply_keys(at, seq, j, thread);
  }
  store_rows(seq, group.z, group.y, first, end, tr, tc);
}
