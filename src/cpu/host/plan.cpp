// The CPU plan; see plan.hpp.
#include "cpu/host/plan.hpp"

#include <algorithm>
#include <string>

#include "cpu/host/backward_blocks.hpp"
#include "cpu/host/plan_traits.hpp"
#include "cpu/host/small_scratch.hpp"
#include "cpu/host/workspace.hpp"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

namespace attn::cpu {
namespace {

// Measured on 2 cores of a Xeon with AVX-512 (2 MiB of L2). A tile of 192 rows shares each load of
// keys. The scores of 48 rows against 64 keys fit in L1. 48 and 192 are multiples of the 6 rows
// that the matrix product computes at a time.
constexpr std::int64_t kTileRows = 192;
static_assert(kTileRows <= kMostTileRows);
constexpr std::int64_t kStripRows = 48;
constexpr std::int64_t kTileKv = 64;
// Few rows (gemv): 32 keys, not 64: 64 keys of 8 heads take 64 pages of memory, and as many are
// prefetched. That is more than the first level of address translation holds (Xeon: 96 pages).
// Measured: docs/kernels/cpu_decode.md.
constexpr std::int64_t kGemvTileKv = 32;
constexpr std::int64_t kMostGemvRows = 16;    // up to here dot products beat transposing the keys
constexpr std::int64_t kLeastSharedKeys = 4;  // row tiles; with 3, separate packing costs 5 %
constexpr std::int64_t kWantedTasks = 32;     // keys are split if there are fewer tasks than this,
constexpr std::int64_t kWantedGemv = 128;     // or than this with few rows (gemv),
constexpr std::int64_t kLeastSplit = 512;     // into splits of at least this many keys
// Elements of one tile of K and V of all heads_of_task heads: with the next tile, which is
// prefetched, 512 KiB in 16 bits and 1 MiB in f32 must fit in L2.
constexpr std::int64_t kMostAhead = std::int64_t{128} << 10;

// bf16 engines. A strip of 16 rows is the height of one AMX tile. Packed K and V of a tile of keys,
// S, and O of the strip then fit in L1 together.
constexpr std::int64_t kStripRowsBf16 = 16;
constexpr std::int64_t kPackedBytes = 32 << 10;  // packed K and V in L1
// Keys of a tile in forwards with AMX (docs/kernels/cpu_amx.md). With a core for each thread, 64
// are 20 to 25 % faster than 128 at dim 64: with 128 keys, Q, S and O evict K and V from L1. Where
// two threads share a core, its L1 holds neither, AMX is the bound, and 128 keys are 5 to 15 %
// faster. The number of threads must not decide, because it must not change results. Dropout draws
// bytes for 128 keys at a time.
constexpr std::int64_t kFewKeysAmx = 64;
bool pays_few_keys_amx(const Problem& p, Engine engine) {
  return engine == Engine::amx_bf16 && !p.dropout && has_few_processors();
}
constexpr std::int64_t kMostRowsBf16 = 384;
constexpr std::int64_t kLeastRowsBf16 = 96;
constexpr std::int64_t kWantedTasksBf16 = 64;  // enough to keep 16 cores busy

bool multiplies_bf16(const Problem& p) {
  return p.dtype == DType::bf16 && p.kv_type() == DType::bf16;
}

// With few rows memory bandwidth is the limit: each key is read once, in place, and packing it for
// an engine would cost more than it gains.
bool takes_bf16_engine(Pass pass, const Problem& p, std::int64_t rows) {
  if (!multiplies_bf16(p) || rows <= kMostGemvRows) return false;
  // In the backward, only backward_kv has a bf16 kernel. dout has the type of o.
  return pass != Pass::backward ||
         (p.out_type() == DType::bf16 && p.grad_type() == DType::bf16 && (p.dk || p.dv));
}

static_assert(kMostGemvRows <= kMostDecodeRows);
// The engine of tile_ops/bf16_decode.hpp that reads the rows of a call with gemv. An AMX product
// takes as long for one row as for 16, so f32 arithmetic is as fast for one row
// (docs/kernels/cpu_decode.md).
constexpr std::int64_t kLeastAmxRows = 2;
Engine choose_gemv_engine(const Problem& p, std::int64_t rows, Engine bf16) {
  const bool has_products =
      bf16 == Engine::bf16_dot || (bf16 == Engine::amx_bf16 && rows >= kLeastAmxRows);
  const bool reads =
      multiplies_bf16(p) && p.dim_qk % kPackedDepth == 0 && p.dim_vo % kPackedDepth == 0;
  return has_products && reads ? bf16 : Engine::float_simd;
}

void set_bf16_tiles(const Problem& p, std::int64_t rows, Config& config) {
  const std::int64_t key_bytes =
      2 * (round_up(p.dim_qk, kPackedDepth) + round_up(p.dim_vo, 2 * kPackedCols));
  const std::int64_t most = pays_few_keys_amx(p, config.engine) ? kFewKeysAmx : kMaxTileKv;
  const std::int64_t tile =
      std::clamp(kPackedBytes / key_bytes / kPackedDepth * kPackedDepth, kPackedDepth, most);
  config.tile_kv = std::clamp(round_up(p.len_kv, kPackedDepth), kPackedDepth, tile);
  const std::int64_t groups = std::max<std::int64_t>(p.batch * p.heads_kv, 1);
  const std::int64_t wanted = divide_up(kWantedTasksBf16, groups);
  const std::int64_t shared = std::clamp(divide_up(rows, wanted), kLeastRowsBf16, kMostRowsBf16);
  // All tiles get about the same height.
  config.tile_rows = round_up(divide_up(rows, divide_up(rows, shared)), kBf16Rows);
  config.strip_rows = kStripRowsBf16;
}

// Upper bound on the row tiles that see one key.
std::int64_t row_tiles_of_key(const Problem& p, const Config& config) {
  const std::int64_t all = row_tiles(p, config);
  const std::int64_t left = p.window_left.value_or(p.len_q);
  const std::int64_t right = p.causal ? 0 : p.window_right.value_or(p.len_q);
  if (left >= p.len_q || right >= p.len_q) return all;
  const std::int64_t of_head = divide_up(left + 1 + right, config.tile_rows) + 1;
  return std::min(all, p.heads_q / p.heads_kv * of_head);
}

std::int64_t rows_of_head(const Problem& p) {
  return std::max<std::int64_t>(p.heads_q / p.heads_kv * p.len_q, 1);
}

// A strip computes all keys that any of its rows sees: the window plus the height of the strip. 24
// rows waste half as many as 48. The backward computes only what groups of 6 rows see
// (gemm_parts-inl.h), except with dbias, so its strips are tall. A forward with dims up to 64 and
// enough tasks uses larger tiles, so that more rows share a load of keys. Measured in
// docs/kernels/cpu.md.
void set_window_tiles(Pass pass, const Problem& p, std::int64_t rows, Config& config) {
  if (pass == Pass::backward && !p.dbias) {
    const bool narrow = p.dim_qk <= 64 && p.dim_vo <= 64;
    config.strip_rows = std::min(config.tile_rows, narrow ? 2 * kStripRows : kStripRows);
    return;
  }
  config.strip_rows = std::min(config.strip_rows, kStripRows / 2);
  if (pass == Pass::backward) return;
  const bool many = p.batch * p.heads_kv * (rows / (2 * kTileRows)) >= 2 * kWantedTasks;
  if (!many || p.dim_qk > 64 || p.dim_vo > 64) return;
  config.tile_rows = 2 * kTileRows;
  config.tile_kv = std::clamp<std::int64_t>(round_up(p.len_kv, 16), 16, 2 * kTileKv);
}

// With a window, a strip's scores of all keys that it sees fit in L1. One softmax of them needs no
// running maximum, and o is stored once. Each task packs the keys of its rows as its strips see
// them, so that packed keys stay in L2. Measured in docs/kernels/cpu_amx.md, "Windows".
constexpr std::int64_t kTallStrip = 32;
constexpr std::int64_t kMostScores = 10 << 10;  // of a strip: 40 KiB of 48 KiB of L1 with AMX
constexpr std::int64_t kMostRowsSpan = 512;     // of a task
void set_span_keys(const Problem& p, std::int64_t rows, Config& config) {
  const bool measured = config.engine == Engine::amx_bf16 || config.engine == Engine::bf16_dot;
  const bool fits = measured && has_narrow_window(p) && !p.dropout && p.page_size == 0 &&
                    config.splits == 1 && p.split_keys <= 0;
  if (!fits) return;
  const std::int64_t window = *p.window_left + (p.causal ? 0 : *p.window_right);
  const auto span_of = [&](std::int64_t strip) {
    return round_up(window + strip, kPackedDepth) + kPackedDepth;
  };
  const bool tall = span_of(kTallStrip) * kTallStrip <= kMostScores;
  config.strip_rows = tall ? kTallStrip : kStripRowsBf16;
  config.span_keys = span_of(config.strip_rows);
  const std::int64_t groups = std::max<std::int64_t>(p.batch * p.heads_kv, 1);
  const std::int64_t shared = std::clamp(divide_up(rows, divide_up(kWantedTasksBf16, groups)),
                                         kLeastRowsBf16, kMostRowsSpan);
  config.tile_rows = round_up(std::min(rows, shared), config.strip_rows);
}

// Whether decode visits all heads at a few keys at a time. They need rows that are multiplied in
// place. 16-bit rows, which are converted, are not faster so: arithmetic is the limit
// (docs/kernels/cpu_decode.md).
bool may_visit_heads_together(const Problem& p) {
  constexpr std::int64_t kMostRows = 4;
  const bool in_place = p.kv_type() == DType::f32 && p.dim_qk == padded<float>(p.dim_qk) &&
                        p.dim_vo == padded<float>(p.dim_vo);
  return in_place && rows_of_head(p) <= kMostRows && reads_faster_in_order();
}

// With few rows the limit is memory bandwidth. A cache usually stores the heads of a key next to
// each other. So one task processes a tile of keys for all heads in turn and prefetches the next
// tile in the order of its addresses. Results are bitwise the same, because the order of sums does
// not change. Measured on Zen 4, two cores: 1.0 to 1.2 times the speed with 16-bit caches, 1.0 to 2
// times with f32.
void set_heads_of_task(const Problem& p, std::int64_t threads, Config& config) {
  const std::int64_t size = core::element_size(p.kv_type());
  const std::int64_t elements = p.heads_kv * config.tile_kv * (p.dim_qk + p.dim_vo);
  const bool few = p.batch * config.splits < 4 * threads;
  const bool in_place = size == 2 || size == 4;
  if (!in_place || few || p.heads_kv > kMostHeadsOfTask || elements > kMostAhead) return;
  config.heads_of_task = std::max<std::int64_t>(p.heads_kv, 1);
  config.heads_together = config.heads_of_task > 1 && may_visit_heads_together(p);
}

// The order of forward tasks, which changes no bits. With many threads the shortest tiles of all
// heads should come last: the first tiles of causal rows, or a last tile that is not full. 16
// threads are 1.02 to 1.27 times as fast (docs/kernels/cpu_f32.md, "Order of tasks"). A few threads
// compute all tiles of a head before the next head, so that the head's packed keys stay in L2. With
// a window the rows of a tile and all heads share pages of memory.
void set_heads_in_turn(const Problem& p, std::int64_t threads, Config& config) {
  constexpr std::int64_t kFewThreads = 4;
  config.heads_in_turn = config.span_keys > 0 || (!config.gemv && config.splits == 1 &&
                                                  p.heads_kv > 1 && threads > kFewThreads);
}

// Gives a task several pairs if each is small: one tile or block of keys, and at most one tile of
// rows. There stay at least kSmallTasks tasks for each thread.
constexpr std::int64_t kMostPairs = 16;
constexpr std::int64_t kSmallTasks = 8;
void set_pairs_of_task(Pass pass, const Problem& p, std::int64_t threads, Config& config) {
  if (p.page_size > 0 || config.gemv || row_tiles(p, config) != 1) return;
  if (config.span_keys > 0) return;
  if (pass == Pass::backward) {
    // Tasks of a dbias are in another order than row_sums; dkv_terms splits a pair into tasks.
    if (config.dkv_terms > 1) return;
    if (!(p.dk || p.dv) || (p.dq && !dq_with_keys(p)) || p.dbias) return;
    if (key_blocks(p, config) != 1) return;
  } else if (config.splits != 1 || p.len_kv > config.tile_kv || config.pack_keys) {
    return;
  }
  const std::int64_t pairs = p.batch * p.heads_kv;
  config.pairs_of_task = std::clamp<std::int64_t>(pairs / (kSmallTasks * threads), 1, kMostPairs);
}

// Whether small_forward.cpp, small_backward.cpp or, with AMX, tile_ops/amx_small.cpp computes the
// problem. It has no option that changes scores. Query heads that share a key head fit in one tile
// of rows, so that the kernels of tiles would have no more tasks. In f32 arithmetic:
// - f32 rows are full vectors, whatever the instruction set;
// - vectors hold queries of one head, so heads with few queries are stacked in tiles instead;
// - hidden pairs are computed too; with more than 64 keys that costs more than it gains;
// - bf16 has it only where no engine multiplies bf16.
// With AMX a single query is as fast by dot products.
constexpr std::int64_t kMostSmallDim = 64;
constexpr std::int64_t kLeastSmallQueries = 8;
constexpr std::int64_t kLeastSmallQueriesBf16 = 2;
bool takes_small_amx(Pass pass, const Problem& p, Engine bf16) {
  return pass != Pass::backward && multiplies_bf16(p) && bf16 == Engine::amx_bf16;
}
bool has_small_types(Pass pass, const Problem& p, Engine bf16) {
  if (p.dim_qk > kMostSmallDim || p.dim_vo > kMostSmallDim) return false;
  if (takes_small_amx(pass, p, bf16)) return p.out_type() == DType::bf16;
  const DType type = p.dtype;
  if (p.kv_type() != type || p.out_type() != type) return false;
  if (pass == Pass::backward && p.grad_type() != type) return false;
  if (type == DType::f32) return p.dim_qk % kSmallDimStep == 0 && p.dim_vo % kSmallDimStep == 0;
  return type == DType::f16 || (type == DType::bf16 && bf16 == Engine::float_simd);
}
bool takes_small(Pass pass, const Problem& p, Engine bf16, const Config& config) {
  if (!has_small_types(pass, p, bf16) || p.page_size > 0) return false;
  const bool hides = p.causal || p.window_left || p.window_right || p.kv_begin || p.kv_end;
  const bool is_amx = takes_small_amx(pass, p, bf16);
  const std::int64_t most = hides && !is_amx ? kMostSmallLen / 2 : kMostSmallLen;
  if (p.len_q > most || p.len_kv > most || rows_of_head(p) > kTileRows) return false;
  const bool alone = pass == Pass::backward && p.heads_q == p.heads_kv;
  const std::int64_t least = is_amx ? kLeastSmallQueriesBf16 : kLeastSmallQueries;
  if (p.len_q < least && !alone) return false;
  if (p.mask.given || p.softcap || p.alibi || p.bias.given || p.sink || p.dropout) return false;
  if (p.nonfinite_zero || p.accumulate || config.splits != 1) return false;
  return pass != Pass::backward || ((p.dk || p.dv) && !p.dbias && !p.dsink);
}

// Uses measured tiles, clamped to the problem like the default ones.
void set_tiles(const Tiles& tiles, const Problem& p, std::int64_t rows, Config& config) {
  const std::int64_t step_kv = config.engine == Engine::float_simd ? 16 : kPackedDepth;
  const std::int64_t step_rows = config.engine == Engine::float_simd ? 6 : config.strip_rows;
  config.tile_kv = std::clamp(round_up(p.len_kv, step_kv), step_kv, tiles.tile_kv);
  config.tile_rows = std::min(tiles.tile_rows, round_up(rows, step_rows));
  config.strip_rows = std::min(tiles.strip_rows, config.tile_rows);
}

// Chooses the kernels of small problems. A task of theirs prefetches only pairs of its own, so it
// has more of them than a task with tiles.
constexpr std::int64_t kMostSmallPairs = 128;
constexpr std::int64_t kTasksOfSmall = 4;  // for each thread
void set_small(Pass pass, const Problem& p, std::int64_t threads, Engine bf16, Config& config) {
  if (!takes_small(pass, p, bf16, config)) return;
  config.small = true;
  config.engine = takes_small_amx(pass, p, bf16) ? bf16 : Engine::float_simd;
  config.gemv = false;
  config.gemv_engine = Engine::float_simd;
  config.pack_keys = false;
  config.heads_of_task = 1;
  config.heads_in_turn = false;
  config.span_keys = 0;
  config.pairs_of_task = std::clamp<std::int64_t>(p.batch * p.heads_kv / (kTasksOfSmall * threads),
                                                  1, kMostSmallPairs);
}

// Keys of a tile with many rows, without an engine for bf16. Where the softmax of a forward is a
// pass of its own, its reductions and the update of the maximum cost the same for 128 scores of a
// row as for 64 (docs/kernels/cpu_f32.md, "Tiles of 128 keys"). Not in f64, where the scores of a
// strip would not fit in L1, and not with a bias or a narrow window, where it was not faster.
std::int64_t keys_of_tile(Pass pass, const Problem& p) {
  const bool is_long =
      pass != Pass::backward && p.dtype != DType::f64 && !p.bias.given && !has_narrow_window(p);
  return is_long && !fuses_softmax() ? 2 * kTileKv : kTileKv;
}

Config make_config(Pass pass, const Problem& p, std::int32_t threads, Engine bf16,
                   const std::optional<Tiles>& tuned) {
  const std::int64_t rows = rows_of_head(p);
  Config config;
  config.gemv = pass != Pass::backward && rows <= kMostGemvRows;
  if (takes_bf16_engine(pass, p, rows)) config.engine = bf16;
  if (config.gemv) config.gemv_engine = choose_gemv_engine(p, rows, bf16);
  if (config.engine != Engine::float_simd && pass == Pass::backward) {
    config.tile_kv = std::clamp(round_up(p.len_kv, kPackedDepth), kPackedDepth, kTileKv);
    config.tile_rows = std::min(kTileRows, round_up(rows, kBf16StripRows));
    config.strip_rows = kBf16StripRows;
  } else if (config.engine != Engine::float_simd) {
    set_bf16_tiles(p, rows, config);
  } else {
    const std::int64_t tile_kv = config.gemv ? kGemvTileKv : keys_of_tile(pass, p);
    config.tile_kv = std::clamp<std::int64_t>(round_up(p.len_kv, 16), 16, tile_kv);
    config.tile_rows = config.gemv ? rows : std::min(kTileRows, round_up(rows, 6));
    config.strip_rows = std::min(config.tile_rows, kStripRows);
    if (has_narrow_window(p) && !config.gemv) {
      set_window_tiles(pass, p, rows, config);
    } else if (pass == Pass::backward && (p.dk || p.dv) && has_long_blocks()) {
      config.strip_rows = std::min(config.tile_rows, 2 * kStripRows);
    }
  }
  if (tuned) set_tiles(*tuned, p, rows, config);
  config.split_keys = std::max<std::int64_t>(p.len_kv, 1);
  if (pass == Pass::backward) {
    set_blocks(p, threads, tuned ? tuned->block_kv : 0, config);
    set_pairs_of_task(pass, p, threads, config);
    if (!tuned) set_small(pass, p, threads, bf16, config);
    return config;
  }

  const std::int64_t tasks = p.batch * p.heads_kv * row_tiles(p, config);
  const std::int64_t wanted = config.gemv ? kWantedGemv : kWantedTasks;
  if (p.split_keys > 0) {
    config.split_keys = std::min(p.split_keys, config.split_keys);
  } else if (p.split_keys == kSplitAuto && row_tiles(p, config) == 1 && tasks < wanted) {
    const std::int64_t keys =
        divide_up(p.len_kv, divide_up(wanted, std::max<std::int64_t>(tasks, 1)));
    config.split_keys = std::max(kLeastSplit, round_up(keys, kTileKv));
  }
  config.splits = std::max<std::int64_t>(divide_up(p.len_kv, config.split_keys), 1);
  if (!tuned) set_span_keys(p, rows, config);
  set_heads_in_turn(p, threads, config);
  if (config.gemv) set_heads_of_task(p, threads, config);
  // Packing in a separate step pays where enough tasks share keys. Packed sequences are excluded:
  // their tiles would need a workspace of batch times the longest sequence.
  const std::int64_t least = config.engine == Engine::float_simd ? kLeastSharedKeys : 2;
  config.pack_keys = !config.gemv && row_tiles_of_key(p, config) >= least && config.splits == 1 &&
                     p.layout_kv == Layout::padded && p.page_size == 0 && config.span_keys == 0;
  set_pairs_of_task(pass, p, threads, config);
  if (!tuned) set_small(pass, p, threads, bf16, config);
  return config;
}

}  // namespace

const char* to_string(Step step) {
  switch (step) {
    case Step::append: return "append";
    case Step::rotate_q: return "rotate_q";
    case Step::rotate_k: return "rotate_k";
    case Step::scan_mask: return "scan_mask";
    case Step::fill_gaps: return "fill_gaps";
    case Step::pack_keys: return "pack_keys";
    case Step::forward: return "forward";
    case Step::merge_splits: return "merge_splits";
    case Step::row_sums: return "row_sums";
    case Step::backward_kv: return "backward_kv";
    case Step::backward_qkv: return "backward_qkv";
    case Step::backward_q: return "backward_q";
    case Step::bias_gradient: return "bias_gradient";
    case Step::sink_gradient: return "sink_gradient";
    case Step::rotate_dq: return "rotate_dq";
    case Step::rotate_dk: break;
  }
  return "rotate_dk";
}

std::optional<Engine> engine_with_tiles(Pass pass, const Problem& p, Engine bf16) {
  const std::int64_t rows = rows_of_head(p);
  if (pass != Pass::backward && rows <= kMostGemvRows) return std::nullopt;
  return takes_bf16_engine(pass, p, rows) ? bf16 : Engine::float_simd;
}

CpuPlan::CpuPlan(Pass of_pass, const Problem& of_problem, std::int32_t of_threads, Engine bf16,
                 const std::optional<Tiles>& of_tuned)
    : core::Plan(of_pass, of_problem), threads(of_threads) {
  if (of_tuned) {
    const std::optional<Engine> engine = engine_with_tiles(pass, problem, bf16);
    tuned = engine && misfit(pass, *engine, *of_tuned).empty();
  }
  config = make_config(pass, problem, threads, bf16, tuned ? of_tuned : std::nullopt);
  if (problem.dtype == DType::f64) {
    size_workspace<double>();
  } else {
    size_workspace<float>();
  }
  if (pass == Pass::backward) {
    add_backward();
  } else {
    add_forward();
  }
}

template <class T>
void CpuPlan::size_workspace() {
  scratch_bytes = cpu::scratch_bytes<T>(pass, problem, config);
  workspace_bytes = lay_out<T>(pass, problem, config, scratch_bytes, threads, nullptr).bytes;
}

void CpuPlan::add_rotations() {
  if (problem.rope == Rope::none) return;
  add(Step::rotate_q);
  if (pass != Pass::decode) add(Step::rotate_k);  // cached keys are rotated already
}

void CpuPlan::add_forward() {
  if (problem.len_new > 0) add(Step::append);
  add_rotations();
  if (mask_rows(problem) > 0) add(Step::scan_mask);
  if (problem.layout_q == Layout::packed) add(Step::fill_gaps);
  if (config.pack_keys) add(Step::pack_keys);
  add(Step::forward);
  if (config.splits > 1) add(Step::merge_splits);
}

void CpuPlan::add_backward() {
  const Problem& p = problem;
  const bool packed_gradients =
      (p.layout_q == Layout::packed && p.dq) || (p.layout_kv == Layout::packed && (p.dk || p.dv));
  if (packed_gradients && !p.accumulate) add(Step::fill_gaps);
  add_rotations();
  if (mask_rows(p) > 0) add(Step::scan_mask);
  if (config.pairs_of_task == 1 && !config.small)
    add(Step::row_sums);  // else backward_kv does both
  if (dq_with_keys(p)) {
    add(Step::backward_qkv);
  } else if (p.dq) {
    add(Step::backward_q);
  } else if (p.dk || p.dv) {
    add(Step::backward_kv);
  }
  if (p.dbias && !config.dbias_with_keys) add(Step::bias_gradient);
  if (p.dsink) add(Step::sink_gradient);
  if (p.rope == Rope::none) return;
  if (p.dq) add(Step::rotate_dq);
  if (p.dk) add(Step::rotate_dk);
}

PlanSummary CpuPlan::summary() const {
  PlanSummary to;
  to.kernel = pass == Pass::backward ? "cpu_backward" : "cpu_forward";
  if (config.engine != Engine::float_simd) {
    to.kernel += std::string("_") + to_string(config.engine);
  } else if (pass != Pass::backward && config.gemv) {
    to.kernel += "_gemv";
    if (config.gemv_engine != Engine::float_simd) {
      to.kernel += std::string("_") + to_string(config.gemv_engine);
    }
  }
  if (config.small) to.kernel += "_small";
  core::append_config(to.config, "tile_rows", config.tile_rows);
  core::append_config(to.config, "strip_rows", config.strip_rows);
  core::append_config(to.config, "tile_kv", config.tile_kv);
  core::append_config(to.config, "gemv", config.gemv);
  if (config.heads_of_task > 1) {
    core::append_config(to.config, "heads_of_task", config.heads_of_task);
    if (config.heads_together) core::append_config(to.config, "heads_together", 1);
  }
  if (config.heads_in_turn) core::append_config(to.config, "heads_in_turn", 1);
  if (config.span_keys > 0) core::append_config(to.config, "span_keys", config.span_keys);
  if (config.pairs_of_task > 1) {
    core::append_config(to.config, "pairs_of_task", config.pairs_of_task);
  }
  core::append_config(to.config, "split_keys", config.split_keys);
  core::append_config(to.config, "splits", config.splits);
  if (pass == Pass::backward) {
    core::append_config(to.config, "block_kv", config.block_kv);
    core::append_config(to.config, "blocks_of_task", config.blocks_of_task);
    if (config.ring_tiles > 0) core::append_config(to.config, "ring_tiles", config.ring_tiles);
    core::append_config(to.config, "heads_at_once", config.heads_at_once);
    core::append_config(to.config, "dq_slots", config.dq_slots);
    if (config.dkv_terms > 1) {
      core::append_config(to.config, "dkv_terms", config.dkv_terms);
      core::append_config(to.config, "dkv_slots", config.dkv_slots);
    }
    if (problem.dbias) core::append_config(to.config, "dbias_slots", config.dbias_slots);
    if (config.terms_of_task > 1) {
      core::append_config(to.config, "terms_of_task", config.terms_of_task);
    }
  }
  if (tuned) core::append_config(to.config, "tuned", 1);
  core::append_config(to.config, "threads", threads);
  to.tile_q = config.tile_rows;
  to.tile_kv = config.tile_kv;
  const std::int64_t groups = problem.batch * problem.heads_kv;
  to.tasks = config.pairs_of_task > 1 || config.small ? divide_up(groups, config.pairs_of_task)
             : pass == Pass::backward
                 ? groups * config.dkv_terms * key_tasks(problem, keys_config(config))
                 : forward_tasks(problem, config);
  to.workspace_bytes = workspace_bytes;
  for (const Step step : steps()) to.kernels.emplace_back(to_string(step));
  return to;
}

}  // namespace attn::cpu
