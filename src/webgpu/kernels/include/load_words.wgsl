// The 16-byte loads of kernels that read q, k and v.
//! include qkv

// 16 bytes of q, k or v. Callers pass `source` as a constant.
fn words_of(source: u32, at: u32) -> vec4<u32> {
  switch source {
    case 0u: { return q[at]; }
    case 1u: { return k[at]; }
    default: { return v[at]; }
  }
}
