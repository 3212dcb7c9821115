// The product of operands in workgroup memory.

// r_tile += A B. A holds the thread's rows, `depth` elements long; B is [depth, columns], from the
// thread's 4 columns on. Both are in s_operands.
fn multiply_operands(a: u32, a_stride: u32, b: u32, b_stride: u32, depth: u32) {
  for (var d = 0u; d < depth; d += 4u) {
    let b0 = s_operands[b + d * b_stride];
    let b1 = s_operands[b + (d + 1u) * b_stride];
    let b2 = s_operands[b + (d + 2u) * b_stride];
    let b3 = s_operands[b + (d + 3u) * b_stride];
    for (var r = 0u; r < R; r += 1u) {  // unrolled to 8
      let x = s_operands[a + r * ROWS * a_stride + d / 4u];
      r_tile[r] = fma(vec4(x.x), b0, fma(vec4(x.y), b1, fma(vec4(x.z), b2, fma(vec4(x.w), b3, r_tile[r]))));
    }
  }
}
