// sink_gradient: dsink_h = -sum over all rows of exp(sink_h - lse) * delta, from what delta.wgsl wrote.
// A row that sees no key has lse = sink_h and adds its dlse. The order of the sum is fixed.
//
// Grid: x query heads, of a chunk of `batch` sequences from first_batch on.
// Threads: each adds every 256th row of each sequence.
// `accumulate`: adds to what dsink holds. Head h of the chunk is at word dsink.base + h * dsink.head.

//! include parameters
//! include constants
//! include sequence
//! include exp

@group(0) @binding(0) var<uniform> p: AttentionParameters;
@group(0) @binding(1) var<storage, read> info: array<u32>;
@group(0) @binding(2) var<storage, read_write> dsink: array<f32>;

const kThreads = 256u;

var<workgroup> s_sums: array<f32, kThreads>;

@compute @workgroup_size(kThreads)
fn sink_gradient(@builtin(workgroup_id) group: vec3<u32>,
                 @builtin(local_invocation_index) thread: u32) {
  let h = p.first_head_q + group.x;
  let sink_bits = info[p.sinks_at + h];
  let sink = bitcast<f32>(sink_bits);
  var sum = 0.0;
  if (sink_bits != 0xff800000u) {
    for (var b = p.first_batch; b < p.first_batch + p.batch; b += 1u) {
      let seq = sequence_of(b);
      for (var i = thread; i < seq.len_q; i += kThreads) {
        let at = p.lse_delta_at + (h * p.rows + seq.first_row + i) * 2u;
        let lse = bitcast<f32>(info[at]);
        let weight = exp_of((sink - lse) * kLog2E);
        sum = fma(-weight, bitcast<f32>(info[at + 1u]), sum);
      }
    }
  }
  s_sums[thread] = sum;
  for (var rest = kThreads / 2u; rest > 0u; rest /= 2u) {
    workgroupBarrier();
    if (thread < rest) {
      s_sums[thread] += s_sums[thread + rest];
    }
  }
  if (thread == 0u) {
    let at = p.dsink.base + group.x * p.dsink.head;
    dsink[at] = s_sums[0] + select(0.0, dsink[at], p.accumulate != 0u);
  }
}
