// forward: o and lse of a tile of queries of one head, by online softmax over tiles of keys
// (Milakov, Gimelshein 2018, algorithm 3).
//
// Grid: tiles of queries, query heads and sequences of a chunk. The last query tiles of all heads and
// sequences run first: under a causal diagonal they take longest.
// Threads: ROWS x COLUMNS. A thread owns 8 queries (two groups of 4 neighbours) and KEYS * 4
// neighbouring keys. In registers it keeps
//   their scores, then probabilities,
//   the running maximum of its queries, and the sum over its own keys,
//   o of its queries: BLOCKS_VO * 4 neighbouring dimensions.
// Products are sums of outer products. Both operands are stored with the summed index first, in
// vec4 of neighbours, so that 2 loads of queries and KEYS (or BLOCKS_VO) loads of keys (or
// dimensions) serve 32 * KEYS (or 32 * BLOCKS_VO) fused multiply-adds.
// Workgroup memory (vec4 elements):
//   q_t  [dims or SLICE, TILE_Q]   Q transposed; kept whole if it fits, else loaded in slices
//   k_t  [SLICE, TILE_KV]          one slice of K transposed  } share one region, used in turn;
//   v    [DEPTH, dims]             DEPTH rows of V            } it overlays q_t if Q is sliced
//   p_t  [TILE_KV, TILE_Q]         probabilities transposed
//   part [COLUMNS, TILE_Q]         row maxima over each thread's keys, at the end row sums
// During a product, the next operands travel from memory to registers.
// Scores are in units of log2 without a bias. With a bias they are in natural units, in which no
// finite bias overflows.

//! include qkv

@group(0) @binding(4) var<storage, read> info: array<u32>;
@group(0) @binding(5) var<storage, read> bias: array<u32>;
@group(0) @binding(6) var<storage, read> mask: array<u32>;
@group(0) @binding(7) var<storage, read_write> o: array<u32>;
@group(0) @binding(8) var<storage, read_write> lse: array<u32>;

const R = 8u;  // queries of a thread
const kMaxKeys = 2u;    // KEYS at most
const kMaxBlocks = 4u;  // BLOCKS_VO at most
const kLowest = -3.4028234e38;
const kRescaleThreshold = 8.0;  // log2: how far scores may exceed the maximum in use

override TYPE_Q: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_KV: u32 = 0u;
override ROWS: u32 = 8u;  // a power of 2
override COLUMNS: u32 = 8u;  // a multiple of 8
override KEYS: u32 = 2u;
override SLICE: u32 = 32u;
override Q_SLICES: u32 = 0u;  // slices of Q if all stay in workgroup memory; 0: one at a time
override DEPTH: u32 = 32u;    // a multiple of 4
override BLOCKS_VO: u32 = 2u;
override DROPOUT: bool = false;
override OPTIONS: u32 = 2u;  // score modifiers; 0: none, 1: softcap or ALiBi only, 2: any

override THREADS = ROWS * COLUMNS;
override TILE_Q = ROWS * 8u;
override TILE_KV = COLUMNS * 4u * KEYS;
override Q_STRIDE = ROWS * 2u;
override K_STRIDE = COLUMNS * KEYS;
override V_STRIDE = COLUMNS * BLOCKS_VO;
override KEEP_Q = Q_SLICES != 0u;
override K_AT = max(Q_SLICES, 1u) * SLICE * Q_STRIDE;
override V_AT = select(0u, K_AT, KEEP_Q);
override OPERANDS = max(K_AT + SLICE * K_STRIDE, V_AT + DEPTH * V_STRIDE);
override ITEMS_K = K_STRIDE * (SLICE / 8u);
override ITEMS_QK = ITEMS_K + select(Q_STRIDE * (SLICE / 8u), 0u, KEEP_Q);
override ITEMS_V = DEPTH * V_STRIDE / 2u;
override ROUNDS_QK = (ITEMS_QK + THREADS - 1u) / THREADS;  // 2 at most
override ROUNDS_V = (ITEMS_V + THREADS - 1u) / THREADS;    // 8 at most
override SWIZZLE = min(ROWS, 8u) - 1u;
override KEEP_WORDS = select(1u, ((TILE_Q + 14u) / 16u + 1u) * (TILE_KV / 16u + 1u) * 16u, DROPOUT);

var<workgroup> s_operands: array<vec4<f32>, OPERANDS>;
var<workgroup> s_p: array<vec4<f32>, TILE_KV * Q_STRIDE>;
var<workgroup> s_part: array<vec4<f32>, COLUMNS * Q_STRIDE>;
var<workgroup> s_grown: array<atomic<u32>, 2>;
var<workgroup> s_range: array<vec2<u32>, TILE_Q>;
var<workgroup> s_keep: array<u32, KEEP_WORDS>;

var<private> r_s: array<vec4<f32>, R * kMaxKeys>;    // [query][4 keys]
var<private> r_o: array<vec4<f32>, R * kMaxBlocks>;  // [query][4 dimensions]
var<private> r_max: array<vec4<f32>, 2>;             // [4 queries]
var<private> r_sum: array<vec4<f32>, 2>;
var<private> r_next: array<vec4<u32>, 16>;           // operands in flight

