// The CPU plan; see plan.hpp.
#include "cpu/host/plan.hpp"

#include <algorithm>

#include "cpu/host/workspace.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {
namespace {

// Measured on 2 cores of a Xeon with AVX-512 (2 MiB L2): one load of keys serves 192 rows, 48 rows
// of scores against 64 keys lie in L1. 48 and 192 are whole blocks of the matrix product's 6 rows.
constexpr std::int64_t kTileRows = 192;
constexpr std::int64_t kStripRows = 48;
constexpr std::int64_t kTileKv = 64;
constexpr std::int64_t kFewRows = 16;      // up to here dot products beat transposing the keys
constexpr std::int64_t kWantedTasks = 32;  // a plan with fewer splits the keys ...
constexpr std::int64_t kLeastSplit = 512;  // ... but not below this many

Config make_config(Pass pass, const Problem& p) {
  const std::int64_t rows = std::max<std::int64_t>(p.heads_q / p.heads_kv * p.len_q, 1);
  Config config;
  config.tile_kv = std::clamp<std::int64_t>(round_up(p.len_kv, 16), 16, kTileKv);
  config.few_rows = pass != Pass::backward && rows <= kFewRows ? 1 : 0;
  config.tile_rows = config.few_rows != 0 ? rows : std::min(kTileRows, round_up(rows, 6));
  config.strip_rows = std::min(config.tile_rows, kStripRows);
  config.split_keys = std::max<std::int64_t>(p.len_kv, 1);
  if (pass == Pass::backward) return config;

  const std::int64_t tasks = p.batch * p.heads_kv * row_tiles(p, config);
  if (p.split_keys > 0) {
    config.split_keys = std::min(p.split_keys, config.split_keys);
  } else if (p.split_keys == kSplitAuto && row_tiles(p, config) == 1 && tasks < kWantedTasks) {
    const std::int64_t keys =
        divide_up(p.len_kv, divide_up(kWantedTasks, std::max<std::int64_t>(tasks, 1)));
    config.split_keys = std::max(kLeastSplit, round_up(keys, kTileKv));
  }
  config.splits = std::max<std::int64_t>(divide_up(p.len_kv, config.split_keys), 1);
  return config;
}

}  // namespace

core::Plan make_plan(Pass pass, const Problem& problem, std::int32_t threads) {
  const Config config = make_config(pass, problem);
  core::Plan plan;
  plan.kernel = pass == Pass::backward ? "cpu_backward"
                : config.few_rows != 0 ? "cpu_forward_few"
                                       : "cpu_forward";
  plan.config = {{{"tile_rows", config.tile_rows},
                  {"strip_rows", config.strip_rows},
                  {"tile_kv", config.tile_kv},
                  {"few_rows", config.few_rows},
                  {"split_keys", config.split_keys},
                  {"splits", config.splits},
                  {"threads", threads}}};
  plan.tile_q = config.tile_rows;
  plan.tile_kv = config.tile_kv;
  const std::int64_t groups = problem.batch * problem.heads_kv;
  plan.tasks = pass == Pass::backward ? groups * key_tiles(problem, config)
                                      : groups * row_tiles(problem, config) * config.splits;
  plan.workspace_bytes = problem.dtype == DType::f64
                             ? lay_out<double>(pass, problem, config, threads, nullptr).bytes
                             : lay_out<float>(pass, problem, config, threads, nullptr).bytes;
  return plan;
}

Config config_of(const core::Plan& plan) {
  const auto& entries = plan.config;
  return {entries[0].value, entries[1].value, entries[2].value,
          entries[3].value, entries[4].value, entries[5].value};
}

}  // namespace attn::cpu
