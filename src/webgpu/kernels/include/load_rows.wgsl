// Loads of a tile of rows into workgroup memory.
//! include load_eight

// Rows of a tensor that a tile is loaded from.
struct Source {
  row: u32,    // position of the first row
  step: u32,   // from row to row
  valid: u32,  // number of rows that exist
  dim: u32,    // first dimension
  dims: u32,   // number of dimensions that exist
}

// Loads [rows, dims], by all threads. Rows and dimensions that do not exist become 0.
fn load_rows(source: u32, element: u32, x: Source, at: u32, stride: u32, rows: u32, dims: u32,
             thread: u32) {
  for (var n = thread; n < rows * (dims / 8u); n += THREADS) {
    let row = n / (dims / 8u);
    let dim = n % (dims / 8u) * 8u;
    var values = Eight(vec4(0.0), vec4(0.0));
    if (row < x.valid) {
      values = eight(source, element, x.row + row * x.step, x.dim + dim, x.dims);
    }
    s_operands[at + row * stride + dim / 4u] = values.low;
    s_operands[at + row * stride + dim / 4u + 1u] = values.high;
  }
}

// The same transposed: [dims, rows / 4] of vec4 of 4 neighbouring rows.
fn load_transposed(source: u32, element: u32, x: Source, at: u32, rows: u32, dims: u32,
                   thread: u32) {
  let quads = rows / 4u;
  for (var n = thread; n < quads * (dims / 8u); n += THREADS) {
    let quad = n % quads;
    let dim = n / quads * 8u;
    var low = mat4x4<f32>();
    var high = mat4x4<f32>();
    for (var i = 0u; i < 4u; i += 1u) {  // unrolled
      if (quad * 4u + i < x.valid) {
        let row = x.row + (quad * 4u + i) * x.step;
        let values = eight(source, element, row, x.dim + dim, x.dims);
        low[i] = values.low;
        high[i] = values.high;
      }
    }
    low = transpose(low);
    high = transpose(high);
    for (var i = 0u; i < 4u; i += 1u) {  // unrolled
      s_operands[at + (dim + i) * quads + quad] = low[i];
      s_operands[at + (dim + 4u + i) * quads + quad] = high[i];
    }
  }
}
