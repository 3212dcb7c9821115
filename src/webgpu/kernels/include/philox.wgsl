// Random bits of dropout.
//! include multiply_high

// Philox4x32-10 (Salmon et al. 2011, section 4.3).
fn philox(first: vec4<u32>) -> vec4<u32> {
  var x = first;
  var key = p.seed;
  for (var round = 0u; round < 10u; round += 1u) {
    x = vec4(multiply_high(0xCD9E8D57u, x.z) ^ x.y ^ key.x, 0xCD9E8D57u * x.z,
             multiply_high(0xD2511F53u, x.x) ^ x.w ^ key.y, 0xD2511F53u * x.x);
    key += vec2(0x9E3779B9u, 0xBB67AE85u);
  }
  return x;
}

// One bit per byte of a Philox call: whether dropout keeps that (query, key).
fn keep_bits(i: u32, j: u32, head: u32) -> u32 {
  let bytes = philox(vec4(i, j, head, p.offset));
  var bits = 0u;
  for (var n = 0u; n < 16u; n += 1u) {
    let byte = (bytes[n / 4u] >> (n % 4u * 8u)) & 0xffu;
    bits |= select(0u, 1u << n, byte < p.keep_below);
  }
  return bits;
}

fn dropout_head(b: u32, h: u32) -> u32 {
  return (p.origin.x + b) * p.origin_heads + p.origin.y + h;
}
