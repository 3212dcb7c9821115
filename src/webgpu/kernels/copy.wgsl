// copy: copies rows of one tensor to the same rows of another, element by element, for any strides,
// offsets and types. Options: rotary embedding, addition to the destination, zeros for non-finite
// elements. It packs inputs into rows of 16-byte units, copies staged results to the caller's tensors,
// appends to a cache, and is the rope operation.
//
// Grid: x * y blocks of LINES lines, z sequences. A line is one head of one row, heads fastest.
// Threads: each writes a word of the destination at a time. If a line shares a word with its neighbour in
// memory, only its own half is changed, by atomic operations.
// Workgroup memory: the rotated pairs of all lines, f32 [LINES, rot_dim], complete before the first is
// written, so that a tensor may be rotated in place.
// Memory-bound. Elements of the same type are copied as bits.

//! include strided_tensor
//! include convert_bits
//! include store_words
//! include nonfinite
//! include multiply_high

// Strides count elements. Packed tensors have batch 0 if `which` selects rows of sequences; a sequence
// then starts at its first row.
struct CopyParameters {
  source: StridedTensor,
  to: StridedTensor,
  positions: StridedTensor,  // i32; head unused
  table: StridedTensor,      // block_table; `row` steps from page to page of a sequence, head unused
  rows: u32,        // of the longest sequence
  heads: u32,
  dim: u32,         // elements of a source row
  dims: u32,        // elements of a destination row; those past `dim` become 0
  first_batch: u32,  // sequence and line of the grid's first workgroup
  first_line: u32,
  sequences_at: u32,
  which: u32,  // rows of a sequence; 0: `rows`, 1: queries, 2: keys, 3: new keys
  past: u32,   // rows past the length; 0: not touched, 1: zeroed (padded tensors only)
  paged: u32,  // which tensor has pages; 0: none, 1: source, 2: to. `batch` then steps by pages
  page_size: u32,
  num_pages: u32,

  // The position of row i of a sequence is i + offset (64 bits, low word first), plus, by position_of,
  // 0: nothing, 1: the diagonal, 2: the number of cached keys, 4: positions[i]. 3: positions[i] alone.
  offset: vec2<u32>,
  position_of: u32,
  inverse: u32,     // 1: rotate back
  table_rows: u32,  // rows of the caller's tables; 0: the table of frequencies
  cosines_at: u32,
  cosines_row: u32,
  sines_at: u32,
  sines_row: u32,
  rot_dim: u32,  // 0 without ROPE
  accumulate: u32,      // 1: adds to the destination
  nonfinite_zero: u32,  // 1: writes 0 for non-finite elements and counts them
}

@group(0) @binding(0) var<uniform> p: CopyParameters;
@group(0) @binding(1) var<storage, read> source: array<u32>;  // not used IN_PLACE
@group(0) @binding(2) var<storage, read_write> to: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read> info: array<u32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
@group(0) @binding(5) var<storage, read> block_table: array<u32>;
// The caller's f32 [position, rot_dim / 2]; or u32 {low, high} per pair, the 64 fraction bits of
// base^(-2m / rot_dim) / (2 pi), turns per position.
@group(0) @binding(6) var<storage, read> cosines: array<u32>;
@group(0) @binding(7) var<storage, read> sines: array<u32>;
@group(0) @binding(8) var<storage, read_write> count: atomic<u32>;  // of elements replaced by 0

const kThreads = 256u;

override TYPE_SOURCE: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_TO: u32 = 0u;
override LINES: u32 = 16u;
override ROPE: u32 = 0u;  // 0: none, 1: interleaved, 2: half
override MAX_ROT_DIM: u32 = 256u;  // at least rot_dim
override IN_PLACE: bool = false;  // `source` is `to`; the types are equal

override STAGED = select(1u, LINES * MAX_ROT_DIM, ROPE != 0u);

var<workgroup> s_rotated: array<f32, STAGED>;

