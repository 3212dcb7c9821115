// The forward and decode (docs/semantics.md, "Forward", "Empty row", "Decode").
#include <algorithm>
#include <cmath>

#include "reference/append.hpp"
#include "reference/dropout.hpp"
#include "reference/elements.hpp"
#include "reference/entry.hpp"
#include "reference/needs.hpp"
#include "reference/reference.hpp"
#include "reference/results.hpp"
#include "reference/score.hpp"

namespace attn::reference {

namespace {

// log( sum_j exp(score_ij) + exp(sink) ): -inf for an empty row, NaN when a score is NaN or +inf.
double log_sum_exp(const std::vector<Pair>& pairs, double sink) {
  double largest = sink;
  for (const Pair& pair : pairs) largest = std::max(largest, pair.score);
  if (largest == -kInfinity && pairs.empty()) return -kInfinity;
  double sum = std::exp(sink - largest);
  for (const Pair& pair : pairs) sum += std::exp(pair.score - largest);
  return largest + std::log(sum);
}

std::string attend(const Problem& problem, const Arguments& arguments, bool rotate_keys,
                   core::Interrupt* interrupt) {
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  const std::int64_t dim_vo = problem.dim_vo;
  Results results(problem, arguments);

  // Rows that no sequence covers are empty rows.
  fill(arguments.o, 0.0);
  if (problem.lse) fill(arguments.lse, -kInfinity);

  std::vector<Pair> pairs;
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Entry entry = entry_of(problem, arguments, b);
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      const KeysAndValues keys =
          load_keys_and_values(problem, arguments, entry, h / group, rotate_keys);
      const double sink = sink_of(problem, arguments, h);
      for (std::int64_t i = 0; i < entry.len_q; ++i) {
        if (core::interrupted(interrupt)) return "";
        const Row q = load_query(problem, arguments, entry, h, i);
        visible_pairs(problem, arguments, entry, h, i, q, keys, pairs);
        const double lse = log_sum_exp(pairs, sink);

        Row o(static_cast<std::size_t>(dim_vo), 0.0);
        for (const Pair& pair : pairs) {
          const double drop = drop_factor(problem, arguments, entry, h, i, pair.j);
          if (drop == 0.0) continue;
          const double p = std::exp(pair.score - lse);
          const double* v = keys.v.data() + pair.j * dim_vo;
          for (std::size_t c = 0; c < o.size(); ++c) o[c] += drop * p * v[c];
        }
        if (std::isnan(lse)) std::fill(o.begin(), o.end(), lse);

        std::int64_t at = query_row(problem, arguments.o, entry, i, h);
        for (const double value : o) results.write_output(arguments.o, at++, value);
        if (problem.lse) {
          write(arguments.lse, statistic_at(problem, arguments.lse, entry, h, i), lse);
        }
      }
    }
  }
  results.finish();
  return "";
}

}  // namespace

std::string forward(const Problem& problem, const Arguments& arguments,
                    core::Interrupt* interrupt) {
  if (problem.len_new > 0) return decode(problem, arguments, interrupt);
  std::string found = check_forward(problem, arguments);
  if (!found.empty()) return found;
  return attend(problem, arguments, true, interrupt);
}

std::string decode(const Problem& problem, const Arguments& arguments, core::Interrupt* interrupt) {
  std::string found = check_forward(problem, arguments);
  if (!found.empty()) return found;
  append_rows(problem, arguments);
  return attend(problem, arguments, false, interrupt);
}

}  // namespace attn::reference
