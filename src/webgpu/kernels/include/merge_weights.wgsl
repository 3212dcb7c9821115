// Weights of two partial results, and the lines that a workgroup merges.
//! include strided_tensor
//! include convert_bits
//! include store_words
//! include exp
//! include log

struct Weights {
  lse: u32,
  first: f32,
  second: f32,
}

// The weights of two partial results, from the bits of their lse; 0 for one without keys.
fn weights_of(bits1: u32, bits2: u32) -> Weights {
  if (bits1 == kEmpty) {
    return Weights(bits2, 0.0, select(1.0, 0.0, bits2 == kEmpty));
  }
  if (bits2 == kEmpty) {
    return Weights(bits1, 1.0, 0.0);
  }
  let x1 = bitcast<f32>(bits1);
  let x2 = bitcast<f32>(bits2);
  let largest = max(x1, x2);
  let e1 = exp_of((x1 - largest) * kLog2E);
  let e2 = exp_of((x2 - largest) * kLog2E);
  let sum = e1 + e2;
  return Weights(bitcast<u32>(largest + log_of(sum)), e1 / sum, e2 / sum);
}

fn row_at(x: StridedTensor, b: u32, i: u32, h: u32) -> u32 {
  return x.base + b * x.batch + i * x.row + h * x.head;
}

// The lines of a workgroup. A line is one head of one row, heads first.
struct Lines {
  first: u32,
  count: u32,
}

fn lines_of(group: vec3<u32>, groups: vec3<u32>) -> Lines {
  let first = p.first_line + (group.y * groups.x + group.x) * LINES;
  return Lines(first, min(LINES, p.rows * p.heads - min(first, p.rows * p.heads)));
}

struct Place {
  i: u32,
  h: u32,
}

fn place_of(line: u32) -> Place {
  return Place(line / p.heads, line % p.heads);
}
