// A batch entry, as prepare.wgsl wrote it.
struct Entry {
  len_q: u32,
  len_kv: u32,
  first_q: u32,   // row of its first query in the tensors, 0 where they are padded
  first_kv: u32,
  first_row: u32,  // of its first query among all entries' (info, stats)
  diag: i32,
}

fn entry_of(b: u32) -> Entry {
  let at = p.entries_at + b * 8u;
  return Entry(info[at], info[at + 1u], info[at + 2u], info[at + 3u], info[at + 4u],
               bitcast<i32>(info[at + 5u]));
}

// The keys [x, y) that causal, window, ranges and lengths leave to a query.
fn range_of(e: Entry, i: u32) -> vec2<u32> {
  let at = p.ranges_at + (e.first_row + i) * 2u;
  return vec2(info[at], info[at + 1u]);
}
