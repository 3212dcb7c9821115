// merge: merges two partial results over disjoint keys (docs/semantics.md, "Merge").
//
// Grid: x * y blocks of LINES lines, z sequences. A line is one head of one row, heads fastest.
// Threads: the first LINES threads compute the weights and lse of a line each; then a thread writes a word
// of o at a time. If a row shares a word with its neighbour in memory, only its own half is
// changed, by atomic operations.
// In place (o is o1, lse is lse1): only the thread that writes an element of o or lse reads it.
// Memory-bound.

//! include merge_weights

// Strides count elements; the lse have no dimension.
struct MergeParameters {
  o1: StridedTensor,
  o2: StridedTensor,
  o: StridedTensor,
  lse1: StridedTensor,
  lse2: StridedTensor,
  lse: StridedTensor,
  rows: u32,
  heads: u32,
  dim: u32,
  first_line: u32,  // line of the grid's first workgroup
}

@group(0) @binding(0) var<uniform> p: MergeParameters;
@group(0) @binding(1) var<storage, read> o1: array<u32>;  // not used where IN_PLACE_O
@group(0) @binding(2) var<storage, read> lse1: array<u32>;  // not used where IN_PLACE_LSE
@group(0) @binding(3) var<storage, read> o2: array<u32>;
@group(0) @binding(4) var<storage, read> lse2: array<u32>;
@group(0) @binding(5) var<storage, read_write> to: array<atomic<u32>>;  // o
@group(0) @binding(6) var<storage, read_write> lse: array<u32>;

const kThreads = 256u;

override TYPE_1: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_2: u32 = 0u;
override TYPE_TO: u32 = 0u;
override LINES: u32 = 16u;
override IN_PLACE_O: bool = false;  // the types of o1 and o are equal
override IN_PLACE_LSE: bool = false;
override HAS_2: bool = true;   // false: o2 is 0, a sink
override HAS_LSE: bool = true;

var<workgroup> s_weights: array<vec2<f32>, LINES>;

fn source_bits(n: u32, at: u32) -> u32 {
  let element = select(TYPE_1, TYPE_2, n == 1u);
  let word = select(at / 2u, at, element == 0u);
  var bits = 0u;
  if (n == 1u) {
    bits = o2[word];
  } else if (IN_PLACE_O) {
    bits = atomicLoad(&to[word]);
  } else {
    bits = o1[word];
  }
  return select((bits >> (at % 2u * 16u)) & 0xffffu, bits, element == 0u);
}

// A weighted element of a partial result, which is not read if the weight is 0.
fn part_of(n: u32, at: u32, weight: f32) -> f32 {
  if (weight == 0.0) {
    return 0.0;
  }
  return weight * value_of(source_bits(n, at), select(TYPE_1, TYPE_2, n == 1u));
}

@compute @workgroup_size(kThreads)
fn merge(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
         @builtin(local_invocation_index) thread: u32) {
  let b = group.z;
  let lines = lines_of(group, groups);
  if (thread < lines.count) {
    let place = place_of(lines.first + thread);
    let at1 = row_at(p.lse1, b, place.i, place.h);
    var bits1 = 0u;
    if (IN_PLACE_LSE) {
      bits1 = lse[at1];
    } else {
      bits1 = lse1[at1];
    }
    let x = weights_of(bits1, lse2[row_at(p.lse2, b, place.i, place.h)]);
    s_weights[thread] = vec2(x.first, x.second);
    if (HAS_LSE) {
      lse[row_at(p.lse, b, place.i, place.h)] = x.lse;
    }
  }
  workgroupBarrier();
  // A row may begin in the middle of a word.
  let odd = (p.o.base | p.o.batch | p.o.row | p.o.head) & 1u;
  let words = words_of_row(odd, p.dim, TYPE_TO);
  for (var n = thread; n < lines.count * words; n += kThreads) {
    let place = place_of(lines.first + n / words);
    let at = row_at(p.o, b, place.i, place.h);
    if (n % words >= words_of_row(at, p.dim, TYPE_TO)) {
      continue;
    }
    let weights = s_weights[n / words];
    let word = word_of(at, n % words, TYPE_TO);
    var bits = array<u32, 2>(0u, 0u);
    for (var m = 0u; m < select(2u, 1u, TYPE_TO == 0u); m += 1u) {
      let dim = word.dim + m;
      if (dim < p.dim) {
        var x = part_of(0u, row_at(p.o1, b, place.i, place.h) + dim, weights.x);
        if (HAS_2) {
          x += part_of(1u, row_at(p.o2, b, place.i, place.h) + dim, weights.y);
        }
        bits[m] = bits_of(x, TYPE_TO);
      }
    }
    put(word, p.dim, bits[0], bits[1], TYPE_TO);
  }
}
