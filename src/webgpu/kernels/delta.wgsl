// delta: writes {lse, delta} of each query and head to `info`, for the other kernels of the backward.
// delta = dot(dout, o) - dlse, or the caller's.
//
// Grid: x groups of 8 queries, y query heads, z sequences, of a chunk.
// Threads: 8 rows x 16 threads; each adds every 16th dimension.
// Reads the caller's tensors by elements: strides of o, dout, lse, dlse and delta count elements here.
// Packed lse, dlse and delta have batch 0, too.
// A row with lse = -inf sees no key and gets {kNothing, 0}. kNothing is finite and larger than any score
// of such a row and than a sink, even in units of log2, so that P is 0.

//! include parameters
//! include sequence

@group(0) @binding(0) var<uniform> p: AttentionParameters;
@group(0) @binding(1) var<storage, read> o: array<u32>;
@group(0) @binding(2) var<storage, read> dout: array<u32>;
@group(0) @binding(3) var<storage, read> lse: array<u32>;
@group(0) @binding(4) var<storage, read> dlse: array<u32>;
@group(0) @binding(5) var<storage, read> delta: array<u32>;
@group(0) @binding(6) var<storage, read_write> info: array<u32>;

const kRows = 8u;
const kLanes = 16u;
const kNothing = 2.0e38;

override TYPE_O: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_DOUT: u32 = 0u;
override DLSE: bool = false;   // dlse is given
override DELTA: bool = false;  // delta is given: o, dout and dlse are not read

var<workgroup> s_sums: array<f32, kRows * kLanes>;

fn element(word: u32, at: u32, type_: u32) -> f32 {
  if (type_ == 0u) {
    return bitcast<f32>(word);
  }
  let bits = select(word & 0xffffu, word >> 16u, (at & 1u) != 0u);
  if (type_ == 1u) {
    return unpack2x16float(bits).x;
  }
  return bitcast<f32>(bits << 16u);
}

fn o_element(at: u32) -> f32 {
  return element(o[select(at / 2u, at, TYPE_O == 0u)], at, TYPE_O);
}

fn dout_element(at: u32) -> f32 {
  return element(dout[select(at / 2u, at, TYPE_DOUT == 0u)], at, TYPE_DOUT);
}

fn place_of(rows: StridedTensor, b: u32, h: u32, i: u32) -> u32 {
  return rows.base + b * rows.batch + h * rows.head + i * rows.row;
}

@compute @workgroup_size(kRows * kLanes)
fn write_lse_delta(@builtin(workgroup_id) group: vec3<u32>,
               @builtin(local_invocation_index) thread: u32) {
  let b = p.first_batch + group.z;
  let h = p.first_head_q + group.y;
  let seq = sequence_of(b);
  let i = (p.first_tile_q + group.x) * kRows + thread / kLanes;
  let row = seq.first_q + i;
  var sum = 0.0;
  if (!DELTA && i < seq.len_q) {
    let at_o = place_of(p.o, group.z, group.y, row);
    let at_dout = place_of(p.dout, group.z, group.y, row);
    for (var x = thread % kLanes; x < p.dim_vo; x += kLanes) {
      sum = fma(o_element(at_o + x), dout_element(at_dout + x), sum);
    }
  }
  s_sums[thread] = sum;
  workgroupBarrier();
  if (thread % kLanes != 0u || i >= seq.len_q) {
    return;
  }
  for (var n = 1u; n < kLanes; n += 1u) {
    sum += s_sums[thread + n];
  }
  if (DLSE) {
    sum -= bitcast<f32>(dlse[place_of(p.dlse, group.z, group.y, row)]);
  }
  if (DELTA) {
    sum = bitcast<f32>(delta[place_of(p.delta, group.z, group.y, row)]);
  }
  let lse_bits = lse[place_of(p.lse, group.z, group.y, row)];
  let nothing = lse_bits == 0xff800000u;
  let at = p.lse_delta_at + (h * p.rows + seq.first_row + i) * 2u;
  info[at] = select(lse_bits, bitcast<u32>(kNothing), nothing);
  info[at + 1u] = select(bitcast<u32>(sum), 0u, nothing);
}
