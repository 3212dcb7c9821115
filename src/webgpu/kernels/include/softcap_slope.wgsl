// The derivative of softcap.
//! include tanh

// The derivative of the score with respect to scale * product.
fn slope_of(products: vec4<f32>) -> vec4<f32> {
  if (OPTIONS == 0u || p.softcap == 0.0) {
    return vec4(1.0);
  }
  let x = tanh_of(products * (p.scale / p.softcap));
  return 1.0 - x * x;
}
