// Loads of 8 neighbouring elements.
//! include convert

// Elements [dim, dim + 8) of the row at `row`; 0 past `dims`.
fn eight(source: u32, element: u32, row: u32, dim: u32, dims: u32) -> Eight {
  var x = Eight(vec4(0.0), vec4(0.0));
  if (dim < dims) {
    if (element == 0u) {
      x.low = bitcast<vec4<f32>>(words_of(source, row + dim / 4u));
      if (dim + 4u < dims) {
        x.high = bitcast<vec4<f32>>(words_of(source, row + dim / 4u + 1u));
      }
    } else {
      let words = words_of(source, row + dim / 8u);
      x.low = vec4(halves(words.x, element), halves(words.y, element));
      x.high = vec4(halves(words.z, element), halves(words.w, element));
    }
  }
  return x;
}
