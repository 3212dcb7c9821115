// Config: the tile sizes of a CPU plan, and the scratch memory that each pass lays out from them.
// The same code measures a layout (null base) and places it, so that sizes always agree.
#pragma once

#include <algorithm>
#include <attn/problem.hpp>
#include <cstdint>

#include "core/divide_up.hpp"
#include "core/plan.hpp"
#include "cpu/kernels/tile.hpp"
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

namespace attn::cpu {

// How matrix products are computed.
enum class Engine : std::uint8_t {
  float_simd,  // Highway's vectors of f32 (of f64 for f64 problems)
  bf16_dot,    // AVX-512 dot products of bf16 pairs (VDPBF16PS)
  bf16_mmla,   // NEON's products of 2 x 4 by 4 x 2 bf16 (BFMMLA)
  amx_bf16,    // AMX tiles
};

struct Config {
  Engine engine = Engine::float_simd;
  std::int64_t tile_rows = 0;   // query rows that share one load of keys and values
  std::int64_t strip_rows = 0;  // rows of a tile with their scores in L1 at the same time
  std::int64_t tile_kv = 0;
  bool gemv = false;  // scores by dot products with row-major keys
  // With gemv: the engine whose products read a bf16 cache in place (tile_ops/bf16_decode.hpp).
  Engine gemv_engine = Engine::float_simd;
  std::int64_t heads_of_task = 1;  // with gemv: key heads that one task visits at each tile of keys
  // With heads_of_task: each product visits a few keys of all heads before the next keys, so that
  // rows are read in the order of memory. Changes no bits.
  bool heads_together = false;
  std::int64_t split_keys = 0;  // keys of one split
  std::int64_t splits = 1;
  // Small problems: (batch, key head) pairs that one task computes in order. Its worker prefetches
  // the next pair. In the backward the task also computes row_sums, so that dout and o are read
  // once.
  std::int64_t pairs_of_task = 1;
  // The kernels small_forward.cpp and small_backward.cpp compute the pairs, not those of tiles.
  bool small = false;
  // backward_kv: each load of rows serves a block of keys. A multiple of tile_kv.
  std::int64_t block_kv = 0;
  std::int64_t blocks_of_task = 1;
  // backward_kv: tiles of a block that are kept at a time, converted or packed, with their sums of
  // dk and dv. A tile's place is used again once no strip sees the tile any more. 0: all.
  std::int64_t ring_tiles = 0;
  // backward_kv: query heads of a key head that have tasks of their own, which add to the same dk
  // and dv. 1: a task computes all query heads of its key head. It changes the order of sums, so it
  // depends on the problem alone. What follows then counts (batch, query head) pairs instead of
  // (batch, key head); see tasks_problem().
  std::int64_t dkv_terms = 1;
  // Buffers of the sums of dk and dv of a task's blocks, in the workspace, that these tasks share.
  std::int64_t dkv_slots = 0;
  // backward_kv: number of (batch, key head) pairs whose tasks are interleaved.
  std::int64_t heads_at_once = 1;
  std::int64_t dq_slots = 0;  // backward_kv: buffers of dq sums in the workspace
  // backward_kv computes dbias too; otherwise the step bias_gradient does. dbias_slots: buffers of
  // dbias sums in the workspace; 0: the sums are kept in dbias itself.
  bool dbias_with_keys = false;
  std::int64_t dbias_slots = 0;
  // The sums of terms_of_task > 1 are kept in the worker's scratch, and the engine adds to them.
  bool dbias_in_scratch = false;
  // backward_kv: (batch, key head) pairs that add to the same dbias, and whose n-th blocks one task
  // computes in order. The block's sums of dbias then stay in the worker's L2.
  std::int64_t terms_of_task = 1;
  // Forward with a bf16 engine: the most keys that a strip sees, if its softmax takes all of them
  // at once and each strip of a task is finished before the next. 0: strips take turns at tiles of
  // keys.
  std::int64_t span_keys = 0;
  // Forward: consecutive tasks take the same tile of rows of all heads, not all tiles of a head.
  bool heads_in_turn = false;
  bool pack_keys = false;  // a separate step packs all keys and values before the forward
};

inline constexpr std::int64_t kMostHeadsOfTask = 16;

using core::divide_up;
using core::round_up;
// Length of a row that is padded to a multiple of 64 bytes.
template <class T>
constexpr std::int64_t padded(std::int64_t dim) {
  return round_up(dim, static_cast<std::int64_t>(64 / sizeof(T)));
}

// The problem that row_sums and backward_kv compute. With dkv_terms > 1 each query head has a key
// head of its own: key head h of it reads key head h / dkv_terms of k and v.
inline Problem tasks_problem(const Problem& p, const Config& c) {
  Problem of_tasks = p;
  if (c.dkv_terms > 1) of_tasks.heads_kv = p.heads_q;
  return of_tasks;
}

// Whether backward_qkv computes dq together with dk and dv: S and dP are then computed only once.
inline bool dq_with_keys(const Problem& p) {
  return p.dq && (p.dk || p.dv);
}
// Whether dq itself can hold the sums: it has the type of the arithmetic and is not accumulated
// into.
inline bool dq_in_place(const Problem& p) {
  return p.rope != Rope::none || (p.grad_type() == p.statistics_type() && !p.accumulate);
}
// Number of (batch, key head) pairs that add to the same dbias.
inline std::int64_t dbias_terms(const Problem& p) {
  return p.bias.sharers(p.batch) * (p.bias.head ? 1 : p.heads_kv);
}
// Whether an engine may write dbias itself: in bf16, without a change to the sum of dS.
inline bool engine_may_write_dbias(const Problem& p) {
  return p.dbias_type() == DType::bf16 && !p.accumulate && !p.nonfinite_zero;
}
// Row length and size, in elements, of one key head's dbias sums in the workspace: [heads_per_kv *
// len_q, len_kv padded].
inline std::int64_t dbias_accum_row(const Problem& p) {
  return round_up(p.len_kv, 16);
}
inline std::int64_t dbias_accum_size(const Problem& p) {
  return p.heads_q / p.heads_kv * p.len_q * dbias_accum_row(p);
}
// Elements of the dq sums of one (batch, key head), padded to full strips of a bf16 engine.
template <class T>
std::int64_t dq_accum_size(const Problem& p) {
  return round_up(p.heads_q / p.heads_kv * p.len_q, kBf16StripRows) * padded<T>(p.dim_qk);
}

// Keys of a block whose packed rows and sums exist at a time.
inline std::int64_t kept_keys(const Config& c) {
  return c.ring_tiles > 0 ? c.ring_tiles * c.tile_kv : c.block_kv;
}

// Elements between rows of dk_t and dv_t of a bf16 engine. Rows that are a power of two apart would
// share few sets of L1: an AMX product that adds to such a tile takes 112 cycles instead of 31.
inline std::int64_t sums_row(const Config& c) {
  return kept_keys(c) + kPackedCols;
}

// Whether dq of a strip is complete after one block, so that one strip's sums suffice.
inline bool dq_of_strip(const Problem& p, const Config& c) {
  return c.ring_tiles > 0 && c.dq_slots == 0 && c.block_kv >= p.len_kv;
}

// Whether a strip may see the keys of one block only, so that its dq needs no sums that outlast it.
inline bool makes_own_dq(const Problem& p, const Config& c) {
  const bool few_keys = p.kv_begin || p.kv_end || p.mask.given || p.window_left || p.window_right;
  return p.dq && !dq_in_place(p) && !dq_of_strip(p, c) && few_keys;
}

// Bump allocator with an alignment of 64 bytes. With a null base it only counts.
class Arena {
 public:
  explicit Arena(char* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t count) {
    char* at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return reinterpret_cast<T*>(at);
  }
  [[nodiscard]] std::int64_t used() const { return used_; }

