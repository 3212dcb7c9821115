// A sequence, as prepare.wgsl wrote it.
struct Sequence {
  len_q: u32,
  len_kv: u32,
  first_q: u32,   // row of its first query in packed tensors, else 0
  first_kv: u32,
  first_row: u32,  // index of its first query among those of all sequences, in `info`
  diag: i32,
}

fn sequence_of(b: u32) -> Sequence {
  let at = p.sequences_at + b * 8u;
  return Sequence(info[at], info[at + 1u], info[at + 2u], info[at + 3u], info[at + 4u],
               bitcast<i32>(info[at + 5u]));
}

// The keys [x, y) that causal, window, ranges and lengths allow a query to see.
fn key_range_of(seq: Sequence, i: u32) -> vec2<u32> {
  let at = p.key_ranges_at + (seq.first_row + i) * 2u;
  return vec2(info[at], info[at + 1u]);
}
