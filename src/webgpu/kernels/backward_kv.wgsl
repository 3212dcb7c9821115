// backward_kv: dk and dv of a tile of keys of one key head, P recomputed from lse, over the query
// heads of its group and the tiles of queries that see it; no atomics, the order is fixed.
//
// Grid: x tiles of keys (from first_tile_kv on), y key heads, z batch entries, all of a chunk. Tiles of
// queries are numbered through the heads of a group; a dispatch does split_tiles of these visits from
// first_split on. One that goes on with sums finds them where it leaves them, not scaled yet, so that
// the bits don't depend on where a loop is cut.
// Roles: ROWS x COLUMNS threads. In S = Q K^T and dP = dO V^T a thread has R queries (its number
// modulo ROWS, in steps of ROWS) and 4 neighbouring keys, which stay in its registers while it makes
// P and dS of them. In dV += P^T dO and dK += dS^T Q, 2 * ROWS threads share the dimensions, 4
// neighbours of each block of 8 * ROWS, and a thread has two times 4 neighbouring keys.
// Workgroup memory, in vectors of 4: one after the other, in the same place: a slice of Q or dO
// and of K or V transposed [SLICE, TILE_KV]; P or dS [TILE_Q, TILE_KV] and DEPTH rows of dO or Q. Bytes:
// 16 * (OPERANDS + TILE_Q) + 4 * KEEP_WORDS. Dimensions 64, R 8, 8 x 16 threads, SLICE 32, DEPTH 16:
// 22532. Keeping Q and dO, whole, took 45060 and was slower: see backward_q.wgsl.

//! include backward_tile
//! include backward_mask

@group(0) @binding(8) var<storage, read_write> gradients: array<vec4<f32>>;  // dk and dv

const kMaxBlocks = 4u;
const kDv = 8u * kMaxBlocks;

override BLOCKS_QK: u32 = 1u;
override BLOCKS_VO: u32 = 1u;
override DEPTH: u32 = 16u;  // of rows of Q and dO, divides TILE_Q

override KEPT_QK: u32 = 0u;  // dimensions of K that stay, in slices; 0: they come anew for each tile
override KEPT_VO: u32 = 0u;  // the same of V; both or none

override DEPTH_AT = TILE_Q * PAIRS_STRIDE;
override DEPTH_SIZE = DEPTH * max(BLOCKS_QK, BLOCKS_VO) * 2u * ROWS;
override SHARED = max(COLUMNS_AT + select(SLICE * COLUMNS, 0u, KEPT_QK > 0u), DEPTH_AT + DEPTH_SIZE);
override KEPT_AT = SHARED;
override OPERANDS = SHARED + (KEPT_QK + KEPT_VO) * COLUMNS;

//! include products
//! include raw

var<private> r_sum: array<vec4<f32>, 16u * kMaxBlocks>;  // dK from 0, dV from kDv on

// r_sum += A^T B: A [depth, TILE_KV] of pairs, the thread's two fours of keys in it; B [depth, dims].
fn multiply_transposed(sum: u32, blocks: u32, a: u32, b: u32, b_stride: u32, depth: u32) {
  for (var d = 0u; d < depth; d += 1u) {
    let low = s_operands[a + d * PAIRS_STRIDE];
    let high = s_operands[a + d * PAIRS_STRIDE + COLUMNS / 2u];
    for (var block = 0u; block < blocks; block += 1u) {  // unrolled to 4
      let x = s_operands[b + d * b_stride + block * 2u * ROWS];
      for (var n = 0u; n < 4u; n += 1u) {  // unrolled
        let at = sum + block * 8u + n;
        r_sum[at] = fma(vec4(low[n]), x, r_sum[at]);
        r_sum[at + 4u] = fma(vec4(high[n]), x, r_sum[at + 4u]);
      }
    }
  }
}

// dV += P^T dO: P is in s_operands.
fn add_dv(at: Starts, e: Entry, first: u32, thread: u32) {
  let a = thread / (2u * ROWS);
  let column = thread % (2u * ROWS);
  let stride = BLOCKS_VO * 2u * ROWS;
  for (var n = 0u; n < TILE_Q; n += DEPTH) {
    if (n > 0u) {
      workgroupBarrier();  // the last rows are read
    }
    load_rows(3u, TYPE_DOUT, dout_rows(at, e, first + n, 0u), DEPTH_AT, stride, DEPTH, stride * 4u, thread);
    workgroupBarrier();
    multiply_transposed(kDv, BLOCKS_VO, a + n * PAIRS_STRIDE, DEPTH_AT + column, stride, DEPTH);
  }
}

// dK += dS^T Q: dS is in s_operands.
fn add_dk(at: Starts, e: Entry, first: u32, thread: u32) {
  let a = thread / (2u * ROWS);
  let column = thread % (2u * ROWS);
  let stride = BLOCKS_QK * 2u * ROWS;
  for (var n = 0u; n < TILE_Q; n += DEPTH) {
    if (n > 0u) {
      workgroupBarrier();
    }
    load_rows(0u, TYPE_Q, q_rows(at, e, first + n, 0u), DEPTH_AT, stride, DEPTH, stride * 4u, thread);
    workgroupBarrier();
    multiply_transposed(0u, BLOCKS_QK, a + n * PAIRS_STRIDE, DEPTH_AT + column, stride, DEPTH);
  }
}

// P of the thread's pairs to s_operands, and dS in the place of S. `within` is a constant wherever it is
// called.
fn store_p(tile: Tile, within: bool, tr: u32, tc: u32) {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let n = r * ROWS + tr;
    let x = pairs_of(tile, r, n, tc * 4u, r_s[r], r_tile[r], within);
    s_operands[n * PAIRS_STRIDE + tc] = x.p;
    r_s[r] = x.ds * slope_of(r_s[r]);
  }
}

