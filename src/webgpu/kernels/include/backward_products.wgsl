// S = Q K^T and dP = dO V^T of a tile.
//! include load_rows
//! include multiply_operands
//! include backward_scores

// Positions of a sequence's first query and key, for a query head and its key head.
struct Starts {
  q: u32,
  k: u32,
  v: u32,
  dout: u32,
}

fn starts_of(seq: Sequence, b: u32, h: u32) -> Starts {
  let local_b = b - p.first_batch;
  let local_h = h - p.first_head_q;
  let local_kv = h / p.heads_per_kv - p.first_head_kv;
  return Starts(p.q.base + local_b * p.q.batch + seq.first_q * p.q.row + local_h * p.q.head,
                p.k.base + local_b * p.k.batch + seq.first_kv * p.k.row + local_kv * p.k.head,
                p.v.base + local_b * p.v.batch + seq.first_kv * p.v.row + local_kv * p.v.head,
                p.dout.base + local_b * p.dout.batch + seq.first_q * p.dout.row + local_h * p.dout.head);
}

fn rows_left(len: u32, first: u32) -> u32 {
  return max(len, first) - first;
}

fn q_rows(at: Starts, seq: Sequence, first: u32, dim: u32) -> Source {
  return Source(at.q + first * p.q.row, p.q.row, rows_left(seq.len_q, first), dim, p.dim_qk);
}

fn dout_rows(at: Starts, seq: Sequence, first: u32, dim: u32) -> Source {
  return Source(at.dout + first * p.dout.row, p.dout.row, rows_left(seq.len_q, first), dim, p.dim_vo);
}

fn k_rows(at: Starts, seq: Sequence, first: u32, dim: u32) -> Source {
  return Source(at.k + first * p.k.row, p.k.row, rows_left(seq.len_kv, first), dim, p.dim_qk);
}

fn v_rows(at: Starts, seq: Sequence, first: u32, dim: u32) -> Source {
  return Source(at.v + first * p.v.row, p.v.row, rows_left(seq.len_kv, first), dim, p.dim_vo);
}

// r_s = Q K^T and r_tile = dO V^T of a tile. Returns is_within(); bias and mask are loaded while
// dO V^T is computed.
fn multiply_tile(at: Starts, seq: Sequence, tile: Tile, thread: u32) -> bool {
  let first = tile.i;
  let j = tile.j;
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    r_tile[r] = vec4(0.0);
  }
  for (var slice = 0u; slice * SLICE < p.dim_qk; slice += 1u) {
    workgroupBarrier();  // the workgroup memory has been read
    load_rows(0u, TYPE_Q, q_rows(at, seq, first, slice * SLICE), 0u, ROWS_STRIDE, TILE_Q, SLICE, thread);
    load_transposed(1u, TYPE_KV, k_rows(at, seq, j, slice * SLICE), COLUMNS_AT, TILE_KV, SLICE, thread);
    workgroupBarrier();
    multiply_operands(tr * ROWS_STRIDE, ROWS_STRIDE, COLUMNS_AT + tc, COLUMNS, SLICE);
  }
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    r_s[r] = r_tile[r];
    r_tile[r] = vec4(0.0);
  }
  let within = is_within(tile, tr);
  if (OPTIONS == 2u && within) {
    load_pairs(tile, tr, tc * 4u);
  }
  for (var slice = 0u; slice * SLICE < p.dim_vo; slice += 1u) {
    workgroupBarrier();
    load_rows(3u, TYPE_DOUT, dout_rows(at, seq, first, slice * SLICE), 0u, ROWS_STRIDE, TILE_Q, SLICE, thread);
    load_transposed(2u, TYPE_KV, v_rows(at, seq, j, slice * SLICE), COLUMNS_AT, TILE_KV, SLICE, thread);
    workgroupBarrier();
    multiply_operands(tr * ROWS_STRIDE, ROWS_STRIDE, COLUMNS_AT + tc, COLUMNS, SLICE);
  }
  return within;
}
