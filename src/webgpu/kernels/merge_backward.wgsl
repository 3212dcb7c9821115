// merge_backward: the gradients of one of two partial results that merge.wgsl merged: dout1 and dlse1 for
// the first, or with both results exchanged those of the second. Either output may be absent.
//
// Grid: x * y blocks of LINES lines, z sequences. A line is one head of one row, heads fastest.
// Threads: the first LINES threads compute the weight of a line each. Then LANES threads share a line:
// each computes words of its gradient and a part of dot(dout, o1 - o); the parts are added in order. If a
// row shares a word with its neighbour in memory, only its own half is changed, by atomic operations.
// Memory-bound.

//! include merge_weights

// Strides count elements; lse and dlse have no dimension.
struct MergeBackwardParameters {
  o1: StridedTensor,
  o: StridedTensor,
  dout: StridedTensor,
  dout1: StridedTensor,
  lse1: StridedTensor,
  lse2: StridedTensor,
  dlse: StridedTensor,
  dlse1: StridedTensor,
  rows: u32,
  heads: u32,
  dim: u32,
  first_line: u32,  // line of the grid's first workgroup
}

@group(0) @binding(0) var<uniform> p: MergeBackwardParameters;
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

override TYPE_1: u32 = 0u;  // of o1: 0: f32, 1: f16, 2: bf16
override TYPE_O: u32 = 0u;  // of o and dout
override TYPE_TO: u32 = 0u;  // of dout1
override HAS_1: bool = true;  // false: o1 is 0, a sink
override HAS_DLSE: bool = true;
override HAS_DOUT1: bool = true;
override HAS_DLSE1: bool = true;

var<workgroup> s_weights: array<f32, LINES>;
var<workgroup> s_sums: array<f32, kThreads>;

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

// Writes the lane's words of the gradient and returns its part of the sum. Reads nothing if the weight
// is 0.
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
  let lines = lines_of(group, groups);
  if (thread < lines.count) {
    let place = place_of(lines.first + thread);
    let x = weights_of(lse1[row_at(p.lse1, b, place.i, place.h)], lse2[row_at(p.lse2, b, place.i, place.h)]);
    s_weights[thread] = x.first;
  }
  workgroupBarrier();
  let line = thread / LANES;
  if (line < lines.count) {
    let place = place_of(lines.first + line);
    s_sums[thread] = gradients_of(b, place.i, place.h, thread % LANES, s_weights[line]);
  }
  workgroupBarrier();
  if (HAS_DLSE1 && thread < lines.count) {
    let place = place_of(lines.first + thread);
    let weight = s_weights[thread];
    var sum = 0.0;
    if (weight != 0.0) {
      for (var n = 0u; n < LANES; n += 1u) {
        sum += s_sums[thread * LANES + n];
      }
      if (HAS_DLSE) {
        sum += bitcast<f32>(dlse[row_at(p.dlse, b, place.i, place.h)]);
      }
    }
    dlse1[row_at(p.dlse1, b, place.i, place.h)] = bitcast<u32>(weight * sum);
  }
}
