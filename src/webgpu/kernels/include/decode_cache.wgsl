// Loads of queries, and of keys and values of a contiguous or paged cache.
//! include convert
//! include sequence

// The words of elements [dim, dim + 8) of a row: the first 16 bytes, and the second of f32; 0 past
// `dims`.
fn low_words(source: u32, element: u32, row: u32, dim: u32, dims: u32) -> vec4<u32> {
  if (dim < dims) {
    return words_of(source, row + dim / select(8u, 4u, element == 0u));
  }
  return vec4(0u);
}

fn high_words(source: u32, element: u32, row: u32, dim: u32, dims: u32) -> vec4<u32> {
  if (element == 0u && dim + 4u < dims) {
    return words_of(source, row + dim / 4u + 1u);
  }
  return vec4(0u);
}

// Where the cache of the workgroup's sequence and key head lies.
struct Cache {
  b: u32,  // sequence
  k: u32,  // position of key 0, or of key 0 of page 0
  v: u32,
  end: u32,
}

// Whether keys and values are read from pages.
fn in_pages() -> bool {
  return p.page_size != 0u && p.gathered == 0u;
}

// {j / p.page_size, j % p.page_size}, without a division if the size is a power of 2.
fn page_and_slot(j: u32) -> vec2<u32> {
  let last = p.page_size - 1u;
  if ((p.page_size & last) == 0u) {
    return vec2(j >> firstTrailingBit(p.page_size), j & last);
  }
  let page = j / p.page_size;
  return vec2(page, j - page * p.page_size);
}

fn load_q(seq: Sequence, start: u32, tile: u32, lane: u32) {
  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 8
    let i = (tile * ROWS + r) / p.heads_per_kv;
    let head = (tile * ROWS + r) % p.heads_per_kv;
    var words = array<vec4<u32>, 2>(vec4(0u), vec4(0u));
    if (i < seq.len_q) {
      let row = start + i * p.q.row + head * p.q.head;
      words[0] = low_words(0u, TYPE_Q, row, lane * 8u, p.dim_qk);
      words[1] = high_words(0u, TYPE_Q, row, lane * 8u, p.dim_qk);
    }
    let x = eight_of(words[0], words[1], TYPE_Q);
    r_q[2u * r] = x.low;
    r_q[2u * r + 1u] = x.high;
  }
}

// Starts to load the page numbers of the thread's keys of the tile at `first`, ahead of load_k().
fn find(cache: Cache, first: u32, thread: u32) {
  if (p.page_size == 0u) {
    return;
  }
  let table = p.table_at + cache.b * p.table_batch;
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let j = min(first + thread / LANES + n * GROUPS, cache.end - 1u);
    r_page[n] = block_table[table + page_and_slot(j).x * p.table_page];
  }
}

// Starts to load the thread's keys of the tile at `first`, whose page numbers find() loaded, and records
// the positions of their values. Returns one bit per key that exists; for others it loads some
// existing words. Dimensions past dim_qk are never loaded and stay 0.
fn load_k(cache: Cache, first: u32, thread: u32) -> u32 {
  let part = thread % LANES * select(1u, 2u, TYPE_KV == 0u);  // of a row, in units of 16 bytes
  let start_k = cache.k + part;
  let start_v = cache.v + part;
  var there = 0u;
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let j = first + thread / LANES + n * GROUPS;
    there |= select(0u, 1u << n, j < cache.end && (p.page_size == 0u || r_page[n] < p.num_pages));
    r_at[n] = start_k + j * p.k.row;
    r_value_at[n] = start_v + j * p.v.row;
  }
  if (in_pages()) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      let slot = page_and_slot(first + thread / LANES + n * GROUPS).y;
      r_at[n] = start_k + r_page[n] * p.k.batch + slot * p.k.row;
      r_value_at[n] = start_v + r_page[n] * p.v.batch + slot * p.v.row;
    }
  }
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    let exists = (there & (1u << n)) != 0u;
    r_at[n] = select(0u, r_at[n], exists);
    r_value_at[n] = select(0u, r_value_at[n], exists);
  }
  let dim = thread % LANES * 8u;
  if (dim < p.dim_qk) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      r_k[2u * n] = k[r_at[n]];
    }
  }
  if (TYPE_KV == 0u && dim + 4u < p.dim_qk) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      r_k[2u * n + 1u] = k[r_at[n] + 1u];
    }
  }
  return there;
}

// Starts to load the values of the keys of the last load_k().
fn load_v(thread: u32) {
  let dim = thread % LANES * 8u;
  if (dim < p.dim_vo) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      r_v[2u * n] = v[r_value_at[n]];
    }
  }
  if (TYPE_KV == 0u && dim + 4u < p.dim_vo) {
    for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
      r_v[2u * n + 1u] = v[r_value_at[n] + 1u];
    }
  }
}

// Zeroes the values of keys that do not exist: 0 times a NaN in memory would be NaN.
fn clear_v(there: u32) {
  if (there == (1u << UNROLL) - 1u) {
    return;
  }
  for (var n = 0u; n < UNROLL; n += 1u) {  // unrolled to 8
    if ((there & (1u << n)) == 0u) {
      r_v[2u * n] = vec4(0u);
      r_v[2u * n + 1u] = vec4(0u);
    }
  }
}
