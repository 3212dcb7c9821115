#include "cpu/host/backward_blocks.hpp"

#include <algorithm>

#include "cpu/host/plan_traits.hpp"
#include "cpu/host/workspace.hpp"

namespace attn::cpu {
namespace {

// 48 rows and their dq are loaded once for a block of 256 keys. That was 10 to 25 % faster than 64
// keys; 512 keys gained at most another 3 % (2 cores of a Xeon with AVX-512, dims 64 and 128).
constexpr std::int64_t kBlockTiles = 4;
constexpr std::int64_t kMostBlock = std::int64_t{768} << 10;  // bytes of a block's K, V, dk and dv
// Where has_long_blocks(), a task owns all blocks of a head, and enough rows see a key to pay for
// packing it into L3. 4 MiB are a core's part of L3.
constexpr std::int64_t kLongBlockTiles = 16;
constexpr std::int64_t kLeastRowsOfLongBlock = 128;
constexpr std::int64_t kMostLongBlock = std::int64_t{4} << 20;
constexpr std::int64_t kMostBlockBf16 = std::int64_t{1} << 20;
constexpr std::int64_t kMostOwnedDq = std::int64_t{16} << 20;        // bytes per worker
constexpr std::int64_t kMostOwnedDkv = std::int64_t{4} << 20;        // bytes of a slot
constexpr std::int64_t kMostInterleavedDq = std::int64_t{64} << 20;  // bytes of all heads
constexpr std::int64_t kMostDbiasSums = std::int64_t{256} << 20;     // bytes
constexpr std::int64_t kLeastLenOfTerms = 256;
constexpr std::int64_t kManyKeyHeads = 64;

// Query heads of a key head that have tasks of their own (Config::dkv_terms). With few key heads
// there are then enough tasks for many threads without small blocks. Each task loads its keys for
// the rows of one head, which pays if the sequences are long and rows see many keys. Sums of a
// dbias that heads share are ordered by the strips of a key head.
std::int64_t terms_of_dkv(const Problem& p) {
  if (p.heads_q == p.heads_kv || !(p.dk || p.dv) || p.dbias) return 1;
  if (p.batch * p.heads_kv >= kManyKeyHeads) return 1;
  if (has_narrow_window(p) || p.kv_begin || p.kv_end) return 1;
  // A packed tensor may have many rows that no sequence covers.
  const std::int64_t rows = std::min(all_query_rows(p), p.batch * p.len_q);
  if (rows < kLeastLenOfTerms * p.batch) return 1;
  return p.heads_q / p.heads_kv;
}

// Whether one task processes all keys of a (batch, key head). dq then stays in the cache of its
// worker, and the task never waits for another. This needs enough heads with equal work for all
// threads, memory for the dq sums unless dq itself can hold them, and for the sums of dk and dv
// that query heads share. The results are bitwise the same either way.
bool tasks_own_heads(const Problem& p, std::int64_t threads, const Config& config) {
  if (!dq_with_keys(p)) return false;
  const std::int64_t dims = padded<float>(p.dim_qk) + padded<float>(p.dim_vo);
  const std::int64_t dkv_bytes = p.len_kv * dims * size_of(p.statistics_type());
  if (config.dkv_terms > 1 && dkv_bytes > kMostOwnedDkv) return false;
  const std::int64_t heads = p.batch * p.heads_kv;
  const bool varied = p.layout_q == Layout::packed || p.layout_kv == Layout::packed ||
                      p.lengths_q || p.lengths_kv || p.kv_begin || p.kv_end;
  const bool balanced = heads * 20 >= round_up(heads, threads) * 19 && (!varied || threads == 1);
  if (!balanced && heads < 8 * threads) return false;
  const std::int64_t bytes = dq_accum_size<float>(p) * size_of(p.statistics_type());
  return dq_in_place(p) || bytes <= kMostOwnedDq;
}

// Tiles of a block of keys of backward_kv. With a bf16 engine, packed keys and sums of a block may
// take half of what L2 has for a thread, as long as there are enough tasks. Each strip of rows is
// then loaded for more keys: docs/kernels/cpu_amx.md, "Keys of a block".
std::int64_t tiles_of_block(const Problem& p, std::int64_t threads, const Config& config) {
  if (config.engine == Engine::float_simd) {
    const std::int64_t key_bytes =
        (3 * padded<float>(p.dim_qk) + 2 * padded<float>(p.dim_vo)) * size_of(p.statistics_type());
    const bool is_long = has_long_blocks() && !has_narrow_window(p) && !p.kv_begin && !p.kv_end &&
                         p.heads_q / p.heads_kv * p.len_q >= kLeastRowsOfLongBlock &&
                         tasks_own_heads(p, threads, config);
    const std::int64_t most = is_long ? kMostLongBlock : kMostBlock;
    return std::clamp<std::int64_t>(most / (key_bytes * config.tile_kv), 1,
                                    is_long ? kLongBlockTiles : kBlockTiles);
  }
  const std::int64_t key_bytes =
      8 * round_up(p.dim_qk, kPackedDepth) + 6 * round_up(p.dim_vo, kPackedDepth);
  const std::int64_t most = has_few_processors() ? kMostBlockBf16 : kMostBlockBf16 / 2;
  // Where rows may see few keys, strips would pass over large blocks for little work.
  std::int64_t most_tiles = 4 * kBlockTiles;
  if (has_narrow_window(p)) most_tiles = 2 * kBlockTiles;
  if (p.kv_begin || p.kv_end) most_tiles = kBlockTiles;
  std::int64_t tiles = std::clamp<std::int64_t>(most / (key_bytes * config.tile_kv), 1, most_tiles);
  const auto too_few = [&] {
    return p.batch * p.heads_kv * divide_up(p.len_kv, tiles * config.tile_kv) < 4 * threads;
  };
  while (tiles > kBlockTiles && !tasks_own_heads(p, threads, config) && too_few()) tiles /= 2;
  return tiles;
}

// With a window, each strip sees few tiles of keys, and those of the next strip are almost the
// same. A block may then be long without taking more of L2, so that fewer strips are loaded for two
// blocks. This needs strips of one head, and ranges of keys that only ascend with the row.
std::int64_t ring_of_window(const Problem& p, const Config& config) {
  const bool ascends = !p.kv_begin && !p.kv_end && !p.mask.given && p.heads_q == p.heads_kv;
  if (!has_narrow_window(p) || !ascends || p.dbias) return 0;
  const std::int64_t keys = *p.window_left + (p.causal ? 0 : *p.window_right) + config.strip_rows;
  return divide_up(keys, config.tile_kv) + 1;
}

void choose_block(const Problem& p, std::int64_t threads, std::int64_t most, Config& config) {
  std::int64_t tiles = most > 0 ? most / config.tile_kv : tiles_of_block(p, threads, config);
  const std::int64_t ring = ring_of_window(p, config);
  if (most == 0 && ring > 0 && tasks_own_heads(p, threads, config)) tiles = kMostTilesOfBlock;
  config.block_kv = std::min(tiles * config.tile_kv,
                             std::max(round_up(p.len_kv, config.tile_kv), config.tile_kv));
  if (ring * config.tile_kv < config.block_kv) config.ring_tiles = ring;
  if (tasks_own_heads(p, threads, config)) {
    config.blocks_of_task = std::max<std::int64_t>(key_blocks(p, config), 1);
    return;
  }
  const std::int64_t heads = p.batch * p.heads_kv;
  while (config.block_kv > config.tile_kv && heads * key_blocks(p, config) < 4 * threads) {
    config.block_kv -= config.tile_kv;
  }
}

// Chooses the order of the tasks of backward_kv. The blocks of a head take turns at each tile of
// dq, so heads are interleaved: neighbouring tasks then add to different tiles of dq. Full
// attention on 16 threads in bf16 is 1.1 to 1.4 times as fast. Where blocks have unequal work, the
// short blocks of all heads run last: causal (12 heads, len 2048), simulated, threads are busy 100
// % of the time instead of 89 %.
//
// Heads that share a dbias are not interleaved: each would need sums of its own. Those that share
// dk and dv always are: the tasks of a block are then consecutive, so that few sums exist at a
// time.
void set_turns(const Problem& p, std::int64_t threads, Config& config) {
  const std::int64_t heads = p.batch * p.heads_kv;
  const std::int64_t terms = config.dkv_terms;
  config.heads_at_once = terms;
  // The number of units that consecutive tasks may belong to, one for each thread.
  if (terms > 1) {
    config.dkv_slots = std::min(divide_up(threads - 1, terms) + 1, dkv_units(p, config));
  }
  if (!dq_with_keys(p) || key_tasks(p, config) <= 1) return;
  const bool unequal = p.causal || p.window_left || p.window_right || p.kv_begin || p.kv_end ||
                       (p.mask.given && p.mask.q && p.mask.kv);
  const std::int64_t dq_bytes = dq_accum_size<float>(p) * size_of(p.statistics_type());
  std::int64_t most = std::min(threads, heads);
  if (!unequal && !dq_in_place(p) && dq_bytes > 0) {
    most = std::min(most, kMostInterleavedDq / dq_bytes);
  }
  if (!config.dbias_with_keys || dbias_terms(p) == 1) {
    config.heads_at_once = std::max<std::int64_t>(most / terms, 1) * terms;
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
  Config with = config;
  set_terms_of_task(p, terms, threads, with);
  const bool engine_writes = config.engine == Engine::amx_bf16 || config.engine == Engine::bf16_dot;
  with.dbias_in_scratch = with.terms_of_task > 1 && engine_writes && engine_may_write_dbias(p);
  if (terms > 1 && !with.dbias_in_scratch &&
      (p.dbias_type() != p.statistics_type() || p.accumulate)) {
    // One buffer for each bias that the running tasks may belong to at a time.
    const std::int64_t of_group = terms / with.terms_of_task * key_tasks(p, with);
    const std::int64_t slots =
        std::min(divide_up(threads, of_group) + 1, p.batch * p.heads_kv / terms);
    if (slots * dbias_accum_size(p) * size_of(p.statistics_type()) > kMostDbiasSums) return;
    with.dbias_slots = slots;
  }
  with.dbias_with_keys = true;
  config = with;
}

}  // namespace

void set_blocks(const Problem& p, std::int64_t threads, std::int64_t most, Config& config) {
  config.dkv_terms = terms_of_dkv(p);
  const Problem of_tasks = tasks_problem(p, config);
  choose_block(of_tasks, threads, most, config);
  set_dbias(of_tasks, threads, config);
  set_turns(of_tasks, threads, config);
}

}  // namespace attn::cpu
