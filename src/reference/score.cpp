// The scores of one query and what hides keys from it: see score.hpp.
#include "reference/score.hpp"

#include <array>
#include <cmath>
#include <optional>

#include "reference/rotary.hpp"

namespace attn::reference {

namespace {

void descale(const TensorView& descales, std::int64_t at, double* row, std::int64_t count) {
  const double factor = read(descales, at);
  for (std::int64_t c = 0; c < count; ++c) row[c] *= factor;
}

// Everything that hides a key but a score of -inf. j is inside the entry's length.
bool is_visible(const Problem& problem, const Arguments& arguments, const Entry& entry,
                std::int64_t head_q, std::int64_t i, std::int64_t j) {
  const Wide diagonal_key = i + entry.diag;
  if (problem.causal && j > diagonal_key) return false;
  if (problem.window_left && j < diagonal_key - *problem.window_left) return false;
  if (problem.window_right && j > diagonal_key + *problem.window_right) return false;

  const TensorView& begin = arguments.kv_begin;
  const TensorView& end = arguments.kv_end;
  if (problem.kv_begin && j < read_integer(begin, query_at(problem, begin, entry, i))) return false;
  if (problem.kv_end && j >= read_integer(end, query_at(problem, end, entry, i))) return false;

  const TensorView& mask = arguments.mask;
  if (problem.mask.given &&
      read_integer(mask, pair_at(problem.mask, mask, entry, head_q, i, j)) == 0) {
    return false;
  }
  return true;
}

double alibi_slope(const Arguments& arguments, const Entry& entry, std::int64_t head_q) {
  const TensorView& slopes = arguments.alibi_slopes;
  const bool per_batch = slopes.rank == 2;
  return read(slopes, per_batch ? position_of(slopes, {entry.batch, head_q})
                                : position_of(slopes, {head_q}));
}

}  // namespace

double dot(const double* a, const double* b, std::int64_t count) {
  // Four sums, so that an addition need not wait for the one before it.
  std::array<double, 4> sums{};
  std::int64_t c = 0;
  for (; c + 4 <= count; c += 4) {
    for (std::int64_t n = 0; n < 4; ++n) sums[static_cast<std::size_t>(n)] += a[c + n] * b[c + n];
  }
  for (; c < count; ++c) sums[0] += a[c] * b[c];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

double scale_of(const Problem& problem, const Arguments& arguments) {
  return arguments.scale.value_or(1.0 / std::sqrt(static_cast<double>(problem.dim_qk)));
}

double sink_of(const Problem& problem, const Arguments& arguments, std::int64_t head_q) {
  if (!problem.sink) return -kInfinity;
  return read(arguments.sinks, position_of(arguments.sinks, {head_q}));
}

KeysAndValues load_keys_and_values(const Problem& problem, const Arguments& arguments,
                                   const Entry& entry, std::int64_t head_kv, bool rotate_keys) {
  const std::int64_t dim_qk = problem.dim_qk;
  const std::int64_t dim_vo = problem.dim_vo;
  const Rotation rotation = rotation_of(problem, arguments);
  KeysAndValues loaded;
  loaded.present.assign(static_cast<std::size_t>(entry.len_kv), 0);
  loaded.k.assign(static_cast<std::size_t>(entry.len_kv * dim_qk), 0.0);
  loaded.v.assign(static_cast<std::size_t>(entry.len_kv * dim_vo), 0.0);
  for (std::int64_t j = 0; j < entry.len_kv; ++j) {
    const auto k_at = key_row(problem, arguments, arguments.k, entry, j, head_kv);
    const auto v_at = key_row(problem, arguments, arguments.v, entry, j, head_kv);
    if (!k_at || !v_at) continue;
    const auto factor_at = [&](const TensorView& view) -> std::optional<std::int64_t> {
      if (!view.given()) return -1;
      return key_descale_at(problem, arguments, view, entry, j, head_kv);
    };
    const auto k_factor = factor_at(arguments.descale_k);
    const auto v_factor = factor_at(arguments.descale_v);
    if (!k_factor || !v_factor) continue;
    loaded.present[static_cast<std::size_t>(j)] = 1;
    double* k = loaded.k.data() + j * dim_qk;
    double* v = loaded.v.data() + j * dim_vo;
    read_row(arguments.k, *k_at, k, dim_qk);
    read_row(arguments.v, *v_at, v, dim_vo);
    if (*k_factor >= 0) descale(arguments.descale_k, *k_factor, k, dim_qk);
    if (*v_factor >= 0) descale(arguments.descale_v, *v_factor, v, dim_vo);
    if (rotate_keys) rotate(rotation, key_position(problem, arguments, entry, j), false, k);
  }
  return loaded;
}

Row load_query(const Problem& problem, const Arguments& arguments, const Entry& entry,
               std::int64_t head_q, std::int64_t i) {
  const std::int64_t at = query_row(problem, arguments.q, entry, i, head_q);
  Row q = read_row(arguments.q, at, problem.dim_qk);
  const std::int64_t head_kv = head_q / (problem.heads_q / problem.heads_kv);
  const TensorView& factors = arguments.descale_q;
  if (factors.given()) {
    descale(factors, descale_at(factors, entry, head_kv), q.data(), problem.dim_qk);
  }
  rotate(rotation_of(problem, arguments), query_position(problem, arguments, entry, i), false,
         q.data());
  return q;
}

void visible_pairs(const Problem& problem, const Arguments& arguments, const Entry& entry,
                   std::int64_t head_q, std::int64_t i, const Row& q, const KeysAndValues& keys,
                   std::vector<Pair>& pairs) {
  const double scale = scale_of(problem, arguments);
  const double alibi = problem.alibi ? alibi_slope(arguments, entry, head_q) : 0.0;
  const double softcap = arguments.softcap;
  const TensorView& bias = arguments.bias;

  pairs.clear();
  for (std::int64_t j = 0; j < entry.len_kv; ++j) {
    if (keys.present[static_cast<std::size_t>(j)] == 0) continue;
    if (!is_visible(problem, arguments, entry, head_q, i, j)) continue;

    Pair pair;
    pair.j = j;
    const double raw = scale * dot(q.data(), keys.k.data() + j * problem.dim_qk, problem.dim_qk);
    pair.score = raw;
    if (problem.softcap) {
      const double tanh = std::tanh(raw / softcap);
      pair.score = softcap * tanh;
      pair.slope = 1.0 - tanh * tanh;
    }
    if (problem.alibi) {
      const Wide offset = i + entry.diag - j;
      pair.score -= alibi * static_cast<double>(offset < 0 ? -offset : offset);
    }
    if (problem.bias.given) {
      const double b = read(bias, pair_at(problem.bias, bias, entry, head_q, i, j));
      if (b == -kInfinity) continue;
      pair.score += b;
    }
    if (pair.score == -kInfinity) continue;
    pairs.push_back(pair);
  }
}

}  // namespace attn::reference
