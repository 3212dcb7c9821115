// fill: fills the rows of a packed tensor that belong to no sequence with one value: results of empty
// rows, gradients 0 (docs/semantics.md, "Lengths").
//
// Grid: x * y blocks of 256 consecutive rows.
// Threads: each marks the rows of some sequences; then each fills a word of an unmarked row at a time, all
// heads. If a row shares a word with its neighbour in memory, only its own half is changed, by atomic
// operations.
// Workgroup memory: one mark per row.

//! include strided_tensor
//! include store_words

struct FillParameters {
  to: StridedTensor,  // elements; batch unused
  rows: u32,  // of the tensor
  heads: u32,
  dim: u32,
  batch: u32,
  first_row: u32,  // row of the grid's first workgroup
  sequences_at: u32,
  which: u32,  // rows of a sequence; 1: queries, 2: keys
  value: u32,  // bits of an element
}

@group(0) @binding(0) var<uniform> p: FillParameters;
@group(0) @binding(1) var<storage, read> info: array<u32>;
@group(0) @binding(2) var<storage, read_write> to: array<atomic<u32>>;

const kThreads = 256u;
const kRows = 256u;

override TYPE_TO: u32 = 0u;  // 0: f32, 1: f16, 2: bf16

var<workgroup> s_covered: array<atomic<u32>, kRows>;

@compute @workgroup_size(kThreads)
fn fill(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
  let first = p.first_row + (group.y * groups.x + group.x) * kRows;
  atomicStore(&s_covered[thread], 0u);  // Mesa 22.3.6 does not zero workgroup memory
  workgroupBarrier();
  for (var b = thread; b < p.batch; b += kThreads) {
    let sequence = p.sequences_at + b * 8u;
    let begin = info[sequence + p.which + 1u];
    let end = min(begin + info[sequence + p.which - 1u], first + kRows);
    for (var row = max(begin, first); row < end; row += 1u) {
      atomicStore(&s_covered[row - first], 1u);
    }
  }
  workgroupBarrier();
  // A row may begin in the middle of a word.
  let odd = (p.to.base | p.to.row | p.to.head) & 1u;
  let words = words_of_row(odd, p.dim, TYPE_TO);
  for (var n = thread; n < kRows * p.heads * words; n += kThreads) {
    let row = n / words / p.heads;
    let at = p.to.base + (first + row) * p.to.row + n / words % p.heads * p.to.head;
    if (first + row < p.rows && atomicLoad(&s_covered[row]) == 0u &&
        n % words < words_of_row(at, p.dim, TYPE_TO)) {
      put(word_of(at, n % words, TYPE_TO), p.dim, p.value, p.value, TYPE_TO);
    }
  }
}
