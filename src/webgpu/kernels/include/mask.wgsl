// The mask, for kernels that have a binding for it.

fn has_mask() -> bool {
  return p.mask_given != 0u;
}

fn mask_at(word: u32) -> u32 {
  return mask[word];
}
