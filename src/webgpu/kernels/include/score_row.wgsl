// Per-row inputs of the scores.
//! include sequence

// A query's positions in bias and mask, its ALiBi slope, the key on its diagonal, its key range.
struct Row {
  bias: u32,
  mask: u32,
  slope: f32,
  at: i32,
  low: u32,
  high: u32,
}

fn row_of(seq: Sequence, b: u32, h: u32, i: u32) -> Row {
  var row: Row;
  let local_b = b - p.first_batch;
  let local_h = h - p.first_head_q;
  row.bias = p.bias.base + local_b * p.bias.batch + local_h * p.bias.head + i * p.bias.row;
  row.mask = p.mask.base + local_b * p.mask.batch + local_h * p.mask.head + i * p.mask.row;
  row.slope = 0.0;
  if (p.slopes_at != 0u) {
    row.slope = bitcast<f32>(info[p.slopes_at + b * p.heads_q + h]) * p.unit;
  }
  row.at = bitcast<i32>(i) + seq.diag;
  row.low = 0u;
  row.high = 0u;
  if (i < seq.len_q) {
    let range = key_range_of(seq, i);
    row.low = range.x;
    row.high = range.y;
  }
  return row;
}
