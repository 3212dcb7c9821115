// What both decode kernels bind, are compiled for and keep in registers.
//! include load
//! include mask

@group(0) @binding(4) var<storage, read> info: array<u32>;
@group(0) @binding(5) var<storage, read> bias: array<u32>;
@group(0) @binding(6) var<storage, read> mask: array<u32>;
@group(0) @binding(7) var<storage, read> block_table: array<u32>;
@group(0) @binding(8) var<storage, read_write> partials: array<u32>;

const kMaxRows = 8u;
const kMaxKeys = 8u;

override TYPE_Q: u32 = 0u;  // 0: f32, 1: f16, 2: bf16
override TYPE_KV: u32 = 0u;
override THREADS: u32 = 128u;
override ROWS: u32 = 4u;      // 1, 2, 4 or 8
override UNROLL: u32 = 4u;    // at most 8
override LANES: u32 = 8u;     // at least both dims / 8; a power of 2, divides THREADS
override DROPOUT: bool = false;

override GROUPS = THREADS / LANES;
override TILE = UNROLL * GROUPS;
override O_STRIDE = THREADS + 4u;

// Of row r: elements 2 * r (dimensions 0 to 3 of the lane's) and 2 * r + 1; of key n alike, the
// second only where elements are f32.
var<private> r_q: array<vec4<f32>, 2u * kMaxRows>;
var<private> r_o: array<vec4<f32>, 2u * kMaxRows>;
var<private> r_k: array<vec4<u32>, 2u * kMaxKeys>;
var<private> r_v: array<vec4<u32>, 2u * kMaxKeys>;
var<private> r_page: array<u32, kMaxKeys>;      // of the next tile's keys
var<private> r_at: array<u32, kMaxKeys>;        // where they are
var<private> r_value_at: array<u32, kMaxKeys>;  // where their values are

const OPTIONS = 2u;  // all of them, by parameters

fn has_bias_or_mask() -> bool {
  return p.bias_type != 0u || p.mask_given != 0u;
}
