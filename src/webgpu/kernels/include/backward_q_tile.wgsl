// Constants and sums of the kernels whose workgroups own a tile of queries.
//! include backward_tile

const kMaxBlocks = 8u;

override BLOCKS_QK: u32 = 2u;
override DEPTH: u32 = 16u;  // of rows of K, divides TILE_KV

override K_AT = TILE_Q * PAIRS_STRIDE;
override K_STRIDE = BLOCKS_QK * COLUMNS;
override OPERANDS = max(COLUMNS_AT + SLICE * COLUMNS, K_AT + DEPTH * K_STRIDE);

var<private> r_dq: array<vec4<f32>, kMaxR * kMaxBlocks>;
