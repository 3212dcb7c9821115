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

//! include backward_tile
//! include backward_mask
//! include kept_none

@group(0) @binding(8) var<storage, read_write> dbias: array<f32>;

override OPERANDS = max(COLUMNS_AT + SLICE * COLUMNS, TILE_Q * PAIRS_STRIDE);

//! include products

var<private> r_sum: array<vec4<f32>, kMaxR>;

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
