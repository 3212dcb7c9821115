// bias_gradient: dbias, the sum of dS over the axes that the bias broadcasts. dS is recomputed from q, k,
// v, dout and lse. This costs two more matrix products but needs no atomics, so the order of the sum is
// fixed for any shape of bias.
//
// Grid: x tiles of keys, y tiles of queries, z (part, sequence, head), heads fastest. An axis along which
// dbias is broadcast (dbias_full) counts once. A workgroup adds the tiles that map to its place in
// the order keys, queries, heads, sequences. Part n sums split_tiles of them from n * split_tiles on.
// Sequences and heads are those of the chunk (`batch`, `heads`); z starts at part first_split.
// Writes f32 at dbias with the bias's shape, dbias_part elements from part to part, keys adjacent.
// `accumulate`: adds to what is there. bias_gradient_sum.wgsl adds the parts.
// Threads: ROWS x COLUMNS. A thread owns R queries (its row, in steps of ROWS) and 4 neighbouring keys of
// S, dP and the sum, in registers. Rows and columns are summed at the end.
// Workgroup memory (vec4 elements), one region used in turn:
//   a slice of Q or dO [TILE_Q, SLICE] and of K or V transposed [SLICE, TILE_KV]
//   sums [TILE_Q, TILE_KV], at the end
// Bytes: 16 * (OPERANDS + TILE_Q) + 4 * KEEP_WORDS; with R 8, 8 x 8 threads and SLICE 32: 14340.

//! include backward_tile
//! include backward_mask

@group(0) @binding(8) var<storage, read_write> dbias: array<f32>;

override OPERANDS = max(COLUMNS_AT + SLICE * COLUMNS, TILE_Q * PAIRS_STRIDE);

//! include backward_products

var<private> r_sum: array<vec4<f32>, kMaxR>;

const kFullKv = 1u;
const kFullQ = 2u;
const kFullHeads = 4u;
const kFullBatch = 8u;

fn full(what: u32) -> bool {
  return (p.dbias_full & what) != 0u;
}

// Adds dS of the thread's scores to its sums. Callers pass `within` as a constant.
fn add_ds(tile: Tile, within: bool, thread: u32) {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let n = r * ROWS + thread / COLUMNS;
    r_sum[r] += pairs_of(tile, r, n, thread % COLUMNS * 4u, r_s[r], r_tile[r], within).ds;
  }
}

// Adds dS of a tile of queries and the keys from j on, if any query sees any key.
fn add_tile(b: u32, h: u32, tile: u32, j: u32, thread: u32) {
  let hull = p.tiles_at + (b * p.tiles_q + tile) * 2u;
  if (info[hull] >= j + TILE_KV || info[hull + 1u] <= j) {
    return;
  }
  let seq = sequence_of(b);
  let first = tile * TILE_Q;
  let at = starts_of(seq, b, h);
  var pairs = Tile(row_of(seq, b, h, 0u), first, j, DropoutBits(0u, 0u, 0u));
  workgroupBarrier();  // the last tile's rows have been read
  load_lse_delta(seq, h, first, thread);
  if (DROPOUT) {
    pairs.keep = draw_bits(first, j, TILE_Q, TILE_KV, dropout_head(b, h), thread);
  }
  if (multiply_tile(at, seq, pairs, thread)) {
    add_ds(pairs, true, thread);
  } else {
    add_ds(pairs, false, thread);
  }
}

// Stores the sums in workgroup memory. If dbias is broadcast along keys, the first element of a row
// holds the row's sum; if along queries, the first row holds the sums of the columns.
fn reduce(thread: u32) {
  workgroupBarrier();  // the operands have been read
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
