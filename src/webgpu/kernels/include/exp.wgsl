// exp2 that is exactly 0 for very small arguments.

// 2^x; 0 below -200. Not written with max(): max(x, -200) may return -200 for NaN.
fn exp_of(x: f32) -> f32 {
  return select(exp2(x), 0.0, x < -200.0);
}

fn exps_of(x: vec4<f32>) -> vec4<f32> {
  return select(exp2(x), vec4(0.0), x < vec4(-200.0));
}
