// The workspace of a call: all memory that it uses in addition to its tensors, laid out from the
// plan. With a null base only `bytes` is meaningful.
#pragma once

#include <algorithm>

#include "cpu/host/config.hpp"
#include "cpu/host/small_scratch.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {

template <class T>
struct Workspace {
  char* scratch = nullptr;  // one block per worker
  std::int64_t scratch_bytes = 0;
  RowSums<T> sums;  // backward
  ForwardShared<T> forward;
  MaskRow* mask_rows = nullptr;
  MaskBits mask_bits;
  char* rotated_q = nullptr;  // rope: rotated q and k, [rows, heads, dim_qk] of rotated_type()
  char* rotated_k = nullptr;
  T* gradient_q = nullptr;  // rope: dq and dk before they are rotated back
  T* gradient_k = nullptr;
  std::int64_t bytes = 0;
};

// Config for backward_kv, which processes one strip of rows at a time.
inline Config keys_config(Config config) {
  config.tile_rows = config.strip_rows;
  return config;
}

// Whether backward_kv computes delta of each strip. Otherwise row_sums does. This pays if each
// strip is loaded once.
inline bool delta_with_keys(const Problem& p, const Config& config) {
  return config.ring_tiles > 0 && config.block_kv >= p.len_kv && !p.dsink && !p.delta &&
         (!p.dq || dq_with_keys(p));
}

// Whether several tasks add to one dq.
inline bool dq_is_shared(const Problem& p, const Config& config) {
  return dq_with_keys(p) && key_tasks(p, keys_config(config)) > 1;
}

// The type of rotated q and k: the input type of the engine's products.
inline DType rotated_type(const Problem& p, const Config& config) {
  const bool is_float =
      config.engine == Engine::float_simd && config.gemv_engine == Engine::float_simd;
  return is_float ? p.statistics_type() : DType::bf16;
}

inline std::int64_t all_key_rows(const Problem& p) {
  return p.layout_kv == Layout::packed && p.page_size == 0 ? p.total_kv : p.batch * p.len_kv;
}

template <class T>
std::int64_t scratch_bytes(Pass pass, const Problem& p, const Config& config) {
  const auto bytes = [](const Problem& problem, Phase phase, const Config& of_phase) {
    Arena arena(nullptr);
    make_scratch<T>(arena, phase, problem, of_phase);
    return arena.used();
  };
  if (config.small) {
    Arena arena(nullptr);
    if (config.engine == Engine::float_simd) {
      make_small_scratch(arena, pass, p);
    } else {
      make_small_bf16_scratch(arena, p);
    }
    return arena.used();
  }
  if (pass != Pass::backward && config.engine != Engine::float_simd) {
    Arena arena(nullptr);
    make_bf16_scratch(arena, p, config);
    return arena.used();
  }
  if (pass != Pass::backward) return bytes(p, Phase::forward, config);
  Arena row_sums(nullptr);
  make_row_sums_scratch<T>(row_sums, p);
  std::int64_t most = row_sums.used();
  const Problem of_tasks = tasks_problem(p, config);
  if (config.engine != Engine::float_simd) {
    Arena arena(nullptr);
    make_bf16_keys_scratch(arena, of_tasks, config);
    most = std::max(most, arena.used());
  } else if (p.dk || p.dv) {
    most = std::max(most, bytes(of_tasks, Phase::backward_kv, keys_config(config)));
  }
  if (p.dq && !dq_with_keys(p)) most = std::max(most, bytes(p, Phase::backward_q, config));
  if (p.dbias && !config.dbias_with_keys) {
    most = std::max(most, bytes(p, Phase::backward_bias, config));
  }
  return most;
}

