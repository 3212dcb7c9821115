// Entry points of the kernels. Each is compiled for every instruction set; the best one is chosen
// at run time. T is the type of all arithmetic: float, or double for f64 problems. A kernel runs
// one task; the host distributes tasks over workers. `memory` is the worker's scratch memory, laid
// out by make_scratch.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "cpu/host/call.hpp"
#include "cpu/host/config.hpp"

namespace attn::cpu {

struct Bf16Decode;

// Number of tiles of query rows of one (batch, key head).
inline std::int64_t row_tiles(const Problem& p, const Config& config) {
  return divide_up(p.heads_q / p.heads_kv * p.len_q, config.tile_rows);
}
inline std::int64_t forward_tasks(const Problem& p, const Config& config) {
  return p.batch * (p.heads_kv / config.heads_of_task) * row_tiles(p, config) * config.splits;
}
inline std::int64_t key_tiles(const Problem& p, const Config& config) {
  return divide_up(p.len_kv, config.tile_kv);
}

// backward_kv: number of blocks and tasks of one (batch, key head).
inline std::int64_t key_blocks(const Problem& p, const Config& config) {
  return divide_up(p.len_kv, config.block_kv);
}
inline std::int64_t key_tasks(const Problem& p, const Config& config) {
  return divide_up(key_blocks(p, config), config.blocks_of_task);
}

// Task n of backward_kv. The (batch, key head) pairs are interleaved in groups of heads_at_once:
// the first task of each, then the second of each. The tasks of one pair stay in ascending order,
// because each may wait for the ones before it.
struct KeyTaskPlace {
  std::int64_t index;  // of the (batch, key head); see key_head_at()
  std::int64_t task;   // among its key_tasks()
};
inline KeyTaskPlace key_task_at(const Problem& p, const Config& config, std::int64_t n) {
  const std::int64_t tasks = key_tasks(p, config);
  const std::int64_t first = n / (config.heads_at_once * tasks) * config.heads_at_once;
  const std::int64_t heads = std::min(config.heads_at_once, p.batch * p.heads_kv - first);
  const std::int64_t of_group = n - first * tasks;
  return {first + of_group % heads, of_group / heads};
}

// With dkv_terms > 1, tasks [n dkv_terms, (n + 1) dkv_terms) compute the same blocks of keys for
// the query heads of one key head: heads_at_once is a multiple of dkv_terms. `n` is called a unit.
inline std::int64_t dkv_units(const Problem& p, const Config& config) {
  return p.batch * p.heads_kv / config.dkv_terms * key_tasks(p, config);
}

// With terms_of_task > 1, task n of the launch is a block of all pairs that share a dbias. Calls
// task(m) for each of its tasks m of backward_kv.
template <class Task>
void each_key_task(const Problem& p, const Config& config, std::int64_t n, Task&& task) {
  const std::int64_t tasks = key_tasks(p, config);
  const std::int64_t first = n / tasks * config.terms_of_task;
  for (std::int64_t term = 0; term < config.terms_of_task; ++term) {
    task((first + term) * tasks + n % tasks);
  }
}

inline void count_nonfinite(const Call& call, std::uint32_t replaced) {
  if (replaced != 0 && call.nonfinite_count != nullptr) {
    std::atomic_ref<std::uint32_t>(*call.nonfinite_count)
        .fetch_add(replaced, std::memory_order_relaxed);
  }
}

// Results of each split of the keys before the merge. o is not yet divided by the row sum.
template <class T>
struct Partials {
  T* o = nullptr;        // [rows x splits x dim_vo, padded]
  T* row_max = nullptr;  // [rows x splits]
  T* row_sum = nullptr;
  [[nodiscard]] std::int64_t index(const Call& call, const Entry& entry, std::int64_t head,
                                   std::int64_t i) const {
    return ((entry.row0 + i) * call.problem.heads_q + head) * splits;
  }
  std::int64_t splits = 1;
};

// Keys and values of all sequences, packed for the engine: [batch, heads_kv, key_tiles] tiles. bf16
// engines: packed blocks. Otherwise T, with K transposed.
struct PackedKeys {
  void* k = nullptr;  // null: each task packs its own tiles
  void* v = nullptr;
  static std::int64_t tile_idx(const Problem& p, const Config& config, std::int64_t b,
                               std::int64_t head, std::int64_t j0) {
    return (b * p.heads_kv + head) * key_tiles(p, config) + j0 / config.tile_kv;
  }
};

// Shared by the tasks of a forward.
template <class T>
struct ForwardShared {
  Partials<T> partials;
  PackedKeys packed;
};

template <class T>
struct ForwardKernels {
  using Task = void (*)(const Call&, const Config&, const ForwardShared<T>&, char* memory,
                        std::int64_t task);
  Task pack_keys;       // batch * heads_kv * key_tiles tasks, for forward ...
  Task pack_keys_bf16;  // ... and forward_bf16; null for f64
  Task forward;         // forward_tasks()
  Task forward_bf16;    // the same with a bf16 engine; null for f64
  Task merge_splits;    // batch * heads_q tasks
};
template <class T>
ForwardKernels<T> forward_kernels();
// config.small: a task is config.pairs_of_task pairs.
ForwardKernels<float>::Task small_forward_kernel();
ForwardKernels<float>::Task small_forward_bf16_kernel();  // with amx_bf16

// How the tasks of one (batch, key head) add to the same dq. Null if one task owns all of it.
template <class T>
struct SharedDq {
  std::int32_t* next_block = nullptr;  // indexed like RowSums::strips: the block that may add next
  std::int64_t* tasks_left = nullptr;  // [batch * heads_kv in task order]: unfinished tasks
  // [dq_slots, heads_per_kv * len_q, dim_qk padded]. The n-th (batch, key head) uses slot n %
  // dq_slots. Null if dq itself holds the sums.
  T* accum = nullptr;
};

// How (batch, key head) pairs add to the same dbias, in the order of their tasks. Null if each pair
// has its own dbias.
template <class T>
struct SharedDbias {
  std::int32_t* strips_done = nullptr;  // [batch * heads_kv in task order, key_blocks]
  // [dbias_slots, heads_per_kv * len_q, dbias_accum_row]. The n-th group of dbias_terms() pairs
  // uses slot n % dbias_slots. Null if dbias itself holds the sums.
  T* accum = nullptr;
};

// How the tasks of the query heads of a key head add to the same dk and dv, in ascending order of
// the heads. Null if one task computes all of them.
template <class T>
struct SharedDkv {
  std::int32_t* heads_done = nullptr;  // [dkv_units, blocks_of_task]: heads that have added
  std::int64_t* tasks_left = nullptr;  // [dkv_units]: unfinished tasks
  // [dkv_slots, blocks_of_task, key_sums_size]. The n-th unit uses slot n % dkv_slots.
  T* accum = nullptr;
};

// The n-th (batch, key head) in task order. Pairs that share a dbias are consecutive, so that few
// sums are unfinished at a time.
struct KeyHeadPlace {
  std::int64_t b, head;
};
inline KeyHeadPlace key_head_at(const Problem& p, const Config& config, std::int64_t n) {
  if (config.dbias_with_keys && p.bias.head) {
    const std::int64_t sharers = p.bias.sharers(p.batch);
    const std::int64_t place = n / sharers;  // sequence of the bias, then head
    return {place / p.heads_kv * sharers + n % sharers, place % p.heads_kv};
  }
  return {n / p.heads_kv, n % p.heads_kv};
}

// Computed once per backward, for each query row and each strip of rows. Key heads are those of
// tasks_problem().
template <class T>
struct RowSums {
  T* delta = nullptr;                // [heads_q, all_query_rows]
  core::KeyRange* strips = nullptr;  // [heads_kv, strips]: keys that a strip's rows may see
  SharedDq<T> dq;
  SharedDkv<T> dkv;
  SharedDbias<T> dbias;
  [[nodiscard]] T& delta_of(const Call& call, const Entry& entry, std::int64_t head,
                            std::int64_t i) const {
    return delta[head * all_query_rows(call.problem) + entry.row0 + i];
  }
  // A sequence's strips of one key head. Each sequence starts a new strip. So there is one more
  // strip per sequence than the rows would fill.
  [[nodiscard]] core::KeyRange* strips_of(const Call& call, const Entry& entry,
                                          std::int64_t head_kv, std::int64_t strip_rows) const {
    return strips + first_strip(call, entry, head_kv, strip_rows);
  }
  [[nodiscard]] std::int32_t* next_blocks_of(const Call& call, const Entry& entry,
                                             std::int64_t head_kv, std::int64_t strip_rows) const {
    return dq.next_block + first_strip(call, entry, head_kv, strip_rows);
  }
  static std::int64_t first_strip(const Call& call, const Entry& entry, std::int64_t head_kv,
                                  std::int64_t strip_rows) {
    return head_kv * num_strips(call.problem, strip_rows) +
           entry.row0 * call.numbers.heads_per_kv / strip_rows + entry.b;
  }
  static std::int64_t num_strips(const Problem& p, std::int64_t strip_rows) {
    return all_query_rows(p) * (p.heads_q / p.heads_kv) / strip_rows + p.batch;
  }
};

template <class T>
struct BackwardKernels {
  using Task = void (*)(const Call&, const Config&, const RowSums<T>&, char* memory,
                        std::int64_t task);
  Task row_sums;   // batch * heads_kv tasks: delta and the strips' key ranges
  Task keys_bf16;  // the same as keys with a bf16 engine; null for f64
  Task keys;       // batch * heads_kv * key_tasks: dk and dv of blocks of keys, and dq
  Task queries;    // batch * heads_kv * row_tiles: dq of a tile of rows
  Task bias;       // bias_grid().tasks(): dbias of a tile of the bias
  Task sinks;      // heads_q: dsink of a head
};
template <class T>
BackwardKernels<T> backward_kernels();
// The members keys and keys_bf16.
template <class T>
BackwardKernels<T>::Task keys_kernel();
BackwardKernels<float>::Task keys_bf16_kernel();
// config.small: a task is config.pairs_of_task pairs. Needs no row_sums.
BackwardKernels<float>::Task small_backward_kernel();

// Tiles of bias_gradient. Dimensions that broadcast have one tile.
struct BiasGrid {
  std::int64_t batches, heads, q_tiles, kv_tiles;
  [[nodiscard]] std::int64_t tasks() const { return batches * heads * q_tiles * kv_tiles; }
};
inline BiasGrid bias_grid(const Problem& p, const Config& config) {
  return {p.bias.entries(p.batch), p.bias.head ? p.heads_q : 1,
          p.bias.q ? divide_up(p.len_q, config.tile_rows) : 1,
          p.bias.kv ? divide_up(p.len_kv, config.tile_kv) : 1};
}

// Number of MaskRows of a call. 0 without a mask, or if all keys share one byte.
inline std::int64_t mask_rows(const Problem& p) {
  if (!p.mask.given || !p.mask.kv) return 0;
  return p.mask.entries(p.batch) * (p.mask.head ? p.heads_q : 1) * (p.mask.q ? p.len_q : 1);
}
// The layout of a packed mask, without its words. tile_kv is 0 if the mask is not packed: few rows
// (gemv) read the mask once, splits of the keys may begin inside of a tile, a strip's span of keys
// may cover several tiles, and large masks would take much memory.
inline constexpr std::int64_t kMostMaskBits = std::int64_t{64} << 23;  // pairs: 64 MiB of words
inline std::int64_t mask_words(const Problem& p, const MaskBits& bits) {
  return p.mask.entries(p.batch) * (p.mask.head ? p.heads_q : 1) * bits.head;
}
inline MaskBits mask_bits(const Problem& p, const Config& config) {
  if (mask_rows(p) == 0 || config.gemv || config.splits > 1 || config.span_keys > 0) return {};
  MaskBits bits;
  bits.tile_kv = config.tile_kv;
  bits.row = 2 * divide_up(config.tile_kv, 64);
  bits.tile = (p.mask.q ? p.len_q : 1) * bits.row;
  bits.head = divide_up(p.len_kv, config.tile_kv) * bits.tile;
  if (mask_words(p, bits) * 32 > kMostMaskBits) return {};
  return bits;
}
// Fills rows [begin, end) of call.mask_rows, and the words of those with holes in call.mask_bits.
void scan_mask(const Call& call, std::int64_t begin, std::int64_t end);

// A rotation of the rows of one tensor: part of an attention call, or of rope().
struct RotaryJob {
  StridedTensor in, out;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
  Rope style = Rope::half;
  std::int64_t rot_dim = 0;
  bool inverse = false;
  double base = 0.0;
  const char* cos = nullptr;  // tables, used instead of base; strides in bytes
  const char* sin = nullptr;
  std::int64_t cos_stride = 0;
  std::int64_t sin_stride = 0;
  DType table_dtype = DType::f32;
  std::int64_t table_rows = 0;
  core::StridedTensor positions;  // used instead of row + position0
  bool accumulate = false;
  bool zero_nonfinite = false;
};
// The rows of one sequence.
struct RotaryEntry {
  std::int64_t b = 0;
  std::int64_t first_in = 0;  // packed: first row
  std::int64_t first_out = 0;
  std::int64_t out_row0 = 0;  // added to the row index of the output (append)
  std::int64_t position0 = 0;
};
// Rotates rows [begin, end) of a sequence. A row without a page is skipped.
void rotate_rows(const Call& call, const RotaryJob& job, const RotaryEntry& entry,
                 std::int64_t begin, std::int64_t end);

// Merges rows [begin, end) of all rows (batch x len, or total).
void merge_rows(const MergeArguments& arguments, std::int64_t begin, std::int64_t end);
void merge_backward_rows(const MergeBackwardArguments& arguments, std::int64_t begin,
                         std::int64_t end);

// The engine for bf16 problems in this process: the fastest one that is usable. ATTN_CPU_ENGINE
// (f32, bf16_dot, bf16_mmla, amx_bf16) selects another. A name that is not usable here is ignored.
Engine bf16_problems_engine();
// "f32", "bf16_dot", "bf16_mmla" or "amx_bf16". float_simd is "f32" for f64 problems too.
const char* to_string(Engine engine);
// `engine`: a result of bf16_problems_engine() other than float_simd.
const Bf16Engine& bf16_engine(Engine engine);
// Null if the engine has no products for a decode.
const Bf16Decode* bf16_decode(Engine engine);

// Name of the instruction set that the kernels of this process use: "AVX3", "NEON", ...
const char* target_name();
// The instruction sets that are compiled in and usable here, best first, separated by spaces.
const std::string& usable_target_names();
// Whether that instruction set has the forward's kernel of one pass (gemm_softmax-inl.h).
bool fuses_softmax();

}  // namespace attn::cpu
