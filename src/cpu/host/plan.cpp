// The CPU plan; see plan.hpp.
#include "cpu/host/plan.hpp"

#ifdef __linux__
#include <unistd.h>
#endif

#include <algorithm>
#include <string>

#include "cpu/host/workspace.hpp"
#include "cpu/kernels/kernels.hpp"
#include "cpu/kernels/tile_ops/bf16_decode.hpp"

namespace attn::cpu {
namespace {

// Measured on 2 cores of a Xeon with AVX-512 (2 MiB of L2). A tile of 192 rows shares each load of
// keys. The scores of 48 rows against 64 keys fit in L1. 48 and 192 are multiples of the 6 rows
// that the matrix product computes at a time.
constexpr std::int64_t kTileRows = 192;
constexpr std::int64_t kStripRows = 48;
constexpr std::int64_t kTileKv = 64;
// Few rows (gemv): 64 keys of 8 heads take 64 pages of memory, and as many are prefetched. That is
// more than the first level of address translation holds (Xeon: 96 pages). Measured:
// docs/kernels/cpu_decode.md.
constexpr std::int64_t kGemvTileKv = 32;
// Backward: 48 rows and their dq are loaded once for a block of 256 keys. That was 10 to 25 %
// faster than 64 keys; 512 keys gained at most another 3 % (same Xeon, dims 64 and 128).
constexpr std::int64_t kBlockTiles = 4;
constexpr std::int64_t kMostBlock = std::int64_t{768} << 10;  // bytes of a block's K, V, dk and dv
constexpr std::int64_t kMostBlockBf16 = std::int64_t{1} << 20;
constexpr std::int64_t kMostOwnedDq = std::int64_t{16} << 20;     // bytes per worker
constexpr std::int64_t kMostDbiasSums = std::int64_t{256} << 20;  // bytes
constexpr std::int64_t kMostGemvRows = 16;    // up to here dot products beat transposing the keys
constexpr std::int64_t kLeastSharedKeys = 4;  // row tiles; with 3, separate packing costs 5 %
constexpr std::int64_t kWantedTasks = 32;     // keys are split if there are fewer tasks than this,
constexpr std::int64_t kWantedGemv = 128;     // or than this with few rows (gemv),
constexpr std::int64_t kLeastSplit = 512;     // into splits of at least this many keys
constexpr std::int64_t kMostHeadsOfTask = 16;
// Elements of one tile of K and V of all heads_of_task heads: with the next tile, which is
// prefetched, 512 KiB in 16 bits and 1 MiB in f32 must fit in L2.
constexpr std::int64_t kMostAhead = std::int64_t{128} << 10;

// Whether one task processes all keys of a (batch, key head). dq then stays in the cache of its
// worker, and the task never waits for another. This needs enough heads with equal work for all
// threads, and memory for the dq sums unless dq itself can hold them. The results are bitwise the
// same either way.
bool tasks_own_heads(const Problem& p, std::int64_t threads) {
  if (!dq_with_keys(p)) return false;
  const std::int64_t heads = p.batch * p.heads_kv;
  const bool varied = p.layout_q == Layout::packed || p.layout_kv == Layout::packed ||
                      p.lengths_q || p.lengths_kv || p.kv_begin || p.kv_end;
  const bool balanced = heads * 10 >= round_up(heads, threads) * 9 && (!varied || threads == 1);
  if (!balanced && heads < 8 * threads) return false;
  const std::int64_t bytes = dq_accum_size<float>(p) * size_of(p.statistics_type());
  return dq_in_place(p) || bytes <= kMostOwnedDq;
}

// Machines with at most this many processors have a core for each of them. Virtual machines hide
// which processors share a core; on machines with many, some do.
constexpr long kFewProcessors = 4;
bool has_few_processors() {
#ifdef __linux__
  static const long processors = sysconf(_SC_NPROCESSORS_CONF);
  return processors <= kFewProcessors;
#else
  return false;
#endif
}

// Windows that are narrower than this have tiles of their own.
constexpr std::int64_t kNarrow = 512;
bool has_narrow_window(const Problem& p) {
  if (!p.window_left || (!p.causal && !p.window_right)) return false;
  const std::int64_t right = p.causal ? 0 : *p.window_right;
  return *p.window_left <= kNarrow && right <= kNarrow - *p.window_left;
}

// Tiles of a block of keys of backward_kv. With a bf16 engine, packed keys and sums of a block may
// take half of what L2 has for a thread, as long as there are enough tasks. Each strip of rows is
// then loaded for more keys: docs/kernels/cpu_amx.md, "Keys of a block".
std::int64_t tiles_of_block(const Problem& p, std::int64_t threads, const Config& config) {
  if (config.engine == Engine::float_simd) {
    const std::int64_t key_bytes =
        (3 * padded<float>(p.dim_qk) + 2 * padded<float>(p.dim_vo)) * size_of(p.statistics_type());
    return std::clamp<std::int64_t>(kMostBlock / (key_bytes * config.tile_kv), 1, kBlockTiles);
  }
  const std::int64_t key_bytes =
      8 * round_up(p.dim_qk, kPackedDepth) + 6 * round_up(p.dim_vo, kPackedDepth);
  const std::int64_t most = has_few_processors() ? kMostBlockBf16 : kMostBlockBf16 / 2;
  // Where rows may see few keys, strips would pass over large blocks for little work.
  std::int64_t most_tiles = 4 * kBlockTiles;
  if (has_narrow_window(p) || p.mask.given) most_tiles = 2 * kBlockTiles;
  if (p.kv_begin || p.kv_end) most_tiles = kBlockTiles;
  std::int64_t tiles = std::clamp<std::int64_t>(most / (key_bytes * config.tile_kv), 1, most_tiles);
  const auto too_few = [&] {
    return p.batch * p.heads_kv * divide_up(p.len_kv, tiles * config.tile_kv) < 4 * threads;
  };
  while (tiles > kBlockTiles && !tasks_own_heads(p, threads) && too_few()) tiles /= 2;
  return tiles;
}

// Chooses the blocks of keys of backward_kv. `most`: keys of a block, if measured; 0: not measured.
void set_blocks(const Problem& p, std::int64_t threads, std::int64_t most, Config& config) {
  const std::int64_t tiles = most > 0 ? most / config.tile_kv : tiles_of_block(p, threads, config);
  config.block_kv = std::min(tiles * config.tile_kv,
                             std::max(round_up(p.len_kv, config.tile_kv), config.tile_kv));
  if (tasks_own_heads(p, threads)) {
    config.blocks_of_task = std::max<std::int64_t>(key_blocks(p, config), 1);
    return;
  }
  const std::int64_t heads = p.batch * p.heads_kv;
  while (config.block_kv > config.tile_kv && heads * key_blocks(p, config) < 4 * threads) {
    config.block_kv -= config.tile_kv;
  }
}

// Chooses the order of the tasks of backward_kv. Where blocks may have unequal work, heads are
// interleaved, so that the short blocks of all heads run last. Causal on 16 threads (12 heads, len
// 2048), simulated: threads are busy 100 % of the time instead of 89 %.
void set_turns(const Problem& p, std::int64_t threads, Config& config) {
  const std::int64_t heads = p.batch * p.heads_kv;
  const bool unequal = p.causal || p.window_left || p.window_right || p.kv_begin || p.kv_end ||
                       (p.mask.given && p.mask.q && p.mask.kv);
  if (!dq_with_keys(p) || key_tasks(p, config) <= 1) return;
  if (unequal && !config.dbias_with_keys) {
    config.heads_at_once = std::clamp<std::int64_t>(threads, 1, std::max<std::int64_t>(heads, 1));
  }
  if (dq_in_place(p)) return;
  // The number of heads that the running tasks may belong to at a time.
  const std::int64_t spread =
      std::min(threads, divide_up(threads, key_tasks(p, config)) + 1) * config.terms_of_task;
  config.dq_slots = std::max(std::min(spread, heads), config.heads_at_once);
}

// Where several sequences share a dbias, a task computes one block of keys for all of them, so that
// the block's sums of dbias stay in L2. Otherwise they pass from core to core for each sequence.
void set_terms_of_task(const Problem& p, std::int64_t terms, std::int64_t threads, Config& config) {
  constexpr std::int64_t kMostDbiasBlock = std::int64_t{1} << 20;  // bytes
  constexpr std::int64_t kTasksOfThread = 3;
  constexpr std::int64_t kLeastBlock = 128;
  const std::int64_t rows = p.heads_q / p.heads_kv * p.len_q;
  const std::int64_t tiles =
      kMostDbiasBlock / (rows * size_of(p.statistics_type()) * config.tile_kv);
  const std::int64_t block = std::min(config.block_kv, tiles * config.tile_kv);
  if (terms == 1 || block < std::min(config.block_kv, kLeastBlock)) return;
  const std::int64_t groups = p.batch * p.heads_kv / terms;
  if (groups * divide_up(p.len_kv, block) < kTasksOfThread * threads) return;
  config.terms_of_task = terms;
  config.block_kv = block;
  config.blocks_of_task = 1;
}

// Decides whether backward_kv computes dbias, and where it is summed.
void set_dbias(const Problem& p, std::int64_t threads, Config& config) {
  const bool every_pair = p.bias.q && p.bias.kv && p.layout_q == Layout::padded &&
                          p.layout_kv == Layout::padded && !p.softcap;
  const bool own_head = p.bias.head || p.heads_q == p.heads_kv;
  if (!p.dbias || !(p.dk || p.dv) || !every_pair || !own_head) return;
  // Without a block of keys, no task would write the zeros of dbias.
  if (p.batch <= 0 || p.heads_kv <= 0 || p.len_kv <= 0 || p.len_q <= 0) return;
  const std::int64_t terms = dbias_terms(p);
  set_terms_of_task(p, terms, threads, config);
  if (terms > 1 && (p.dbias_type() != p.statistics_type() || p.accumulate)) {
    // One buffer for each bias that the running tasks may belong to at a time.
    const std::int64_t of_group = terms / config.terms_of_task * key_tasks(p, config);
    const std::int64_t slots =
        std::min(divide_up(threads, of_group) + 1, p.batch * p.heads_kv / terms);
    if (slots * dbias_accum_size(p) * size_of(p.statistics_type()) > kMostDbiasSums) return;
    config.dbias_slots = slots;
  }
  config.dbias_with_keys = true;
}

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
// Whether tile_ops/bf16_decode.hpp can read the rows. Rotated copies of q are f32.
bool takes_gemv_dots(const Problem& p) {
  return multiplies_bf16(p) && p.rope == Rope::none && p.dim_qk % kPackedDepth == 0 &&
         p.dim_vo % kPackedDepth == 0;
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
// rows waste half as many as 48. A forward with dims up to 64 and enough tasks uses larger tiles,
// so that more rows share a load of keys. Measured in docs/kernels/cpu.md.
void set_window_tiles(Pass pass, const Problem& p, std::int64_t rows, Config& config) {
  if (!has_narrow_window(p)) return;
  config.strip_rows = std::min(config.strip_rows, kStripRows / 2);
  if (pass == Pass::backward) return;
  const bool many = p.batch * p.heads_kv * (rows / (2 * kTileRows)) >= 2 * kWantedTasks;
  if (!many || p.dim_qk > 64 || p.dim_vo > 64) return;
  config.tile_rows = 2 * kTileRows;
  config.tile_kv = std::clamp<std::int64_t>(round_up(p.len_kv, 16), 16, 2 * kTileKv);
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
}

// Gives a task several pairs if each is small: one tile or block of keys, and at most one tile of
// rows. There stay at least kSmallTasks tasks for each thread.
constexpr std::int64_t kMostPairs = 16;
constexpr std::int64_t kSmallTasks = 8;
void set_pairs_of_task(Pass pass, const Problem& p, std::int64_t threads, Config& config) {
  if (p.page_size > 0 || config.gemv != 0 || row_tiles(p, config) != 1) return;
  if (pass == Pass::backward) {
    // Tasks of a dbias are in another order than row_sums.
    if (!(p.dk || p.dv) || (p.dq && !dq_with_keys(p)) || p.dbias) return;
    if (key_blocks(p, config) != 1) return;
  } else if (config.splits != 1 || p.len_kv > config.tile_kv || config.pack_keys) {
    return;
  }
  const std::int64_t pairs = p.batch * p.heads_kv;
  config.pairs_of_task = std::clamp<std::int64_t>(pairs / (kSmallTasks * threads), 1, kMostPairs);
}

// Uses measured tiles, clamped to the problem like the default ones.
void set_tiles(const Tiles& tiles, const Problem& p, std::int64_t rows, Config& config) {
  const std::int64_t step_kv = config.engine == Engine::float_simd ? 16 : kPackedDepth;
  const std::int64_t step_rows = config.engine == Engine::float_simd ? 6 : config.strip_rows;
  config.tile_kv = std::clamp(round_up(p.len_kv, step_kv), step_kv, tiles.tile_kv);
  config.tile_rows = std::min(tiles.tile_rows, round_up(rows, step_rows));
  config.strip_rows = std::min(tiles.strip_rows, config.tile_rows);
}

Config make_config(Pass pass, const Problem& p, std::int32_t threads, Engine bf16,
                   const std::optional<Tiles>& tuned) {
  const std::int64_t rows = rows_of_head(p);
  Config config;
  config.gemv = pass != Pass::backward && rows <= kMostGemvRows ? 1 : 0;
  if (takes_bf16_engine(pass, p, rows)) config.engine = bf16;
  config.gemv_dots = config.gemv != 0 && bf16 == Engine::bf16_dot && takes_gemv_dots(p);
  if (config.engine != Engine::float_simd && pass == Pass::backward) {
    config.tile_kv = std::clamp(round_up(p.len_kv, kPackedDepth), kPackedDepth, kTileKv);
    config.tile_rows = std::min(kTileRows, round_up(rows, kBf16StripRows));
    config.strip_rows = kBf16StripRows;
  } else if (config.engine != Engine::float_simd) {
    set_bf16_tiles(p, rows, config);
  } else {
    config.tile_kv = std::clamp<std::int64_t>(round_up(p.len_kv, 16), 16,
                                              config.gemv != 0 ? kGemvTileKv : kTileKv);
    config.tile_rows = config.gemv != 0 ? rows : std::min(kTileRows, round_up(rows, 6));
    config.strip_rows = std::min(config.tile_rows, kStripRows);
    if (config.gemv == 0) set_window_tiles(pass, p, rows, config);
  }
  if (tuned) set_tiles(*tuned, p, rows, config);
  config.split_keys = std::max<std::int64_t>(p.len_kv, 1);
  if (pass == Pass::backward) {
    set_blocks(p, threads, tuned ? tuned->block_kv : 0, config);
    set_dbias(p, threads, config);
    set_turns(p, threads, config);
    set_pairs_of_task(pass, p, threads, config);
    return config;
  }

  const std::int64_t tasks = p.batch * p.heads_kv * row_tiles(p, config);
  const std::int64_t wanted = config.gemv != 0 ? kWantedGemv : kWantedTasks;
  if (p.split_keys > 0) {
    config.split_keys = std::min(p.split_keys, config.split_keys);
  } else if (p.split_keys == kSplitAuto && row_tiles(p, config) == 1 && tasks < wanted) {
    const std::int64_t keys =
        divide_up(p.len_kv, divide_up(wanted, std::max<std::int64_t>(tasks, 1)));
    config.split_keys = std::max(kLeastSplit, round_up(keys, kTileKv));
  }
  config.splits = std::max<std::int64_t>(divide_up(p.len_kv, config.split_keys), 1);
  if (config.gemv != 0) set_heads_of_task(p, threads, config);
  // Packing in a separate step pays where enough tasks share keys. Packed sequences are excluded:
  // their tiles would need a workspace of batch times the longest sequence.
  const std::int64_t least = config.engine == Engine::float_simd ? kLeastSharedKeys : 2;
  config.pack_keys = config.gemv == 0 && row_tiles_of_key(p, config) >= least &&
                     config.splits == 1 && p.layout_kv == Layout::padded && p.page_size == 0;
  set_pairs_of_task(pass, p, threads, config);
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
  if (config.pairs_of_task == 1) add(Step::row_sums);  // else backward_kv does both
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
  } else if (pass != Pass::backward && config.gemv != 0) {
    to.kernel += config.gemv_dots ? "_gemv_bf16_dot" : "_gemv";
  }
  core::append_config(to.config, "tile_rows", config.tile_rows);
  core::append_config(to.config, "strip_rows", config.strip_rows);
  core::append_config(to.config, "tile_kv", config.tile_kv);
  core::append_config(to.config, "gemv", config.gemv);
  if (config.heads_of_task > 1) {
    core::append_config(to.config, "heads_of_task", config.heads_of_task);
  }
  if (config.pairs_of_task > 1) {
    core::append_config(to.config, "pairs_of_task", config.pairs_of_task);
  }
  core::append_config(to.config, "split_keys", config.split_keys);
  core::append_config(to.config, "splits", config.splits);
  if (pass == Pass::backward) {
    core::append_config(to.config, "block_kv", config.block_kv);
    core::append_config(to.config, "blocks_of_task", config.blocks_of_task);
    core::append_config(to.config, "heads_at_once", config.heads_at_once);
    core::append_config(to.config, "dq_slots", config.dq_slots);
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
  to.tasks = config.pairs_of_task > 1 ? divide_up(groups, config.pairs_of_task)
             : pass == Pass::backward ? groups * key_tasks(problem, keys_config(config))
                                      : forward_tasks(problem, config);
  to.workspace_bytes = workspace_bytes;
  for (const Step step : steps()) to.kernels.emplace_back(to_string(step));
  return to;
}

}  // namespace attn::cpu
