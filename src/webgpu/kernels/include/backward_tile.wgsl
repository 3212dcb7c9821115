// Constants, workgroup memory and registers of the tiled kernels of the backward. A kernel defines
// OPERANDS, and has_mask() and mask_at().
//! include backward_inputs

const kMaxR = 8u;

override TYPE_Q: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_KV: u32 = 0u;
override TYPE_DOUT: u32 = 0u;
override R: u32 = 8u;  // rows of a thread, at most kMaxR
override ROWS: u32 = 8u;
override COLUMNS: u32 = 8u;  // even
override SLICE: u32 = 32u;
override DROPOUT: bool = false;
override OPTIONS: u32 = 2u;  // score modifiers; 0: none, 1: softcap or ALiBi only, 2: any

override THREADS = ROWS * COLUMNS;
override TILE_Q = ROWS * R;
override TILE_KV = COLUMNS * 4u;
override ROWS_STRIDE = SLICE / 4u + 1u;  // of a slice of Q or dO
override COLUMNS_AT = TILE_Q * ROWS_STRIDE;
override PAIRS_STRIDE = COLUMNS + 1u;
override KEEP_WORDS = select(1u, ((TILE_Q + 14u) / 16u + 1u) * (TILE_KV / 16u + 1u) * 16u, DROPOUT);

fn has_bias_or_mask() -> bool {
  return OPTIONS == 2u;
}
