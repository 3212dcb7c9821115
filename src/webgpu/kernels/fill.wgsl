// fill: rows of a packed tensor that no entry has get one value: results of empty rows, gradients 0
// (docs/semantics.md, "Lengths").
//
// Grid: x * y blocks of 256 consecutive rows. A block marks those that some entry has, entries
// shared out among its threads; then a thread fills a word of the others at a time, all heads.
// Words that a row shares with what lies next to it are changed by atomic operations on its own
// half alone.
// Workgroup memory: a mark for each row.

// begin: rows
// A tensor's rows: element x of row i, head h, entry b is at
// base + b * batch + i * row + h * head + x.
struct Rows {
  base: u32,
  batch: u32,
  row: u32,
  head: u32,
}
// end: rows

struct Fill {
  to: Rows,  // elements; batch unused
  rows: u32,  // of the tensor
  heads: u32,
  dim: u32,
  batch: u32,
  first_row: u32,  // what the grid's first row is
  entries_at: u32,
  which: u32,  // an entry's rows: 1: queries, 2: keys
  value: u32,  // bits of an element
}

@group(0) @binding(0) var<uniform> p: Fill;
@group(0) @binding(1) var<storage, read> info: array<u32>;
@group(0) @binding(2) var<storage, read_write> to: array<atomic<u32>>;

const kThreads = 256u;
const kRows = 256u;

override TYPE_TO: u32 = 0u;  // 0: f32, 1: f16, 2: bf16

var<workgroup> s_covered: array<atomic<u32>, kRows>;

// begin: put
// The word of `to` that a thread writes: elements [dim, dim + 2) of a row from `at` on, or element
// dim alone where they are f32. Those outside of [0, dims) are not the row's: dim may be -1.
struct Word {
  word: u32,
  dim: u32,
}

fn words_of_row(at: u32, dims: u32, element: u32) -> u32 {
  return select((at % 2u + dims + 1u) / 2u, dims, element == 0u);
}

fn word_of(at: u32, n: u32, element: u32) -> Word {
  if (element == 0u) {
    return Word(at + n, n);
  }
  return Word(at / 2u + n, n * 2u - at % 2u);
}

fn put(x: Word, dims: u32, first: u32, second: u32, element: u32) {
  if (element == 0u) {
    atomicStore(&to[x.word], first);
    return;
  }
  var mask = 0u;
  mask |= select(0u, 0x0000ffffu, x.dim < dims);
  mask |= select(0u, 0xffff0000u, x.dim + 1u < dims);
  let bits = first | (second << 16u);
  if (mask == 0xffffffffu) {
    atomicStore(&to[x.word], bits);
  } else {
    atomicAnd(&to[x.word], ~mask);
    atomicOr(&to[x.word], bits & mask);
  }
}

fn bits_at(at: u32, element: u32) -> u32 {
  if (element == 0u) {
    return atomicLoad(&to[at]);
  }
  return (atomicLoad(&to[at / 2u]) >> (at % 2u * 16u)) & 0xffffu;
}
// end: put

@compute @workgroup_size(kThreads)
fn fill(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) thread: u32) {
  let first = p.first_row + (group.y * groups.x + group.x) * kRows;
  atomicStore(&s_covered[thread], 0u);  // drivers were seen to leave what the last block had
  workgroupBarrier();
  for (var b = thread; b < p.batch; b += kThreads) {
    let entry = p.entries_at + b * 8u;
    let begin = info[entry + p.which + 1u];
    let end = min(begin + info[entry + p.which - 1u], first + kRows);
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
