// Parameters of a dispatch, and q, k, v in units of 16 bytes.
//! include parameters

@group(0) @binding(0) var<uniform> p: AttentionParameters;
@group(0) @binding(1) var<storage, read> q: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> k: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> v: array<vec4<u32>>;
