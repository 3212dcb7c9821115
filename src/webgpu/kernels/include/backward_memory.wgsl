// Workgroup memory and registers of the tiled kernels of the backward. Included after OPERANDS is
// declared: naga 29 aborts if the size of an array is an override that is declared later.

var<workgroup> s_operands: array<vec4<f32>, OPERANDS>;
var<workgroup> s_rows: array<vec4<u32>, TILE_Q>;
var<workgroup> s_keep: array<u32, KEEP_WORDS>;

var<private> r_s: array<vec4<f32>, kMaxR>;
var<private> r_tile: array<vec4<f32>, kMaxR>;
var<private> r_bias: array<vec4<u32>, kMaxR>;
var<private> r_mask: array<u32, kMaxR>;
