// The mask of kernels that have a binding for it.
@group(0) @binding(7) var<storage, read> mask: array<u32>;

//! include mask
