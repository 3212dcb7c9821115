// Dropout of a single pair.
//! include philox

// Whether dropout keeps a (query, key), by one Philox call; the same bits as keeps() of a tile.
fn kept(b: u32, h: u32, local_i: u32, local_j: u32) -> bool {
  let i = p.origin.z + local_i;
  let j = p.origin.w + local_j;
  let bit = (i / 8u % 2u) * 8u + (i % 2u) * 4u + (j / 8u % 2u) * 2u + j % 2u;
  return ((keep_bits(i & ~9u, j & ~9u, dropout_head(b, h)) >> bit) & 1u) != 0u;
}

