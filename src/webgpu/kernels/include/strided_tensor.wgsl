// Strides of a tensor.

// Element x of row i, head h, sequence b is at base + b * batch + i * row + h * head + x.
struct StridedTensor {
  base: u32,
  batch: u32,
  row: u32,
  head: u32,
}
