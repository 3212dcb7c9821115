// Conversion of words to f32 elements.

// The two 16-bit elements of a word; the first is in the low half.
fn halves(word: u32, element: u32) -> vec2<f32> {
  if (element == 1u) {
    return unpack2x16float(word);
  }
  return vec2(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u));
}

struct Eight {
  low: vec4<f32>,
  high: vec4<f32>,
}

// 8 elements from 16 bytes (`low`), or from 32 bytes if they are f32.
fn eight_of(low: vec4<u32>, high: vec4<u32>, element: u32) -> Eight {
  if (element == 0u) {
    return Eight(bitcast<vec4<f32>>(low), bitcast<vec4<f32>>(high));
  }
  return Eight(vec4(halves(low.x, element), halves(low.y, element)),
               vec4(halves(low.z, element), halves(low.w, element)));
}