// What a tile of queries adds to dK and dV.
fn add_tile(at: Starts, e: Entry, tile: Tile, thread: u32) {
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  let within = multiply_tile(at, e, tile, thread);
  workgroupBarrier();  // P takes the place of operands
  if (within) {
    store_p(tile, true, tr, tc);
  } else {
    store_p(tile, false, tr, tc);
  }
  add_dv(at, e, tile.i, thread);
  workgroupBarrier();  // dS takes the place of P
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    s_operands[(r * ROWS + tr) * PAIRS_STRIDE + tc] = r_s[r];
  }
  add_dk(at, e, tile.i, thread);
}

// Where sums go: the first key's row and how far apart rows are, in elements; how many keys and
// dimensions there are.
struct Output {
  row: u32,
  step: u32,
  keys: u32,
  dims: u32,
}

// The element of `gradients` that sum n of a block begins with, over 4.
fn place_of(to: Output, key: u32, dim: u32) -> u32 {
  return (to.row + key * to.step + dim) / 4u;
}

fn load_sums(sum: u32, blocks: u32, kept: Output, thread: u32) {
  for (var block = 0u; block < blocks; block += 1u) {  // unrolled to 4
    let dim = block * 8u * ROWS + thread % (2u * ROWS) * 4u;
    for (var n = 0u; n < 8u; n += 1u) {  // unrolled
      let key = (thread / (2u * ROWS) + n / 4u * (COLUMNS / 2u)) * 4u + n % 4u;
      if (key < kept.keys && dim < kept.dims) {
        r_sum[sum + block * 8u + n] = gradients[place_of(kept, key, dim)];
      }
    }
  }
}

fn store_sums(sum: u32, blocks: u32, to: Output, factor: f32, thread: u32) {
  for (var block = 0u; block < blocks; block += 1u) {  // unrolled to 4
    let dim = block * 8u * ROWS + thread % (2u * ROWS) * 4u;
    for (var n = 0u; n < 8u; n += 1u) {  // unrolled
      let key = (thread / (2u * ROWS) + n / 4u * (COLUMNS / 2u)) * 4u + n % 4u;
      if (key < to.keys && dim < to.dims) {
        gradients[place_of(to, key, dim)] = r_sum[sum + block * 8u + n] * factor;
      }
    }
  }
}

@compute @workgroup_size(THREADS)
fn backward_kv(@builtin(workgroup_id) group: vec3<u32>,
               @builtin(local_invocation_index) thread: u32) {
  let b = p.first_batch + group.z;
  let head_kv = p.first_head_kv + group.y;
  let tile = p.first_tile_kv + group.x;
  let e = entry_of(b);
  let j = tile * TILE_KV;
  let end = select(p.len_kv, e.len_kv, (p.packed & 2u) != 0u);
  if (j >= end) {
    return;
  }
  let keys_at = p.keys_at + (b * p.tiles_kv + tile) * 2u;
  let first_tile = info[keys_at];
  let end_tile = info[keys_at + 1u];
  // Padded tensors also have rows past the length, which no query sees.
  let row = e.first_kv + j;
  let dk = Output(p.dk.base + group.z * p.dk.batch + group.y * p.dk.head + row * p.dk.row, p.dk.row,
                  end - j, p.dim_qk);
  let dv = Output(p.dv.base + group.z * p.dv.batch + group.y * p.dv.head + row * p.dv.row, p.dv.row,
                  end - j, p.dim_vo);
  r_sum = array<vec4<f32>, 16u * kMaxBlocks>();
  if (p.first_split > 0u) {
    load_sums(0u, BLOCKS_QK, dk, thread);
    load_sums(kDv, BLOCKS_VO, dv, thread);
  }
  if (KEPT_QK > 0u) {
    let at = starts_of(e, b, head_kv * p.group);
    load_transposed(1u, TYPE_KV, k_rows(at, e, j, 0u), KEPT_AT, TILE_KV, KEPT_QK, thread);
    load_transposed(2u, TYPE_KV, v_rows(at, e, j, 0u), KEPT_AT + KEPT_QK * COLUMNS, TILE_KV, KEPT_VO, thread);
  }
  let end_visit = p.first_split + p.split_tiles;
  for (var g = p.first_split / p.tiles_q; g * p.tiles_q < end_visit; g += 1u) {
    let h = head_kv * p.group + g;
    let at = starts_of(e, b, h);
    var pairs = Tile(row_of(e, b, h, 0u), 0u, j, KeepTile(0u, 0u, 0u));
    let from_tile = max(first_tile, max(p.first_split, g * p.tiles_q) - g * p.tiles_q);
    let to_tile = min(end_tile, end_visit - g * p.tiles_q);
    for (var t = from_tile; t < to_tile; t += 1u) {
      let hull = p.tiles_at + (b * p.tiles_q + t) * 2u;
      if (info[hull] < j + TILE_KV && info[hull + 1u] > j) {
        pairs.i = t * TILE_Q;
        load_stats(e, h, pairs.i, thread);
        if (DROPOUT) {
          pairs.keep = draw(pairs.i, j, TILE_Q, TILE_KV, placed_head(b, h), thread);
        }
        add_tile(at, e, pairs, thread);
      }
    }
  }

  let last = end_visit == p.tiles_q * p.group;
  store_sums(0u, BLOCKS_QK, dk, select(1.0, p.scale, last), thread);
  store_sums(kDv, BLOCKS_VO, dv, 1.0, thread);
}