// `p`: tasks_problem().
template <class T>
RowSums<T> lay_out_sums(Arena& arena, const Problem& p, const Config& config) {
  RowSums<T> sums;
  const std::int64_t strips = p.heads_kv * RowSums<T>::num_strips(p, config.strip_rows);
  const std::int64_t pairs = p.batch * p.heads_kv;
  if (!delta_with_keys(p, config)) sums.delta = arena.take<T>(all_query_rows(p) * p.heads_q);
  sums.strips = arena.take<core::KeyRange>(strips);
  if (dq_is_shared(p, config)) {
    sums.dq.next_block = arena.take<std::int32_t>(strips);
    sums.dq.tasks_left = arena.take<std::int64_t>(pairs);
    if (config.dq_slots > 0) sums.dq.accum = arena.take<T>(config.dq_slots * dq_accum_size<T>(p));
  }
  if (config.dkv_terms > 1) {
    const std::int64_t units = dkv_units(p, config);
    const std::int64_t blocks = config.blocks_of_task;
    sums.dkv.heads_done = arena.take<std::int32_t>(units * blocks);
    sums.dkv.tasks_left = arena.take<std::int64_t>(units);
    sums.dkv.accum = arena.take<T>(config.dkv_slots * blocks * key_sums_size<T>(p, config));
  }
  if (config.dbias_with_keys && dbias_terms(p) > 1 && !config.dbias_in_scratch) {
    sums.dbias.strips_done = arena.take<std::int32_t>(pairs * key_blocks(p, config));
    if (config.dbias_slots > 0) {
      sums.dbias.accum = arena.take<T>(config.dbias_slots * dbias_accum_size(p));
    }
  }
  return sums;
}

// `scratch_bytes`: per worker, from the function of that name.
template <class T>
Workspace<T> lay_out(Pass pass, const Problem& p, const Config& config, std::int64_t scratch_bytes,
                     std::int32_t threads, char* base) {
  Arena arena(base);
  Workspace<T> w;
  w.scratch_bytes = scratch_bytes;
  w.scratch = arena.take<char>(w.scratch_bytes * threads);
  const std::int64_t rows = all_query_rows(p);
  if (config.small) {
    // Needs nothing but its scratch.
  } else if (pass == Pass::backward) {
    w.sums = lay_out_sums<T>(arena, tasks_problem(p, config), config);
  } else if (config.pack_keys) {
    const std::int64_t keys = p.batch * p.heads_kv * key_tiles(p, config) * config.tile_kv;
    if (config.engine == Engine::float_simd) {
      w.forward.packed = {arena.take<T>(keys * padded<T>(p.dim_qk)),
                          arena.take<T>(keys * padded<T>(p.dim_vo))};
    } else {
      w.forward.packed = {arena.take<Bf16Bits>(keys * round_up(p.dim_qk, kPackedDepth)),
                          arena.take<Bf16Bits>(keys * round_up(p.dim_vo, 2 * kPackedCols))};
    }
  }
  if (pass != Pass::backward && config.splits > 1) {
    const std::int64_t count = rows * p.heads_q * config.splits;
    Partials<T>& partials = w.forward.partials;
    partials.splits = config.splits;
    partials.o = arena.take<T>(count * padded<T>(p.dim_vo));
    partials.row_max = arena.take<T>(count);
    partials.row_sum = arena.take<T>(count);
  }
  if (mask_rows(p) > 0) w.mask_rows = arena.take<MaskRow>(mask_rows(p));
  w.mask_bits = mask_bits(p, config);
  if (w.mask_bits.tile_kv > 0)
    w.mask_bits.words = arena.take<std::uint32_t>(mask_words(p, w.mask_bits));
  if (p.rope != Rope::none) {
    const std::int64_t q_count = rows * p.heads_q * p.dim_qk;
    const std::int64_t k_count = all_key_rows(p) * p.heads_kv * p.dim_qk;
    const std::int64_t size = core::element_size(rotated_type(p, config));
    w.rotated_q = arena.take<char>(q_count * size);
    if (pass != Pass::decode) w.rotated_k = arena.take<char>(k_count * size);
    if (pass == Pass::backward && p.dq) w.gradient_q = arena.take<T>(q_count);
    if (pass == Pass::backward && p.dk) w.gradient_k = arena.take<T>(k_count);
  }
  w.bytes = arena.used();
  return w;
}

}  // namespace attn::cpu
