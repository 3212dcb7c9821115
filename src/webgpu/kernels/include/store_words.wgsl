// Stores of elements that may share a word with elements of other rows.

// A word of `to`: elements [dim, dim + 2) of a row, or element dim if they are f32. Elements outside of
// [0, dims) belong to another row; dim may be -1.
struct Word {
  word: u32,
  dim: u32,
}

fn words_of_row(at: u32, dims: u32, element: u32) -> u32 {
  return select((at % 2u + dims + 1u) / 2u, dims, element == 0u);
}

fn word_of(at: u32, n: u32, element: u32) -> Word {
  if (element == 0u) {
    return Word(at + n, n);
  }
  return Word(at / 2u + n, n * 2u - at % 2u);
}

fn put(x: Word, dims: u32, first: u32, second: u32, element: u32) {
  if (element == 0u) {
    atomicStore(&to[x.word], first);
    return;
  }
  var mask = 0u;
  mask |= select(0u, 0x0000ffffu, x.dim < dims);
  mask |= select(0u, 0xffff0000u, x.dim + 1u < dims);
  let bits = first | (second << 16u);
  if (mask == 0xffffffffu) {
    atomicStore(&to[x.word], bits);
  } else {
    atomicAnd(&to[x.word], ~mask);
    atomicOr(&to[x.word], bits & mask);
  }
}

fn bits_at(at: u32, element: u32) -> u32 {
  if (element == 0u) {
    return atomicLoad(&to[at]);
  }
  return (atomicLoad(&to[at / 2u]) >> (at % 2u * 16u)) & 0xffffu;
}
