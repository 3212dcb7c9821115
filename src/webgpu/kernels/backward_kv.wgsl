// backward_kv: dk and dv of a tile of keys of one key head. P is recomputed from lse. There are no
// atomics, so the order of every sum is fixed.
//
// Grid: x tiles of keys (from first_tile_kv), y key heads, z sequences, of a chunk. A workgroup loops
// over the query heads of its key head and, for each, over the tiles of queries that see its keys.
// These visits are numbered; a dispatch does split_tiles of them from first_split on. Between two
// dispatches the sums lie unscaled in the output, so that the bits do not depend on the cut.
// Threads: ROWS x COLUMNS. In S = Q K^T and dP = dO V^T a thread owns R queries (its row, in steps of
// ROWS) and 4 neighbouring keys, in registers, and turns them into P and dS. In dV += P^T dO and
// dK += dS^T Q, 2 * ROWS threads share the dimensions (4 neighbours of each block of 8 * ROWS), and a
// thread owns two groups of 4 neighbouring keys.
// Workgroup memory (vec4 elements), one region used in turn:
//   a slice of Q or dO [TILE_Q, SLICE] and of K or V transposed [SLICE, TILE_KV]
//   P or dS [TILE_Q, TILE_KV] and DEPTH rows of dO or Q
// Bytes: 16 * (OPERANDS + TILE_Q) + 4 * KEEP_WORDS; with dimension 64, R 8, 8 x 16 threads, SLICE 32
// and DEPTH 16: 22532. Keeping all of Q and dO took 45060 bytes and was slower (backward_q.wgsl).

//! include backward_tile
//! include backward_mask

@group(0) @binding(8) var<storage, read_write> gradients: array<vec4<f32>>;  // dk and dv

const kMaxBlocks = 4u;
const kDv = 8u * kMaxBlocks;

override BLOCKS_QK: u32 = 1u;
override BLOCKS_VO: u32 = 1u;
override DEPTH: u32 = 16u;  // of rows of Q and dO, divides TILE_Q

override DEPTH_AT = TILE_Q * PAIRS_STRIDE;
override DEPTH_SIZE = DEPTH * max(BLOCKS_QK, BLOCKS_VO) * 2u * ROWS;
override OPERANDS = max(COLUMNS_AT + SLICE * COLUMNS, DEPTH_AT + DEPTH_SIZE);

//! include backward_products
//! include softcap_slope

var<private> r_sum: array<vec4<f32>, 16u * kMaxBlocks>;  // dK from 0, dV from kDv on

// r_sum += A^T B. A [depth, TILE_KV] is P or dS, from the thread's first 4 keys; B is [depth, dims].
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
fn add_dv(at: Starts, seq: Sequence, first: u32, thread: u32) {
  let a = thread / (2u * ROWS);
  let column = thread % (2u * ROWS);
  let stride = BLOCKS_VO * 2u * ROWS;
  for (var n = 0u; n < TILE_Q; n += DEPTH) {
    if (n > 0u) {
      workgroupBarrier();  // the last rows have been read
    }
    load_rows(3u, TYPE_DOUT, dout_rows(at, seq, first + n, 0u), DEPTH_AT, stride, DEPTH, stride * 4u, thread);
    workgroupBarrier();
    multiply_transposed(kDv, BLOCKS_VO, a + n * PAIRS_STRIDE, DEPTH_AT + column, stride, DEPTH);
  }
}

// dK += dS^T Q: dS is in s_operands.
fn add_dk(at: Starts, seq: Sequence, first: u32, thread: u32) {
  let a = thread / (2u * ROWS);
  let column = thread % (2u * ROWS);
  let stride = BLOCKS_QK * 2u * ROWS;
  for (var n = 0u; n < TILE_Q; n += DEPTH) {
    if (n > 0u) {
      workgroupBarrier();
    }
    load_rows(0u, TYPE_Q, q_rows(at, seq, first + n, 0u), DEPTH_AT, stride, DEPTH, stride * 4u, thread);
    workgroupBarrier();
    multiply_transposed(0u, BLOCKS_QK, a + n * PAIRS_STRIDE, DEPTH_AT + column, stride, DEPTH);
  }
}

