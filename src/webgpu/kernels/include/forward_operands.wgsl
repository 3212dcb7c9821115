// Operands of the forward: from memory into registers (fetch), from there to workgroup memory (put).
//! include load_words
//! include load_rows

// Loads elements [dim, dim + 8) of a row: 16 bytes, or 32 bytes of f32. Past `dims` it loads the last
// elements again, because an unconditional load need not wait for a branch; fetched_eight() zeroes
// them.
fn fetch_eight(source: u32, element: u32, row: u32, dim: u32, dims: u32, to: u32) {
  if (element == 0u) {
    let last = (dims - 1u) / 4u;
    r_next[to] = words_of(source, row + min(dim / 4u, last));
    r_next[to + 1u] = words_of(source, row + min(dim / 4u + 1u, last));
  } else {
    r_next[to] = words_of(source, row + min(dim / 8u, (dims - 1u) / 8u));
  }
}

// The loaded elements as f32. `exists`: whether the row exists; if not, the result is 0.
fn fetched_eight(element: u32, dim: u32, dims: u32, exists: bool, at: u32) -> Eight {
  let low = select(vec4(0u), r_next[at], exists && dim < dims);
  var high = vec4(0u);
  if (element == 0u) {
    high = select(vec4(0u), r_next[at + 1u], exists && dim + 4u < dims);
  }
  return eight_of(low, high, element);
}

// Loads 4 neighbouring rows of Q or K, 8 dimensions, which put_quad() stores transposed. Past the end
// the last row is loaded again: no query sees that key, and results of that query are not stored.
fn fetch_quad(source: u32, element: u32, x: Source, quad: u32, round: u32) {
  for (var i = 0u; i < 4u; i += 1u) {  // unrolled
    fetch_eight(source, element, x.row + min(quad * 4u + i, x.valid - 1u) * x.step, x.dim, x.dims,
                round * 8u + i * 2u);
  }
}

fn put_quad(element: u32, dim: u32, at: u32, stride: u32, round: u32) {
  var low = mat4x4<f32>();
  var high = mat4x4<f32>();
  for (var i = 0u; i < 4u; i += 1u) {  // unrolled
    let values = fetched_eight(element, dim, p.dim_qk, true, round * 8u + i * 2u);
    low[i] = values.low;
    high[i] = values.high;
  }
  low = transpose(low);
  high = transpose(high);
  for (var i = 0u; i < 4u; i += 1u) {  // unrolled
    s_operands[at + i * stride] = low[i];
    s_operands[at + (4u + i) * stride] = high[i];
  }
}

// Where the rows of the workgroup's sequence and head begin.
struct Place {
  q: u32,
  k: u32,
  v: u32,
  first: u32,  // query
  len_q: u32,
  len_kv: u32,
}

// Loads a slice of K from key j on, and of Q unless Q is kept.
fn fetch_slice(x: Place, j: u32, slice: u32, thread: u32) {
  for (var n = 0u; n < ROUNDS_QK; n += 1u) {  // unrolled to 2
    let item = thread + n * THREADS;
    if (item < ITEMS_K) {
      let dim = slice * SLICE + item / K_STRIDE * 8u;
      fetch_quad(1u, TYPE_KV, Source(x.k + j * p.k.row, p.k.row, x.len_kv - j, dim, p.dim_qk),
                 item % K_STRIDE, n);
    } else if (item < ITEMS_QK) {
      let dim = slice * SLICE + (item - ITEMS_K) / Q_STRIDE * 8u;
      let valid = max(x.len_q, x.first) - x.first;
      fetch_quad(0u, TYPE_Q, Source(x.q + x.first * p.q.row, p.q.row, valid, dim, p.dim_qk),
                 (item - ITEMS_K) % Q_STRIDE, n);
    }
  }
}

fn put_slice(slice: u32, thread: u32) {
  for (var n = 0u; n < ROUNDS_QK; n += 1u) {  // unrolled to 2
    let item = thread + n * THREADS;
    if (item < ITEMS_K) {
      let dim = item / K_STRIDE * 8u;
      put_quad(TYPE_KV, slice * SLICE + dim, K_AT + dim * K_STRIDE + item % K_STRIDE, K_STRIDE, n);
    } else if (item < ITEMS_QK) {
      let dim = (item - ITEMS_K) / Q_STRIDE * 8u;
      put_quad(TYPE_Q, slice * SLICE + dim, dim * Q_STRIDE + (item - ITEMS_K) % Q_STRIDE, Q_STRIDE, n);
    }
  }
}

// Loads DEPTH rows of V from key j on.
fn fetch_values(x: Place, j: u32, thread: u32) {
  for (var n = 0u; n < ROUNDS_V; n += 1u) {  // unrolled to 8
    let item = thread + n * THREADS;
    let key = min(j + item / (V_STRIDE / 2u), x.len_kv - 1u);
    fetch_eight(2u, TYPE_KV, x.v + key * p.v.row, item % (V_STRIDE / 2u) * 8u, p.dim_vo, n * 2u);
  }
}

fn put_values(x: Place, j: u32, thread: u32) {
  for (var n = 0u; n < ROUNDS_V; n += 1u) {  // unrolled to 8
    let item = thread + n * THREADS;
    let exists = j + item / (V_STRIDE / 2u) < x.len_kv;
    let values = fetched_eight(TYPE_KV, item % (V_STRIDE / 2u) * 8u, p.dim_vo, exists, n * 2u);
    if (item < ITEMS_V) {
      s_operands[V_AT + item * 2u] = values.low;
      s_operands[V_AT + item * 2u + 1u] = values.high;
    }
  }
}
