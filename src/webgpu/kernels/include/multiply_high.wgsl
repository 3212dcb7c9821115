// The high word of a product of two words.

fn multiply_high(a: u32, b: u32) -> u32 {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let mid = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let other = (a & 0xffffu) * (b >> 16u) + (mid & 0xffffu);
  return (a >> 16u) * (b >> 16u) + (mid >> 16u) + (other >> 16u);
}
