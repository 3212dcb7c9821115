// backward_q: dq of a tile of queries of one head, P recomputed from lse, over tiles of keys.
//
// Grid: x tiles of queries (from first_tile_q on), y query heads, z batch entries, all of a chunk.
// Roles: ROWS x COLUMNS threads. A thread has R rows (its number modulo ROWS, in steps of ROWS) and
// 4 neighbouring columns: keys in S = Q K^T and dP = dO V^T, which stay in its registers while it
// makes dS of them, then dimensions of each block of 4 * COLUMNS in dQ += dS K.
// Workgroup memory, in vectors of 4: one after the other, in the same place: a slice of Q or dO
// and of K or V transposed [SLICE, TILE_KV]; dS [TILE_Q, TILE_KV] and DEPTH rows of K. Bytes:
// 16 * (OPERANDS + TILE_Q) + 4 * KEEP_WORDS. Dimensions 64, R 4, 16 x 16 threads, SLICE 32, DEPTH 16:
// 22532. Keeping Q and dO, whole, took 47108 and with that the neighbours' place: 5.0 TFLOP/s in place
// of 7.0 (the whole backward on an H200, dim 64, f16, causal, 2026-11).

//! include constants_q
//! include backward_mask
//! include dq
//! include raw

@group(0) @binding(8) var<storage, read_write> dq: array<u32>;

// dS of the thread's pairs to s_operands. `within` is a constant wherever it is called.
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
  // The last tiles first: where a diagonal leaves them the most keys, they would be what the others
  // are waited for.
  let tile = p.first_tile_q + (groups.x - 1u - group.x);
  let e = entry_of(b);
  let first = tile * TILE_Q;
  let end = select(p.len_q, e.len_q, (p.packed & 1u) != 0u);
  if (first >= end) {
    return;
  }
  let at = starts_of(e, b, h);
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  let hull = p.tiles_at + (b * p.tiles_q + tile) * 2u;
  let low = info[hull];
  let high = info[hull + 1u];

  var pairs = Tile(row_of(e, b, h, 0u), first, 0u, KeepTile(0u, 0u, 0u));
  r_dq = array<vec4<f32>, kMaxR * kMaxBlocks>();
  load_stats(e, h, first, thread);
  for (var j = low / TILE_KV * TILE_KV; j < high; j += TILE_KV) {
    pairs.j = j;
    if (DROPOUT) {
      pairs.keep = draw(first, j, TILE_Q, TILE_KV, placed_head(b, h), thread);
    }
    let within = multiply_tile(at, e, pairs, thread);
    workgroupBarrier();  // dS takes the place of operands
    if (within) {
      store_ds(pairs, true, tr, tc);
    } else {
      store_ds(pairs, false, tr, tc);
    }
    multiply_keys(at, e, j, thread);
  }
  store_rows(e, group.z, group.y, first, end, tr, tc);
}