fn source_bits(at: u32) -> u32 {
  if (IN_PLACE) {
    return bits_at(at, TYPE_SOURCE);
  }
  if (TYPE_SOURCE == 0u) {
    return source[at];
  }
  return (source[at / 2u] >> (at % 2u * 16u)) & 0xffffu;
}

const kNothing = 0u;
const kZeros = 1u;
const kCopied = 2u;

// A line: its positions in both tensors, and whether it is skipped, zeroed or copied.
struct Line {
  source: u32,
  to: u32,
  row: u32,
  state: u32,
}

struct Place {
  at: u32,
  exists: bool,
}

// The position of row i, head h; b is the sequence in the grid.
fn place_of(x: StridedTensor, b: u32, i: u32, h: u32, paged: bool) -> Place {
  if (!paged) {
    return Place(x.base + b * x.batch + i * x.row + h * x.head, true);
  }
  let at = p.table.base + (p.first_batch + b) * p.table.batch + i / p.page_size * p.table.row;
  let page = block_table[at];
  return Place(x.base + page * x.batch + i % p.page_size * x.row + h * x.head, page < p.num_pages);
}

fn line_of(b: u32, n: u32) -> Line {
  let i = n / p.heads;
  let h = n % p.heads;
  if (i >= p.rows) {
    return Line(0u, 0u, i, kNothing);
  }
  let sequence = p.sequences_at + (p.first_batch + b) * 8u;
  var rows = p.rows;
  var first_source = 0u;
  var first_to = 0u;
  switch p.which {
    case 0u: {}
    case 3u: {
      rows = info[sequence + 1u] - info[sequence + 6u];
      first_to = info[sequence + 6u];
    }
    default: {
      rows = info[sequence + p.which - 1u];
      first_source = info[sequence + p.which + 1u];
      first_to = first_source;
    }
  }
  let inside = i < rows;
  if (!inside && p.past == 0u) {
    return Line(0u, 0u, i, kNothing);
  }
  let to_row = place_of(p.to, b, first_to + i, h, p.paged == 2u);
  let source_row = place_of(p.source, b, first_source + i, h, p.paged == 1u);
  let state = select(kZeros, kCopied, inside && source_row.exists);
  return Line(source_row.at, to_row.at, i, select(kNothing, state, to_row.exists));
}

// 64 bits, two's complement, low word first.
fn widened(x: u32) -> vec2<u32> {
  return vec2(x, select(0u, 0xffffffffu, (x & 0x80000000u) != 0u));
}

