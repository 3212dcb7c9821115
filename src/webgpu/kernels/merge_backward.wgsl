// merge_backward: gradients of one of two merged partial results (docs/semantics.md, "Merge"): of
// the first, or with the two exchanged of the second. Either output may be left out.
//
// Grid: x * y blocks of LINES lines, z batch entries. A line is one head of one row, heads first.
// Roles: the first LINES threads have a line's weight each; then LANES threads share a line: a word
// of its gradient at a time, and part of dot(dout, o1 - o); the parts are added up in order. Words
// that a row shares with what lies next to it are changed by atomic operations on its own half
// alone.
// Bound by memory.

// begin: rows
// A tensor's rows: element x of row i, head h, entry b is at
// base + b * batch + i * row + h * head + x.
struct Rows {
  base: u32,
  batch: u32,
  row: u32,
  head: u32,
}
// end: rows

// All in elements; statistics have no dimension.
struct MergeBackward {
  o1: Rows,
  o: Rows,
  dout: Rows,
  dout1: Rows,
  lse1: Rows,
  lse2: Rows,
  dlse: Rows,
  dlse1: Rows,
  rows: u32,
  heads: u32,
  dim: u32,
  first_line: u32,  // what the grid's first line is
}

@group(0) @binding(0) var<uniform> p: MergeBackward;
@group(0) @binding(1) var<storage, read> o1: array<u32>;
@group(0) @binding(2) var<storage, read> o: array<u32>;
@group(0) @binding(3) var<storage, read> dout: array<u32>;
@group(0) @binding(4) var<storage, read> lse1: array<u32>;
@group(0) @binding(5) var<storage, read> lse2: array<u32>;
@group(0) @binding(6) var<storage, read> dlse: array<u32>;
@group(0) @binding(7) var<storage, read_write> to: array<atomic<u32>>;  // dout1
@group(0) @binding(8) var<storage, read_write> dlse1: array<u32>;

const kThreads = 256u;
const LINES = 16u;
const LANES = kThreads / LINES;
const kLog2E = 1.44269504;
const kLn2 = 0.69314718;

override TYPE_1: u32 = 0u;  // of o1: 0: f32, 1: f16, 2: bf16
override TYPE_O: u32 = 0u;  // of o and dout
override TYPE_TO: u32 = 0u;  // of dout1
override HAS_1: bool = true;  // without: o1 is 0, a sink
override HAS_DLSE: bool = true;
override HAS_DOUT1: bool = true;
override HAS_DLSE1: bool = true;

var<workgroup> s_weights: array<f32, LINES>;
var<workgroup> s_sums: array<f32, kThreads>;

// begin: bf16
// Nearest even.
fn bf16_bits(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return (bits >> 16u) | 0x40u;
  }
  return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
// end: bf16

// begin: element
fn value_of(bits: u32, element: u32) -> f32 {
  switch element {
    case 0u: { return bitcast<f32>(bits); }
    case 1u: { return unpack2x16float(bits).x; }
    default: { return bitcast<f32>(bits << 16u); }
  }
}

// Nearest even. What is too large becomes infinite, which the language's own conversion to f16 does
// not promise.
fn bits_of(x: f32, element: u32) -> u32 {
  let bits = bitcast<u32>(x);
  if (element == 0u) {
    return bits;
  }
  if (element == 2u) {
    return bf16_bits(x);
  }
  let magnitude = bits & 0x7fffffffu;
  if (magnitude >= 0x477ff000u) {
    return ((bits >> 16u) & 0x8000u) | select(0x7c00u, 0x7e00u, magnitude > 0x7f800000u);
  }
  return pack2x16float(vec2(x, 0.0)) & 0xffffu;
}

fn is_finite(bits: u32, element: u32) -> bool {
  let exponent = select(select(0x7f80u, 0x7c00u, element == 1u), 0x7f800000u, element == 0u);
  return (bits & exponent) != exponent;
}
// end: element

// begin: put
// The word of `to` that a thread writes: elements [dim, dim + 2) of a row from `at` on, or element
// dim alone where they are f32. Those outside of [0, dims) are not the row's: dim may be -1.
struct Word {
  word: u32,
  dim: u32,
}

fn words_of_row(at: u32, dims: u32, element: u32) -> u32 {
  return select((at % 2u + dims + 1u) / 2u, dims, element == 0u);
}

fn word_of(at: u32, n: u32, element: u32) -> Word {
  if (element == 0u) {
    return Word(at + n, n);
  }
  return Word(at / 2u + n, n * 2u - at % 2u);
}

fn put(x: Word, dims: u32, first: u32, second: u32, element: u32) {
  if (element == 0u) {
    atomicStore(&to[x.word], first);
    return;
  }
  var mask = 0u;
  mask |= select(0u, 0x0000ffffu, x.dim < dims);
  mask |= select(0u, 0xffff0000u, x.dim + 1u < dims);
  let bits = first | (second << 16u);
  if (mask == 0xffffffffu) {
    atomicStore(&to[x.word], bits);
  } else {
    atomicAnd(&to[x.word], ~mask);
    atomicOr(&to[x.word], bits & mask);
  }
}

fn bits_at(at: u32, element: u32) -> u32 {
  if (element == 0u) {
    return atomicLoad(&to[at]);
  }
  return (atomicLoad(&to[at / 2u]) >> (at % 2u * 16u)) & 0xffffu;
}
// end: put

