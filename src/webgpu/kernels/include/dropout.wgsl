// Dropout of a tile: one Philox call draws for 16 pairs, whose bits a word of s_keep holds.
//! include philox

// The blocks of 16 x 16 (query, key) that a tile touches, in positions of the whole layer (origin).
struct DropoutBits {
  i: u32,
  j: u32,
  wide: u32,
}

// Draws the bits of a tile, by all threads. s_keep has one word per Philox call: [block of rows]
// [block of columns][bits 1, 2 of i][bits 1, 2 of j].
fn draw_bits(first_i: u32, first_j: u32, rows: u32, columns: u32, head: u32, thread: u32) -> DropoutBits {
  let i = p.origin.z + first_i;
  let j = p.origin.w + first_j;
  let tile = DropoutBits(i / 16u, j / 16u, (j + columns - 1u) / 16u - j / 16u + 1u);
  let high = (i + rows - 1u) / 16u - i / 16u + 1u;
  for (var n = thread; n < high * tile.wide * 16u; n += THREADS) {
    let block_i = tile.i + n / 16u / tile.wide;
    let block_j = tile.j + n / 16u % tile.wide;
    s_keep[n] = keep_bits(block_i * 16u + (n / 4u % 4u) * 2u, block_j * 16u + (n % 4u) * 2u, head);
  }
  return tile;
}

fn keeps(tile: DropoutBits, first_i: u32, first_j: u32) -> bool {
  let i = p.origin.z + first_i;
  let j = p.origin.w + first_j;
  let block = (i / 16u - tile.i) * tile.wide + j / 16u - tile.j;
  let word = s_keep[block * 16u + (i / 2u % 4u) * 4u + j / 2u % 4u];
  let bit = (i / 8u % 2u) * 8u + (i % 2u) * 4u + (j / 8u % 2u) * 2u + j % 2u;
  return ((word >> bit) & 1u) != 0u;
}