//! include forward_operands
//! include forward_softmax
//! include forward_output

// r_s += A^T B. `a` is the thread's first vector of A [SLICE, TILE_Q], `b` that of B [SLICE, TILE_KV].
fn multiply_scores(a: u32, b: u32) {
  for (var d = 0u; d < SLICE; d += 1u) {
    let low = s_operands[a + d * Q_STRIDE];
    let high = s_operands[a + d * Q_STRIDE + ROWS];
    for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
      let x = s_operands[b + d * K_STRIDE + c * COLUMNS];
      for (var n = 0u; n < 4u; n += 1u) {  // unrolled
        r_s[n * kMaxKeys + c] = fma(vec4(low[n]), x, r_s[n * kMaxKeys + c]);
        r_s[(n + 4u) * kMaxKeys + c] = fma(vec4(high[n]), x, r_s[(n + 4u) * kMaxKeys + c]);
      }
    }
  }
}

// r_o += P V of DEPTH keys from `key` on. store_p() defines the order of the vectors of P.
fn multiply_values(key: u32, tr: u32, tc: u32) {
  for (var d = 0u; d < DEPTH; d += 4u) {
    let a = (key + d) * Q_STRIDE + (tr ^ (((key + d) / 4u) & SWIZZLE));
    for (var i = 0u; i < 4u; i += 1u) {  // unrolled
      let low = s_p[a + i * Q_STRIDE];
      let high = s_p[a + i * Q_STRIDE + ROWS];
      for (var c = 0u; c < BLOCKS_VO; c += 1u) {  // unrolled to 4
        let x = s_operands[V_AT + (d + i) * V_STRIDE + c * COLUMNS + tc];
        for (var n = 0u; n < 4u; n += 1u) {  // unrolled
          r_o[n * kMaxBlocks + c] = fma(vec4(low[n]), x, r_o[n * kMaxBlocks + c]);
          r_o[(n + 4u) * kMaxBlocks + c] = fma(vec4(high[n]), x, r_o[(n + 4u) * kMaxBlocks + c]);
        }
      }
    }
  }
}

// Loads the key ranges of the tile's queries, and Q if it is kept.
fn load_queries(seq: Sequence, place: Place, thread: u32) {
  let first = place.first;
  if (thread == 0u) {
    atomicStore(&s_grown[0], 0u);
    atomicStore(&s_grown[1], 0u);
  }
  for (var n = thread; n < TILE_Q; n += THREADS) {
    var range = vec2(0u);
    if (first + n < seq.len_q) {
      range = key_range_of(seq, first + n);
    }
    s_range[n] = range;
  }
  if (KEEP_Q) {
    let valid = max(seq.len_q, first) - first;
    load_transposed(0u, TYPE_Q, Source(place.q + first * p.q.row, p.q.row, valid, 0u, p.dim_qk), 0u,
                    TILE_Q, SLICE * Q_SLICES, thread);
  }
}

fn scores_of_head(seq: Sequence, b: u32, local_b: u32, local_h: u32) -> Scores {
  var scores: Scores;
  scores.bias = p.bias.base + local_b * p.bias.batch + local_h * p.bias.head;
  scores.mask = p.mask.base + local_b * p.mask.batch + local_h * p.mask.head;
  scores.slope = 0.0;
  if (p.slopes_at != 0u) {
    scores.slope = bitcast<f32>(info[p.slopes_at + b * p.heads_q + p.first_head_q + local_h]) * p.unit;
  }
  scores.at = seq.diag;
  scores.last_q = max(seq.len_q, 1u) - 1u;
  scores.last_kv = max(seq.len_kv, 1u) - 1u;
  scores.inside = vec2(0u, 0xffffffffu);
  return scores;
}

// Sets the state of the online softmax. Returns the keys that all queries of the thread see.
fn clear_state(tr: u32) -> vec2<u32> {
  var inside = vec2(0u, 0xffffffffu);
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    let range = s_range[row_of(r, tr)];
    inside = vec2(max(inside.x, range.x), min(inside.y, range.y));
    for (var c = 0u; c < BLOCKS_VO; c += 1u) {  // unrolled to 4
      r_o[r * kMaxBlocks + c] = vec4(0.0);
    }
  }
  for (var half = 0u; half < 2u; half += 1u) {  // unrolled
    r_max[half] = vec4(kLowest);
    r_sum[half] = vec4(0.0);
  }
  return inside;
}

// r_s = Q K^T of the keys from j on. Starts to load the first values.
fn compute_products(place: Place, j: u32, slices: u32, thread: u32) {
  for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
    for (var c = 0u; c < KEYS; c += 1u) {  // unrolled to 2
      r_s[r * kMaxKeys + c] = vec4(0.0);
    }
  }
  for (var slice = 0u; slice < slices; slice += 1u) {
    workgroupBarrier();  // the last product has read its operands
    put_slice(slice, thread);
    workgroupBarrier();
    if (slice + 1u < slices) {
      fetch_slice(place, j, slice + 1u, thread);
    } else {
      fetch_values(place, j, thread);
    }
    multiply_scores(select(0u, slice * SLICE * Q_STRIDE, KEEP_Q) + thread / COLUMNS, K_AT + thread % COLUMNS);
  }
}