// begin: exp
// 2^x, 0 from -200 down; not by max(), in which NaN would get lost.
fn exp_of(x: f32) -> f32 {
  return select(exp2(x), 0.0, x < -200.0);
}
// end: exp

// begin: log
// ln x for x > 0: 2^n (1 + f) / (1 - f), and the series of atanh. Infinity and NaN are themselves.
fn log_of(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  if (bits >= 0x7f800000u) {
    return x;
  }
  var n = f32(bits >> 23u) - 127.0;
  var m = bitcast<f32>((bits & 0x007fffffu) | 0x3f800000u);
  if (m > 1.41421356) {
    m *= 0.5;
    n += 1.0;
  }
  let f = (m - 1.0) / (m + 1.0);
  let y = f * f;
  let series = 1.0 + y * (0.33333333 + y * (0.2 + y * (0.14285714 + y * 0.11111111)));
  return n * kLn2 + 2.0 * f * series;
}
// end: log

// begin: weights
const kEmpty = 0xff800000u;  // -inf

struct Weights {
  lse: u32,
  first: f32,
  second: f32,
}

// Of two partial results by the bits of their lse: 0 for one without keys.
fn weights_of(bits1: u32, bits2: u32) -> Weights {
  if (bits1 == kEmpty) {
    return Weights(bits2, 0.0, select(1.0, 0.0, bits2 == kEmpty));
  }
  if (bits2 == kEmpty) {
    return Weights(bits1, 1.0, 0.0);
  }
  let x1 = bitcast<f32>(bits1);
  let x2 = bitcast<f32>(bits2);
  let largest = max(x1, x2);
  let e1 = exp_of((x1 - largest) * kLog2E);
  let e2 = exp_of((x2 - largest) * kLog2E);
  let sum = e1 + e2;
  return Weights(bitcast<u32>(largest + log_of(sum)), e1 / sum, e2 / sum);
}

fn row_at(x: Rows, b: u32, i: u32, h: u32) -> u32 {
  return x.base + b * x.batch + i * x.row + h * x.head;
}
// end: weights

fn value_at(n: u32, at: u32, element: u32) -> f32 {
  let word = select(at / 2u, at, element == 0u);
  var bits = 0u;
  switch n {
    case 0u: { bits = o1[word]; }
    case 1u: { bits = o[word]; }
    default: { bits = dout[word]; }
  }
  return value_of(select((bits >> (at % 2u * 16u)) & 0xffffu, bits, element == 0u), element);
}

// Elements of a line that a lane has; gives its part of the sum. With weight 0 nothing is read.
fn gradients_of(b: u32, i: u32, h: u32, lane: u32, weight: f32) -> f32 {
  let at = row_at(p.dout1, b, i, h);
  let per_word = select(2u, 1u, TYPE_TO == 0u);
  var sum = 0.0;
  for (var n = lane; n < words_of_row(at, p.dim, TYPE_TO); n += LANES) {
    let word = word_of(at, n, TYPE_TO);
    var bits = array<u32, 2>(0u, 0u);
    for (var m = 0u; m < per_word; m += 1u) {
      let dim = word.dim + m;
      if (weight != 0.0 && dim < p.dim) {
        let gradient = value_at(2u, row_at(p.dout, b, i, h) + dim, TYPE_O);
        var difference = -value_at(1u, row_at(p.o, b, i, h) + dim, TYPE_O);
        if (HAS_1) {
          difference += value_at(0u, row_at(p.o1, b, i, h) + dim, TYPE_1);
        }
        sum += gradient * difference;
        bits[m] = bits_of(weight * gradient, TYPE_TO);
      }
    }
    if (HAS_DOUT1) {
      put(word, p.dim, bits[0], bits[1], TYPE_TO);
    }
  }
  return sum;
}

@compute @workgroup_size(kThreads)
fn merge_backward(@builtin(workgroup_id) group: vec3<u32>,
                  @builtin(num_workgroups) groups: vec3<u32>,
                  @builtin(local_invocation_index) thread: u32) {
  let b = group.z;
  let first = p.first_line + (group.y * groups.x + group.x) * LINES;
  let lines = min(LINES, p.rows * p.heads - min(first, p.rows * p.heads));
  if (thread < lines) {
    let i = (first + thread) / p.heads;
    let h = (first + thread) % p.heads;
    let x = weights_of(lse1[row_at(p.lse1, b, i, h)], lse2[row_at(p.lse2, b, i, h)]);
    s_weights[thread] = x.first;
  }
  workgroupBarrier();
  let line = thread / LANES;
  if (line < lines) {
    let i = (first + line) / p.heads;
    let h = (first + line) % p.heads;
    s_sums[thread] = gradients_of(b, i, h, thread % LANES, s_weights[line]);
  }
  workgroupBarrier();
  if (HAS_DLSE1 && thread < lines) {
    let i = (first + thread) / p.heads;
    let h = (first + thread) % p.heads;
    let weight = s_weights[thread];
    var sum = 0.0;
    if (weight != 0.0) {
      for (var n = 0u; n < LANES; n += 1u) {
        sum += s_sums[thread * LANES + n];
      }
      if (HAS_DLSE) {
        sum += bitcast<f32>(dlse[row_at(p.dlse, b, i, h)]);
      }
    }
    dlse1[row_at(p.dlse1, b, i, h)] = bitcast<u32>(weight * sum);
  }
}
