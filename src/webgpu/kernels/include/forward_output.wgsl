// The end of a row of the forward: its scale, its lse, its elements of o.
//! include sequence
//! include exp
//! include log
//! include packed_pair

// Stores those of elements [dim, dim + 4) that exist, in the row of o at word `at`.
fn store_o(at: u32, dim: u32, x: vec4<f32>) {
  if (p.out_type == 0u) {
    for (var n = 0u; n < 4u; n += 1u) {  // unrolled
      if (dim + n < p.dim_vo) {
        o[at + dim + n] = bitcast<u32>(x[n]);
      }
    }
  } else {
    if (dim < p.dim_vo) {
      o[at + dim / 2u] = packed_pair(x.xy, p.out_type);
    }
    if (dim + 2u < p.dim_vo) {
      o[at + dim / 2u + 1u] = packed_pair(x.zw, p.out_type);
    }
  }
}

// Folds in the sink. Returns the factor that normalizes o; computes lse = maximum + log(sum), and
// stores it if `writes`.
fn finalize_row(i: u32, seq: Sequence, h: u32, sum: f32, maximum: f32, lse_at: u32, writes: bool) -> f32 {
  var lse_bits = 0xff800000u;
  var scale = 0.0;
  let some = !(sum == 0.0);  // a key is visible; true for NaN
  let natural = maximum * (1.0 / p.unit);
  if (some) {
    scale = 1.0 / sum;
  }
  if (p.sinks_at != 0u && info[p.sinks_at + h] != 0xff800000u) {
    let sink = bitcast<f32>(info[p.sinks_at + h]);
    if (some) {
      let largest = max(natural, sink);
      let whole = sum * exp_of((natural - largest) * kLog2E);
      let with_sink = whole + exp_of((sink - largest) * kLog2E);
      scale = exp_of((natural - largest) * kLog2E) / with_sink;
      lse_bits = bitcast<u32>(largest + log_of(with_sink));
    } else if (i < seq.len_q) {
      lse_bits = bitcast<u32>(sink);
    }
  } else if (some) {
    lse_bits = bitcast<u32>(natural + log_of(sum));
  }
  if (writes) {
    lse[lse_at] = lse_bits;
  }
  return scale;
}
