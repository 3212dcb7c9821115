// Strides of a tensor.

// A tensor's rows: element x of row i, head h, entry b is at
// base + b * batch + i * row + h * head + x.
struct Rows {
  base: u32,
  batch: u32,
  row: u32,
  head: u32,
}
