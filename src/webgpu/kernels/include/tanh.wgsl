// tanh, for softcap.
//! include constants

// tanh to about 2 ulp. Below 0.55 a series, because the quotient cancels. WGSL's own may be 2^-11 off.
fn tanh_of(x: vec4<f32>) -> vec4<f32> {
  let y = x * x;
  let series = x + x * y * (-0.33333333 + y * (0.13333333 + y * (-0.05396825 + y * (0.02186949 +
               y * (-0.00886324 + y * (0.00359213 - y * 0.00145583))))));
  let e = exp2(-2.0 * kLog2E * min(abs(x), vec4(20.0)));
  return select(sign(x) * (1.0 - e) / (1.0 + e), series, abs(x) < vec4(0.55));
}