// Stores P of the thread's scores in s_operands and replaces S by dS in registers. Callers pass
// `within` as a constant.
fn store_p(tile: Tile, within: bool, tr: u32, tc: u32) {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let n = r * ROWS + tr;
    let x = pairs_of(tile, r, n, tc * 4u, r_s[r], r_tile[r], within);
    s_operands[n * PAIRS_STRIDE + tc] = x.p;
    r_s[r] = x.ds * slope_of(r_s[r]);
  }
}

// Adds a tile of queries to dK and dV.
fn add_tile(at: Starts, seq: Sequence, tile: Tile, thread: u32) {
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  let within = multiply_tile(at, seq, tile, thread);
  workgroupBarrier();  // P overwrites the operands
  if (within) {
    store_p(tile, true, tr, tc);
  } else {
    store_p(tile, false, tr, tc);
  }
  add_dv(at, seq, tile.i, thread);
  workgroupBarrier();  // dS overwrites P
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    s_operands[(r * ROWS + tr) * PAIRS_STRIDE + tc] = r_s[r];
  }
  add_dk(at, seq, tile.i, thread);
}

// Where sums are stored, in elements.
struct Output {
  row: u32,   // of the first key
  step: u32,  // from key to key
  keys: u32,
  dims: u32,
}

// The position of 4 dimensions of a key, in vec4.
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
  let seq = sequence_of(b);
  let j = tile * TILE_KV;
  let end = select(p.len_kv, seq.len_kv, (p.packed & 2u) != 0u);
  if (j >= end) {
    return;
  }
  let keys_at = p.keys_at + (b * p.tiles_kv + tile) * 2u;
  let first_tile = info[keys_at];
  let end_tile = info[keys_at + 1u];
  // In padded tensors, rows past the length get 0, because no query sees them.
  let row = seq.first_kv + j;
  let dk = Output(p.dk.base + group.z * p.dk.batch + group.y * p.dk.head + row * p.dk.row, p.dk.row,
                  end - j, p.dim_qk);
  let dv = Output(p.dv.base + group.z * p.dv.batch + group.y * p.dv.head + row * p.dv.row, p.dv.row,
                  end - j, p.dim_vo);
  r_sum = array<vec4<f32>, 16u * kMaxBlocks>();
  if (p.first_split > 0u) {
    load_sums(0u, BLOCKS_QK, dk, thread);
    load_sums(kDv, BLOCKS_VO, dv, thread);
  }
  let end_visit = p.first_split + p.split_tiles;
  for (var g = p.first_split / p.tiles_q; g * p.tiles_q < end_visit; g += 1u) {
    let h = head_kv * p.heads_per_kv + g;
    let at = starts_of(seq, b, h);
    var pairs = Tile(row_of(seq, b, h, 0u), 0u, j, DropoutBits(0u, 0u, 0u));
    let from_tile = max(first_tile, max(p.first_split, g * p.tiles_q) - g * p.tiles_q);
    let to_tile = min(end_tile, end_visit - g * p.tiles_q);
    for (var t = from_tile; t < to_tile; t += 1u) {
      let hull = p.tiles_at + (b * p.tiles_q + t) * 2u;
      if (info[hull] < j + TILE_KV && info[hull + 1u] > j) {
        pairs.i = t * TILE_Q;
        load_lse_delta(seq, h, pairs.i, thread);
        if (DROPOUT) {
          pairs.keep = draw_bits(pairs.i, j, TILE_Q, TILE_KV, dropout_head(b, h), thread);
        }
        add_tile(at, seq, pairs, thread);
      }
    }
  }

  let last = end_visit == p.tiles_q * p.heads_per_kv;
  store_sums(0u, BLOCKS_QK, dk, select(1.0, p.scale, last), thread);
  store_sums(kDv, BLOCKS_VO, dv, 1.0, thread);
}
