// combine: merges the partial results of the splits of a row (decode.wgsl) and the sink into o and lse, by
// their lse. Rows past a sequence's length become empty rows.
//
// Grid: x rows of the longest sequence, y heads, z sequences, of a chunk; one row per workgroup.
// Threads: each handles the lse of a split or a word of o at a time; the first writes lse. If a row shares
// a word with its neighbour in memory, only its own half is changed, by atomic operations.

//! include constants
//! include convert_bits
//! include store_words
//! include nonfinite
//! include exp
//! include log
//! include strided_tensor

// Strides of partials count words, those of o and lse elements. Packed tensors have batch 0.
struct CombineParameters {
  partial_o: StridedTensor,
  partial_lse: StridedTensor,
  o: StridedTensor,
  lse: StridedTensor,
  dim: u32,
  splits: u32,
  sequences_at: u32,
  sinks_at: u32,  // 0: no sinks
  first_batch: u32,  // sequence, head and row of the grid's first workgroup
  first_head: u32,
  first_row: u32,
  packed: u32,  // 1: rows past a sequence's length belong to another
  lse_given: u32,
  nonfinite_zero: u32,  // 1: writes 0 for non-finite elements and counts them
}

@group(0) @binding(0) var<uniform> p: CombineParameters;
@group(0) @binding(1) var<storage, read> partials: array<u32>;
@group(0) @binding(2) var<storage, read> info: array<u32>;
@group(0) @binding(3) var<storage, read_write> to: array<atomic<u32>>;  // o
@group(0) @binding(4) var<storage, read_write> lse: array<u32>;
@group(0) @binding(5) var<storage, read_write> count: atomic<u32>;  // of elements replaced by 0

const kThreads = 64u;

override TYPE_TO: u32 = 0u;  // 0: f32, 1: f16, 2: bf16

// Weights of up to kThreads splits; before that, partial maxima.
var<workgroup> s_weights: array<f32, kThreads>;

// exp(lse - largest); 0 for an empty split.
fn weight_of(bits: u32, largest: f32) -> f32 {
  if (bits == kEmpty) {
    return 0.0;
  }
  return exp_of((bitcast<f32>(bits) - largest) * kLog2E);
}

// The largest lse of a row's splits and sink.
fn largest_of(at: u32, sink: u32, thread: u32) -> f32 {
  var largest = -3.4028234e38;
  if (sink != kEmpty) {
    largest = bitcast<f32>(sink);
  }
  for (var s = thread; s < p.splits; s += kThreads) {
    let bits = partials[at + s];
    if (bits != kEmpty) {
      largest = max(largest, bitcast<f32>(bits));
    }
  }
  s_weights[thread] = largest;
  workgroupBarrier();
  for (var n = 0u; n < min(p.splits, kThreads); n += 1u) {
    largest = max(largest, s_weights[n]);
  }
  return largest;
}

// Stores the weights of the splits from `first` on.
fn weigh(at: u32, first: u32, largest: f32, thread: u32) {
  workgroupBarrier();  // the last weights have been read
  if (first + thread < p.splits) {
    s_weights[thread] = weight_of(partials[at + first + thread], largest);
  }
  workgroupBarrier();
}

// Adds the weighted elements of a word over `count` splits. Empty splits have not written any.
fn add_splits(so_far: vec2<f32>, at: u32, first: u32, count: u32, word: Word) -> vec2<f32> {
  let dims = min(vec2(word.dim, word.dim + 1u), vec2(p.dim - 1u));
  var x = so_far;
  for (var s = 0u; s < count; s += 4u) {
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      let split = min(s + n, count - 1u);
      let weight = select(s_weights[split], 0.0, s + n >= count);
      let row = at + (first + split) * p.dim;
      let values = vec2(bitcast<f32>(partials[row + dims.x]), bitcast<f32>(partials[row + dims.y]));
      x += select(weight * values, vec2(0.0), weight == 0.0);
    }
  }
  return x;
}

@compute @workgroup_size(kThreads)
fn combine(@builtin(workgroup_id) group: vec3<u32>,
           @builtin(local_invocation_index) thread: u32) {
  let h = group.y;
  let i = p.first_row + group.x;
  let sequence = p.sequences_at + (p.first_batch + group.z) * 8u;
  let inside = i < info[sequence];
  if (!inside && p.packed != 0u) {
    return;
  }
  let row = info[sequence + 2u] + i;
  let lse_at = p.partial_lse.base + group.z * p.partial_lse.batch + h * p.partial_lse.head +
               row * p.partial_lse.row;
  let o_at = p.partial_o.base + group.z * p.partial_o.batch + h * p.partial_o.head +
             row * p.partial_o.row;
  var sink = kEmpty;
  if (p.sinks_at != 0u) {
    sink = info[p.sinks_at + p.first_head + h];
  }
  let splits = select(0u, p.splits, inside);
  let largest = largest_of(lse_at, sink, thread);
  let at = p.o.base + group.z * p.o.batch + h * p.o.head + row * p.o.row;
  let words = words_of_row(at, p.dim, TYPE_TO);
  var replaced = 0u;
  for (var begin = 0u; begin < words; begin += kThreads) {
    let word = word_of(at, begin + thread, TYPE_TO);
    var x = vec2(0.0);
    var sum = select(0.0, weight_of(sink, largest), inside);
    for (var first = 0u; first < splits; first += kThreads) {
      let several = min(splits - first, kThreads);
      weigh(lse_at, first, largest, thread);
      for (var s = 0u; s < several; s += 1u) {
        sum += s_weights[s];
      }
      if (begin + thread < words) {
        x = add_splits(x, o_at, first, several, word);
      }
    }
    let some = !(sum == 0.0);  // a key is visible; true for NaN
    if (p.lse_given != 0u && begin + thread == 0u) {
      var bits = kEmpty;
      if (some) {
        bits = bitcast<u32>(largest + log_of(sum));
      }
      lse[p.lse.base + group.z * p.lse.batch + h * p.lse.head + row * p.lse.row] = bits;
    }
    if (begin + thread < words) {
      var bits = vec2(0u);
      for (var m = 0u; m < select(2u, 1u, TYPE_TO == 0u); m += 1u) {
        if (some) {
          bits[m] = bits_of(x[m] / sum, TYPE_TO);
        }
        if (p.nonfinite_zero != 0u && word.dim + m < p.dim && !is_finite(bits[m], TYPE_TO)) {
          bits[m] = 0u;
          replaced += 1u;
        }
      }
      put(word, p.dim, bits.x, bits.y, TYPE_TO);
    }
  }
  count_replaced(replaced);
}
