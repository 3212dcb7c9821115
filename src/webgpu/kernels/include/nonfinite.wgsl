// Counts elements that were not finite and were replaced by 0, where the problem asks for that.
fn count_replaced(replaced: u32) {
  if (p.nonfinite_zero != 0u && replaced != 0u) {
    atomicAdd(&count, replaced);
  }
}
