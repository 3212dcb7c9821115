// Bindings, overrides and registers of both decode kernels.
//! include load_words
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
override LANES: u32 = 8u;     // at least dim_qk / 8 and dim_vo / 8; a power of 2, divides THREADS
override DROPOUT: bool = false;

override GROUPS = THREADS / LANES;
override TILE = UNROLL * GROUPS;
override O_STRIDE = THREADS + 4u;

// Row r has elements 2 * r (the lane's dimensions 0 to 3) and 2 * r + 1 (dimensions 4 to 7). Key n has
// the same; its second element is used only for f32.
var<private> r_q: array<vec4<f32>, 2u * kMaxRows>;
var<private> r_o: array<vec4<f32>, 2u * kMaxRows>;
var<private> r_k: array<vec4<u32>, 2u * kMaxKeys>;
var<private> r_v: array<vec4<u32>, 2u * kMaxKeys>;
var<private> r_page: array<u32, kMaxKeys>;      // pages of the next tile's keys
var<private> r_at: array<u32, kMaxKeys>;        // positions of the keys
var<private> r_value_at: array<u32, kMaxKeys>;  // positions of their values

const OPTIONS = 2u;  // parameters say which score modifiers are given

fn has_bias_or_mask() -> bool {
  return p.bias_type != 0u || p.mask_given != 0u;
}
