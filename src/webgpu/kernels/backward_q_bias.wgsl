// backward_q_bias: backward_q.wgsl that also writes dbias, which is dS before the slope of softcap. The
// bias may be broadcast along sequences only, and there is no mask, because no binding is left for it.
//
// Writes f32 at dbias with the bias's shape, rows of vec4 of 4 keys: all keys of its tile of queries (0
// for hidden keys), and all queries up to len_q, also those past a sequence's length. `accumulate`: adds
// to what earlier dispatches wrote, at keys that may be visible; sequences that share dbias are separate
// dispatches. Grid, threads, memory: backward_q.wgsl. A thread stores the 4 keys whose dS it owns.

//! include backward_q_tile
//! include backward_dq
//! include softcap_slope

@group(0) @binding(7) var<storage, read_write> dbias: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read_write> dq: array<u32>;

var<private> r_sum: array<vec4<f32>, kMaxR>;

fn has_mask() -> bool {
  return false;
}

fn mask_at(word: u32) -> u32 {
  return 0u;
}

// Whether query i and keys [4 * column, 4 * column + 4) exist in dbias.
fn has_pairs(i: u32, column: u32) -> bool {
  return i < p.len_q && column < p.dbias.row;
}

// Loads the sums of the thread's scores so far. `at` is the position of the head in dbias.
fn load_sums(at: u32, tile: Tile, tr: u32, tc: u32) {
  let column = tile.j / 4u + tc;
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let i = tile.i + r * ROWS + tr;
    r_sum[r] = vec4(0.0);
    if (p.accumulate != 0u && has_pairs(i, column)) {
      r_sum[r] = dbias[at + i * p.dbias.row + column];
    }
  }
}

// Stores dS of the thread's scores in dbias and s_operands. Callers pass `within` as a constant.
fn store_ds(at: u32, tile: Tile, within: bool, tr: u32, tc: u32) {
  let column = tile.j / 4u + tc;
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let n = r * ROWS + tr;
    let i = tile.i + n;
    let x = pairs_of(tile, r, n, tc * 4u, r_s[r], r_tile[r], within);
    s_operands[n * PAIRS_STRIDE + tc] = x.ds * slope_of(r_s[r]);
    if (within || has_pairs(i, column)) {
      dbias[at + i * p.dbias.row + column] = r_sum[r] + x.ds;
    }
  }
}

// Stores zeros for the tile's queries from `first` on and keys [4 * begin, 4 * end).
fn clear(at: u32, first: u32, begin: u32, end: u32, tr: u32, tc: u32) {
  for (var column = begin + tc; column < end; column += COLUMNS) {
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      let i = first + r * ROWS + tr;
      if (has_pairs(i, column)) {
        dbias[at + i * p.dbias.row + column] = vec4(0.0);
      }
    }
  }
}

@compute @workgroup_size(THREADS)
fn backward_q_bias(@builtin(workgroup_id) group: vec3<u32>,
                   @builtin(num_workgroups) groups: vec3<u32>,
                   @builtin(local_invocation_index) thread: u32) {
  let b = p.first_batch + group.z;
  let h = p.first_head_q + group.y;
  let tile = p.first_tile_q + (groups.x - 1u - group.x);  // as in backward_q.wgsl
  let seq = sequence_of(b);
  let first = tile * TILE_Q;
  let end = select(p.len_q, seq.len_q, (p.packed & 1u) != 0u);
  let at = starts_of(seq, b, h);
  let to = p.dbias.base + group.z * p.dbias.batch + group.y * p.dbias.head;
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  let hull = p.tiles_at + (b * p.tiles_q + tile) * 2u;
  let low = info[hull] / TILE_KV * TILE_KV;
  let high = info[hull + 1u];
  if (p.accumulate == 0u) {
    clear(to, first, 0u, low / 4u, tr, tc);
    clear(to, first, (high + TILE_KV - 1u) / TILE_KV * COLUMNS, p.dbias.row, tr, tc);
  }
  if (first >= end) {
    return;
  }

  var pairs = Tile(row_of(seq, b, h, 0u), first, 0u, DropoutBits(0u, 0u, 0u));
  r_dq = array<vec4<f32>, kMaxR * kMaxBlocks>();
  load_lse_delta(seq, h, first, thread);
  for (var j = low; j < high; j += TILE_KV) {
    pairs.j = j;
    if (DROPOUT) {
      pairs.keep = draw_bits(first, j, TILE_Q, TILE_KV, dropout_head(b, h), thread);
    }
    let within = multiply_tile(at, seq, pairs, thread);
    load_sums(to, pairs, tr, tc);
    workgroupBarrier();  // dS overwrites the operands
    if (within) {
      store_ds(to, pairs, true, tr, tc);
    } else {
      store_ds(to, pairs, false, tr, tc);
    }
    multiply_keys(at, seq, j, thread);
  }
  store_rows(seq, group.z, group.y, first, end, tr, tc);
}
