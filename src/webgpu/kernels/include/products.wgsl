// S = Q K^T and dP = dO V^T of a tile.
//! include load_rows
//! include multiply
//! include pairs

// Where the rows of an entry's first query and key begin, of a query head and its key head.
struct Starts {
  q: u32,
  k: u32,
  v: u32,
  dout: u32,
}

fn starts_of(e: Entry, b: u32, h: u32) -> Starts {
  let local_b = b - p.first_batch;
  let local_h = h - p.first_head_q;
  let local_kv = h / p.group - p.first_head_kv;
  return Starts(p.q.base + local_b * p.q.batch + e.first_q * p.q.row + local_h * p.q.head,
                p.k.base + local_b * p.k.batch + e.first_kv * p.k.row + local_kv * p.k.head,
                p.v.base + local_b * p.v.batch + e.first_kv * p.v.row + local_kv * p.v.head,
                p.dout.base + local_b * p.dout.batch + e.first_q * p.dout.row + local_h * p.dout.head);
}

fn rows_left(len: u32, first: u32) -> u32 {
  return max(len, first) - first;
}

fn q_rows(at: Starts, e: Entry, first: u32, dim: u32) -> Source {
  return Source(at.q + first * p.q.row, p.q.row, rows_left(e.len_q, first), dim, p.dim_qk);
}

fn dout_rows(at: Starts, e: Entry, first: u32, dim: u32) -> Source {
  return Source(at.dout + first * p.dout.row, p.dout.row, rows_left(e.len_q, first), dim, p.dim_vo);
}

fn k_rows(at: Starts, e: Entry, first: u32, dim: u32) -> Source {
  return Source(at.k + first * p.k.row, p.k.row, rows_left(e.len_kv, first), dim, p.dim_qk);
}

fn v_rows(at: Starts, e: Entry, first: u32, dim: u32) -> Source {
  return Source(at.v + first * p.v.row, p.v.row, rows_left(e.len_kv, first), dim, p.dim_vo);
}

// A slice of K or V as multiply_operands takes it, where the kernel does not keep all of them (KEPT,
// dimensions of it kept from `at` on); says where it is.
fn place_columns(source: u32, x: Source, at: u32, kept: u32, thread: u32) -> u32 {
  if (kept > 0u) {
    return at + x.dim * COLUMNS;
  }
  load_transposed(source, TYPE_KV, x, COLUMNS_AT, TILE_KV, SLICE, thread);
  return COLUMNS_AT;
}

// r_s = Q K^T and r_tile = dO V^T of a tile of pairs. Says whether all of the thread's rows see all of
// its keys; bias and mask of these are loaded while dO V^T is made.
fn multiply_tile(at: Starts, e: Entry, tile: Tile, thread: u32) -> bool {
  let first = tile.i;
  let j = tile.j;
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    r_tile[r] = vec4(0.0);
  }
  for (var slice = 0u; slice * SLICE < p.dim_qk; slice += 1u) {
    workgroupBarrier();  // what the memory held is read
    load_rows(0u, TYPE_Q, q_rows(at, e, first, slice * SLICE), 0u, ROWS_STRIDE, TILE_Q, SLICE, thread);
    let columns = place_columns(1u, k_rows(at, e, j, slice * SLICE), KEPT_AT, KEPT_QK, thread);
    workgroupBarrier();
    multiply_operands(tr * ROWS_STRIDE, ROWS_STRIDE, columns + tc, COLUMNS, SLICE);
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
    load_rows(3u, TYPE_DOUT, dout_rows(at, e, first, slice * SLICE), 0u, ROWS_STRIDE, TILE_Q, SLICE, thread);
    let columns = place_columns(2u, v_rows(at, e, j, slice * SLICE), KEPT_AT + KEPT_QK * COLUMNS, KEPT_VO, thread);
    workgroupBarrier();
    multiply_operands(tr * ROWS_STRIDE, ROWS_STRIDE, columns + tc, COLUMNS, SLICE);
  }
  return within;
}
