// The natural logarithm.
//! include constants

// ln x for x > 0, by x = 2^n (1 + f) / (1 - f) and the series of atanh. Infinity and NaN are returned.
// WGSL's own log may be 2^-11 off.
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