 private:
  char* base_;
  std::int64_t used_ = 0;
};

// Tiles of one worker. Those that a pass does not use are null.
template <class T>
struct Scratch {
  // With gemv: rows, q, row_max, row_sum and o hold heads_of_task key heads.
  TileRow* rows = nullptr;          // [tile_rows]
  std::uint8_t* missing = nullptr;  // [tile_kv]
  T* q = nullptr;                   // [tile_rows x dim_qk]
  T* q_t = nullptr;                 // with gemv: [dim_qk x kMostDecodeRows] for each key head
  T* dout = nullptr;                // [tile_rows x dim_vo]
  T* k = nullptr;                   // [tile_kv x dim_qk]; backward_kv: k, k_t, v_t of all tiles
  T* k_t = nullptr;                 // [dim_qk x tile_kv]
  T* v = nullptr;                   // [tile_kv x dim_vo]
  T* v_t = nullptr;                 // [dim_vo x tile_kv]
  // [strip_rows x tile_kv] scores, then probabilities. With gemv: of kMostDecodeRows rows.
  T* s = nullptr;
  T* dp = nullptr;                 // [strip_rows x tile_kv] dP, then score gradients
  std::uint8_t* random = nullptr;  // [strip_rows x kDropoutRow] random bytes of dropout
  T* tanh = nullptr;               // [tile_kv]; bf16 engines: [strip_rows x tile_kv]
  T* row_buffer = nullptr;         // [max(4 * dim_qk, 4 * dim_vo, tile_kv)]
  T* row_max = nullptr;            // [tile_rows] forward: running maximum
  T* row_sum = nullptr;            // [tile_rows] forward: running sum of exponentials
  T* lse = nullptr;                // [tile_rows] backward
  T* delta = nullptr;              // [tile_rows] backward
  // Accumulators of the outputs.
  T* o = nullptr;         // [tile_rows x dim_vo]
  T* dk = nullptr;        // [kept_keys x dim_qk]
  T* dv = nullptr;        // [kept_keys x dim_vo]
  T* dq = nullptr;        // [rows x dim_qk]; rows: tile_rows, strip_rows, or all of a key head
  T* dq_strip = nullptr;  // [strip_rows x dim_qk], see makes_own_dq
  T* dbias = nullptr;     // [tile_rows x tile_kv]
};

// Tiles of one worker in the forward of a bf16 engine. Rows are padded to a multiple of kBf16Rows,
// dims and keys to full packed blocks.
struct Bf16Scratch {
  // rows, missing, s, random, row_buffer, o, row_max, row_sum. With Config::span_keys, rows are
  // those of one strip, and s has as many columns.
  Scratch<float> f32;
  Bf16Bits* q = nullptr;             // [tile_rows x dim_qk]
  std::uint32_t* visible = nullptr;  // [strip_rows x tile_kv / 32], see Bf16Visible
  // A tile of keys (packed_keys), packed here or, if pack_keys ran, in the workspace.
  Bf16Bits* k_t = nullptr;  // K^T: [tile_kv / 16][dim_qk / 32] blocks
  Bf16Bits* v = nullptr;    // V: [tile_kv / 32][dim_vo / 16] blocks
};

// Packed keys of a task: a tile, or with span_keys those that all of its strips see.
inline std::int64_t packed_keys(const Config& c) {
  return c.span_keys > 0 ? round_up(c.tile_rows, kPackedDepth) + c.span_keys : c.tile_kv;
}

inline Bf16Scratch make_bf16_scratch(Arena& arena, const Problem& p, const Config& c) {
  const std::int64_t qk = round_up(p.dim_qk, kPackedDepth);
  const std::int64_t vo = round_up(p.dim_vo, 2 * kPackedCols);
  const std::int64_t rows = c.span_keys > 0 ? c.strip_rows : c.tile_rows;
  const std::int64_t cols = std::max(c.tile_kv, c.span_keys);
  Bf16Scratch x;
  x.f32.rows = arena.take<TileRow>(rows);
  x.f32.missing = arena.take<std::uint8_t>(c.tile_kv);
  x.f32.s = arena.take<float>(c.strip_rows * cols);
  if (p.dropout) x.f32.random = arena.take<std::uint8_t>(c.strip_rows * kDropoutRow);
  x.f32.row_buffer = arena.take<float>(cols);
  x.f32.o = arena.take<float>(rows * padded<float>(p.dim_vo));
  x.f32.row_max = arena.take<float>(rows);
  x.f32.row_sum = arena.take<float>(rows);
  x.q = arena.take<Bf16Bits>(rows * qk);
  x.visible = arena.take<std::uint32_t>(c.strip_rows * cols / kVisibleBits);
  x.k_t = arena.take<Bf16Bits>(packed_keys(c) * qk);
  x.v = arena.take<Bf16Bits>(packed_keys(c) * vo);
  return x;
}

// Rows between the queries of two key heads of a task. With gemv_engine these are packed queries
// and those that they are packed from. The last row spreads them over the sets of L1.
inline std::int64_t query_rows(const Config& c) {
  return c.gemv_engine == Engine::float_simd ? c.tile_rows : kMostDecodeRows + 1;
}

// Elements of the sums of dk and dv that exist at a time, as the engine lays them out in scratch.
template <class T>
std::int64_t key_sums_size(const Problem& p, const Config& c) {
  if (c.engine == Engine::float_simd) {
    return kept_keys(c) * (padded<T>(p.dim_qk) + padded<T>(p.dim_vo));
  }
  return sums_row(c) * (round_up(p.dim_qk, kPackedDepth) + round_up(p.dim_vo, kPackedDepth));
}

enum class Phase { forward, backward_kv, backward_q, backward_bias };

template <class T>
Scratch<T> make_scratch(Arena& arena, Phase phase, const Problem& p, const Config& c) {
  const std::int64_t qk = padded<T>(p.dim_qk);
  const std::int64_t vo = padded<T>(p.dim_vo);
  const bool backward = phase != Phase::forward;
  const std::int64_t rows = c.tile_rows * c.heads_of_task;
  Scratch<T> x;
  x.rows = arena.take<TileRow>(rows);
  x.missing = arena.take<std::uint8_t>(c.tile_kv);
  x.q = arena.take<T>(query_rows(c) * c.heads_of_task * qk);
  if (c.gemv && c.gemv_engine == Engine::float_simd) {
    x.q_t = arena.take<T>(kMostDecodeRows * c.heads_of_task * qk);
  }
  if (backward) x.dout = arena.take<T>(c.tile_rows * vo);
  const bool joint_dq = phase == Phase::backward_kv && p.dq;
  const std::int64_t keys = phase == Phase::backward_kv ? kept_keys(c) : c.tile_kv;
  if (phase == Phase::backward_q || joint_dq || c.gemv) x.k = arena.take<T>(keys * qk);
  if (!c.gemv) x.k_t = arena.take<T>(qk * keys);
  if (phase == Phase::forward) x.v = arena.take<T>(c.tile_kv * vo);
  if (backward) x.v_t = arena.take<T>(vo * keys);
  const std::int64_t score_rows =
      !c.gemv ? c.strip_rows : kMostDecodeRows * (c.heads_together ? c.heads_of_task : 1);
  x.s = arena.take<T>(score_rows * c.tile_kv);
  if (backward) x.dp = arena.take<T>(c.strip_rows * c.tile_kv);
  if (p.dropout) x.random = arena.take<std::uint8_t>(c.strip_rows * kDropoutRow);
  if (p.softcap && backward) x.tanh = arena.take<T>(c.tile_kv);
  x.row_buffer = arena.take<T>(std::max({4 * qk, 4 * vo, c.tile_kv}));
  switch (phase) {
    case Phase::forward: x.o = arena.take<T>(rows * vo); break;
    case Phase::backward_kv:
      x.dk = arena.take<T>(keys * qk);
      x.dv = arena.take<T>(keys * vo);
      if (joint_dq && dq_in_place(p)) {
        x.dq = arena.take<T>(c.strip_rows * qk);
      } else if (joint_dq && c.dq_slots == 0) {
        x.dq = arena.take<T>(dq_of_strip(p, c) ? c.strip_rows * qk : dq_accum_size<T>(p));
      }
      if (makes_own_dq(p, c)) x.dq_strip = arena.take<T>(c.strip_rows * qk);
      break;
    case Phase::backward_q: x.dq = arena.take<T>(c.tile_rows * qk); break;
    case Phase::backward_bias: x.dbias = arena.take<T>(c.tile_rows * c.tile_kv); break;
  }
  (backward ? x.lse : x.row_max) = arena.take<T>(rows);
  (backward ? x.delta : x.row_sum) = arena.take<T>(rows);
  return x;
}

// Tiles of one worker in backward_kv of a bf16 engine. strip: kBf16StripRows. dk_t and dv_t
// accumulate dK^T and dV^T.
struct Bf16KeysScratch {
  Scratch<float> f32;          // rows, s, dp, random, tanh, row_buffer, dq, lse, delta
  Bf16Bits* q = nullptr;       // [strip x dim_qk]
  Bf16Bits* dout = nullptr;    // [strip x dim_vo]
  Bf16Bits* q_t = nullptr;     // [dim_qk x strip]
  Bf16Bits* dout_t = nullptr;  // [dim_vo x strip]
  Bf16Bits* k_t = nullptr;     // K^T and V^T of a block's kept keys, packed by pack_keys
  Bf16Bits* v_t = nullptr;
  Bf16Bits* k = nullptr;             // K likewise, packed by pack_values
  Bf16Bits* p = nullptr;             // [strip x tile_kv] packed: parts of 16 columns are adjacent
  Bf16Bits* ds = nullptr;            // likewise
  Bf16Bits* ds_rows = nullptr;       // of each part [32 x columns that it sees]
  std::uint32_t* visible = nullptr;  // [32 x tile_kv / 32], see Bf16Visible
  float* dk_t = nullptr;             // [dim_qk x sums_row]; the first kept_keys columns are used
  float* dv_t = nullptr;             // [dim_vo x sums_row], likewise
  // Sums of dbias: [strips, tiles of a block, strip_rows x tile_kv]; see dbias_in_scratch.
  float* dbias_sums = nullptr;
};

inline Bf16KeysScratch make_bf16_keys_scratch(Arena& arena, const Problem& p, const Config& c) {
  const std::int64_t qk = round_up(p.dim_qk, kPackedDepth);
  const std::int64_t vo = round_up(p.dim_vo, kPackedDepth);
  const std::int64_t scores = kBf16PartRows * c.tile_kv;
  Bf16KeysScratch x;
  x.f32.rows = arena.take<TileRow>(kBf16StripRows);
  x.f32.s = arena.take<float>(scores);
  x.f32.dp = arena.take<float>(scores);
  if (p.dropout) x.f32.random = arena.take<std::uint8_t>(kBf16PartRows * kDropoutRow);
  if (p.softcap) x.f32.tanh = arena.take<float>(scores);
  x.f32.row_buffer = arena.take<float>(std::max(kPackedDepth * std::max(qk, vo), c.tile_kv));
  x.f32.lse = arena.take<float>(kBf16StripRows);
  x.f32.delta = arena.take<float>(kBf16StripRows);
  if (p.dq && dq_in_place(p)) {
    x.f32.dq = arena.take<float>(kBf16StripRows * padded<float>(p.dim_qk));
  } else if (p.dq && c.dq_slots == 0) {
    x.f32.dq = arena.take<float>(dq_of_strip(p, c) ? kBf16StripRows * padded<float>(p.dim_qk)
                                                   : dq_accum_size<float>(p));
  }
  if (makes_own_dq(p, c)) {
    x.f32.dq_strip = arena.take<float>(kBf16StripRows * padded<float>(p.dim_qk));
  }
  x.q = arena.take<Bf16Bits>(kBf16StripRows * qk);
  x.dout = arena.take<Bf16Bits>(kBf16StripRows * vo);
  x.q_t = arena.take<Bf16Bits>(kBf16StripRows * qk);
  x.dout_t = arena.take<Bf16Bits>(kBf16StripRows * vo);
  x.k_t = arena.take<Bf16Bits>(kept_keys(c) * qk);
  x.v_t = arena.take<Bf16Bits>(kept_keys(c) * vo);
  if (p.dq) x.k = arena.take<Bf16Bits>(kept_keys(c) * qk);
  x.p = arena.take<Bf16Bits>(kBf16Parts * scores);
  x.ds = arena.take<Bf16Bits>(kBf16Parts * scores);
  x.ds_rows = arena.take<Bf16Bits>(kBf16Parts * scores);
  x.visible = arena.take<std::uint32_t>(scores / kVisibleBits);
  x.dk_t = arena.take<float>(sums_row(c) * qk);
  x.dv_t = arena.take<float>(sums_row(c) * vo);
  if (c.dbias_in_scratch) {
    const std::int64_t rows = round_up(p.heads_q / p.heads_kv * p.len_q, kBf16StripRows);
    x.dbias_sums = arena.take<float>(rows * c.block_kv);
  }
  return x;
}

// Row buffers of the step row_sums.
template <class T>
struct RowSumsScratch {
  T* dout = nullptr;   // [dim_vo]
  T* o = nullptr;      // [dim_vo]
  T* zeros = nullptr;  // [dim_qk]
};
template <class T>
RowSumsScratch<T> make_row_sums_scratch(Arena& arena, const Problem& p) {
  RowSumsScratch<T> x;
  x.dout = arena.take<T>(padded<T>(p.dim_vo));
  x.o = arena.take<T>(padded<T>(p.dim_vo));
  x.zeros = arena.take<T>(padded<T>(p.dim_qk));
  return x;
}

}  // namespace attn::cpu
