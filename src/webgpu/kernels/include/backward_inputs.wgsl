// Inputs of the backward: bindings 0 to 6.
//! include qkv

@group(0) @binding(4) var<storage, read> dout: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> info: array<u32>;
@group(0) @binding(6) var<storage, read> bias: array<u32>;

// 16 bytes of one of the inputs. Callers pass `source` as a constant.
fn words_of(source: u32, at: u32) -> vec4<u32> {
  switch source {
    case 0u: { return q[at]; }
    case 1u: { return k[at]; }
    case 2u: { return v[at]; }
    default: { return dout[at]; }
  }
}