// r_o += P V of the keys from j on. Starts to load the first slice of the keys that follow, up to `high`.
fn add_values(place: Place, j: u32, high: u32, thread: u32) {
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  for (var key = 0u; key < TILE_KV; key += DEPTH) {
    if (key > 0u) {
      workgroupBarrier();  // the last values have been read
      put_values(place, j + key, thread);
    }
    workgroupBarrier();
    if (key + DEPTH < TILE_KV) {
      fetch_values(place, j + key + DEPTH, thread);
    } else if (j + TILE_KV < high) {
      fetch_slice(place, j + TILE_KV, 0u, thread);
    }
    multiply_values(key, tr, tc);
  }
}

// Writes o and lse of the tile.
fn store_rows(seq: Sequence, first: u32, local_b: u32, local_h: u32, tr: u32, tc: u32) {
  let h = p.first_head_q + local_h;
  // Adds the row sums of all threads. In padded tensors, rows past the length are written, too.
  workgroupBarrier();
  s_part[tc * Q_STRIDE + tr] = r_sum[0];
  s_part[tc * Q_STRIDE + ROWS + tr] = r_sum[1];
  workgroupBarrier();
  let end = select(p.len_q, seq.len_q, (p.packed & 1u) != 0u);
  for (var half = 0u; half < 2u; half += 1u) {  // unrolled
    var sum = vec4(0.0);
    for (var n = 0u; n < COLUMNS; n += 1u) {
      sum += s_part[n * Q_STRIDE + half * ROWS + tr];
    }
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      let i = first + row_of(half * 4u + n, tr);
      if (i < end) {
        let lse_at = p.lse.base + local_b * p.lse.batch + local_h * p.lse.head + (seq.first_q + i) * p.lse.row;
        let scale = finalize_row(i, seq, h, sum[n], r_max[half][n], lse_at, tc == 0u);
        let at = p.o.base + local_b * p.o.batch + local_h * p.o.head + (seq.first_q + i) * p.o.row;
        for (var c = 0u; c < BLOCKS_VO; c += 1u) {  // unrolled to 4
          store_o(at, (c * COLUMNS + tc) * 4u, r_o[(half * 4u + n) * kMaxBlocks + c] * scale);
        }
      }
    }
  }
}

@compute @workgroup_size(THREADS)
fn forward(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
           @builtin(local_invocation_index) thread: u32) {
  let number = group.x + groups.x * (group.y + groups.y * group.z);
  let local_h = number % groups.y;
  let local_b = number / groups.y % groups.z;
  let tile = p.first_tile_q + groups.x - 1u - number / (groups.y * groups.z);
  let b = p.first_batch + local_b;
  let h = p.first_head_q + local_h;
  let seq = sequence_of(b);
  let first = tile * TILE_Q;
  if (first >= seq.len_q && (p.packed & 1u) != 0u) {
    return;
  }
  let local_kv = h / p.heads_per_kv - p.first_head_kv;
  let place = Place(p.q.base + local_b * p.q.batch + seq.first_q * p.q.row + local_h * p.q.head,
                    p.k.base + local_b * p.k.batch + seq.first_kv * p.k.row + local_kv * p.k.head,
                    p.v.base + local_b * p.v.batch + seq.first_kv * p.v.row + local_kv * p.v.head,
                    first, seq.len_q, seq.len_kv);
  let tr = thread / COLUMNS;
  let tc = thread % COLUMNS;
  let tiles_at = p.tiles_at + (b * p.tiles_q + tile) * 2u;
  let low = info[tiles_at];
  let high = info[tiles_at + 1u];

  let slices = select((p.dim_qk + SLICE - 1u) / SLICE, Q_SLICES, KEEP_Q);
  let begin = low / TILE_KV * TILE_KV;
  if (begin < high) {
    fetch_slice(place, begin, 0u, thread);
  }
  load_queries(seq, place, thread);
  var scores = scores_of_head(seq, b, local_b, local_h);
  workgroupBarrier();
  scores.inside = clear_state(tr);

  for (var j = begin; j < high; j += TILE_KV) {
    var keep: DropoutBits;
    if (DROPOUT) {
      keep = draw_bits(first, j, TILE_Q, TILE_KV, dropout_head(b, h), thread);
    }
    compute_products(place, j, slices, thread);
    let turn = (j / TILE_KV) & 1u;
    store_maxima(modify_scores(scores, first, j, tr, tc), turn, tr, tc);
    workgroupBarrier();  // maxima are stored; K and Q have been read
    if (thread == 0u) {
      atomicStore(&s_grown[1u - turn], 0u);
    }
    put_values(place, j, thread);
    update_maxima(turn, tr);
    exponentiate();
    if (DROPOUT) {
      drop(keep, first, j, tr, tc);
    }
    store_p(tr, tc);
    add_values(place, j, high, thread);
  }
  store_rows(seq, first, local_b, local_h, tr, tc);
}