fn add_wide(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn position_of(b: u32, i: u32) -> vec2<u32> {
  let sequence = p.sequences_at + (p.first_batch + b) * 8u;
  if (p.position_of >= 3u) {
    let first = select(0u, info[sequence + p.which + 1u], p.which == 1u || p.which == 2u);
    let given = widened(positions[p.positions.base + b * p.positions.batch + (first + i) * p.positions.row]);
    return add_wide(given, select(vec2(0u), p.offset, p.position_of == 4u));
  }
  var position = add_wide(p.offset, vec2(i, 0u));
  if (p.position_of != 0u) {
    position = add_wide(position, widened(info[sequence + p.position_of + 4u]));
  }
  return position;
}

// Cosine and sine of pair m at a position. The product of position and turns per position is exact in
// 64 fraction bits; it is rounded to f32 only after reduction to 1/8 of a turn.
fn rotation(position: vec2<u32>, m: u32) -> vec2<f32> {
  if (p.table_rows != 0u) {
    let last = p.table_rows - 1u;
    var row = select(min(position.x, last), last, position.y != 0u);
    row = select(row, 0u, (position.y & 0x80000000u) != 0u);
    return vec2(bitcast<f32>(cosines[p.cosines_at + row * p.cosines_row + m]),
                bitcast<f32>(sines[p.sines_at + row * p.sines_row + m]));
  }
  let step = vec2(cosines[p.cosines_at + 2u * m], cosines[p.cosines_at + 2u * m + 1u]);
  let turn = multiply_high(position.x, step.x) + position.x * step.y + position.y * step.x;
  let quarter = (turn + 0x20000000u) >> 30u;
  let x = f32(bitcast<i32>(turn - (quarter << 30u))) * 1.46291808e-9;  // 2 pi / 2^32
  let y = x * x;
  // Minimax polynomials for |x| <= pi / 4 (Moshier, Cephes, sinf.c and cosf.c).
  let sine = x + x * y * (-1.6666654611e-1 + y * (8.3321608736e-3 - y * 1.9515295891e-4));
  let series = 4.166664568e-2 + y * (-1.388731625e-3 + y * 2.443315712e-5);
  let cosine = 1.0 - 0.5 * y + y * y * series;
  let turned = select(vec2(cosine, sine), vec2(-sine, cosine), (quarter & 1u) != 0u);
  return select(turned, -turned, (quarter & 2u) != 0u);
}

fn rotate_lines(b: u32, first: u32, thread: u32) {
  let pairs = p.rot_dim / 2u;
  for (var n = thread; n < LINES * pairs; n += kThreads) {
    let m = n % pairs;
    let line = line_of(b, first + n / pairs);
    if (line.state == kCopied) {
      let one = select(m, 2u * m, ROPE == 1u);
      let other = select(m + pairs, 2u * m + 1u, ROPE == 1u);
      let x = value_of(source_bits(line.source + one), TYPE_SOURCE);
      let y = value_of(source_bits(line.source + other), TYPE_SOURCE);
      var turn = rotation(position_of(b, line.row), m);
      turn.y = select(turn.y, -turn.y, p.inverse != 0u);
      s_rotated[n / pairs * p.rot_dim + one] = x * turn.x - y * turn.y;
      s_rotated[n / pairs * p.rot_dim + other] = x * turn.y + y * turn.x;
    }
  }
}

// The bits to be written for element `dim` of a line, before non-finite ones are replaced.
fn result_of(line: Line, staged: u32, dim: u32) -> u32 {
  let rotated = ROPE != 0u && dim < p.rot_dim;
  let exists = line.state == kCopied && dim < p.dim;
  if (TYPE_SOURCE == TYPE_TO && p.accumulate == 0u && !rotated) {
    if (!exists) {
      return 0u;
    }
    return source_bits(line.source + dim);
  }
  var x = 0.0;
  if (exists) {
    if (rotated) {
      x = s_rotated[staged + dim];
    } else {
      x = value_of(source_bits(line.source + dim), TYPE_SOURCE);
    }
  }
  if (p.accumulate != 0u) {
    x += value_of(bits_at(line.to + dim, TYPE_TO), TYPE_TO);
  }
  return bits_of(x, TYPE_TO);
}

@compute @workgroup_size(kThreads)
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
  let b = group.z;
  let first = p.first_line + (group.y * groups.x + group.x) * LINES;
  if (ROPE != 0u) {
    rotate_lines(b, first, thread);
    workgroupBarrier();
  }
  // A row may begin in the middle of a word.
  let odd = (p.to.base | p.to.batch | p.to.row | p.to.head) & 1u;
  let words = words_of_row(odd, p.dims, TYPE_TO);
  var replaced = 0u;
  for (var n = thread; n < LINES * words; n += kThreads) {
    let line = line_of(b, first + n / words);
    if (line.state == kNothing || n % words >= words_of_row(line.to, p.dims, TYPE_TO)) {
      continue;
    }
    let word = word_of(line.to, n % words, TYPE_TO);
    var bits = array<u32, 2>(0u, 0u);
    for (var m = 0u; m < select(2u, 1u, TYPE_TO == 0u); m += 1u) {
      if (word.dim + m < p.dims) {
        bits[m] = result_of(line, n / words * p.rot_dim, word.dim + m);
        if (p.nonfinite_zero != 0u && !is_finite(bits[m], TYPE_TO)) {
          bits[m] = 0u;
          replaced += 1u;
        }
      }
    }
    put(word, p.dims, bits[0], bits[1], TYPE_TO);
  }
  count_replaced(replaced);
}
