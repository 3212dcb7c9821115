// Dropout of a tile: one Philox call draws for 16 pairs, whose bits a word of s_keep holds.
//! include philox

// Blocks of 16 x 16 placed pairs that a tile of `rows` x `columns` from (i, j) on touches.
struct KeepTile {
  i: u32,
  j: u32,
  wide: u32,
}

// Draws for the tile: a word of s_keep for each call, [block of rows][block of columns][bits 1, 2
// of i][bits 1, 2 of j]. By all threads.
fn draw(first_i: u32, first_j: u32, rows: u32, columns: u32, head: u32, thread: u32) -> KeepTile {
  let i = p.origin.z + first_i;
  let j = p.origin.w + first_j;
  let tile = KeepTile(i / 16u, j / 16u, (j + columns - 1u) / 16u - j / 16u + 1u);
  let high = (i + rows - 1u) / 16u - i / 16u + 1u;
  for (var n = thread; n < high * tile.wide * 16u; n += THREADS) {
    let block_i = tile.i + n / 16u / tile.wide;
    let block_j = tile.j + n / 16u % tile.wide;
    s_keep[n] = keep_bits(block_i * 16u + (n / 4u % 4u) * 2u, block_j * 16u + (n % 4u) * 2u, head);
  }
  return tile;
}

fn keeps(tile: KeepTile, first_i: u32, first_j: u32) -> bool {
  let i = p.origin.z + first_i;
  let j = p.origin.w + first_j;
  let block = (i / 16u - tile.i) * tile.wide + j / 16u - tile.j;
  let word = s_keep[block * 16u + (i / 2u % 4u) * 4u + j / 2u % 4u];
  let bit = (i / 8u % 2u) * 8u + (i % 2u) * 4u + (j / 8u % 2u) * 2u + j % 2u;
  return ((word >> bit) & 1u) != 0u;
}
