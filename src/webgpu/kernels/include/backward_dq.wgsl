// dQ += dS K, and the store of dq.
//! include backward_products
//! include packed_pair

// r_dq += dS K, with dS in s_operands, DEPTH rows of K at a time.
fn multiply_keys(at: Starts, seq: Sequence, j: u32, thread: u32) {
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  for (var first = 0u; first < TILE_KV; first += DEPTH) {
    if (first > 0u) {
      workgroupBarrier();  // the last rows have been read
    }
    load_rows(1u, TYPE_KV, k_rows(at, seq, j + first, 0u), K_AT, K_STRIDE, DEPTH, K_STRIDE * 4u, thread);
    workgroupBarrier();
    for (var block = 0u; block < BLOCKS_QK; block += 1u) {  // unrolled to 8
      for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
        r_tile[r] = r_dq[block * R + r];
      }
      multiply_operands(tr * PAIRS_STRIDE + first / 4u, PAIRS_STRIDE,
                        K_AT + block * COLUMNS + tc, K_STRIDE, DEPTH);
      for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
        r_dq[block * R + r] = r_tile[r];
      }
    }
  }
}

// Stores those of elements [dim, dim + 4) that exist, in the row of dq at word `at`.
fn store_dq(at: u32, dim: u32, x: vec4<f32>) {
  if (p.out_type == 0u) {
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      if (dim + n < p.dim_qk) {
        dq[at + dim + n] = bitcast<u32>(x[n]);
      }
    }
  } else {
    if (dim < p.dim_qk) {
      dq[at + dim / 2u] = packed_pair(x.xy, p.out_type);
    }
    if (dim + 2u < p.dim_qk) {
      dq[at + dim / 2u + 1u] = packed_pair(x.zw, p.out_type);
    }
  }
}

// Stores the thread's rows of dq, for sequence b and head h of the chunk. In padded tensors, rows past the
// length get 0, because they see no key.
fn store_rows(seq: Sequence, b: u32, h: u32, first: u32, end: u32, tr: u32, tc: u32) {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let i = first + r * ROWS + tr;
    if (i < end) {
      let row = p.dq.base + b * p.dq.batch + h * p.dq.head + (seq.first_q + i) * p.dq.row;
      for (var block = 0u; block < BLOCKS_QK; block += 1u) {  // unrolled to 8
        store_dq(row, block * TILE_KV + tc * 4u, r_dq[block * R + r] * p.scale);
      }
    }
  }
}
