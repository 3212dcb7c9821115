// The scores of one query and the keys that it sees (docs/semantics.md, "Forward", "Visible").
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <vector>

#include "reference/elements.hpp"
#include "reference/entry.hpp"

namespace attn::reference {

// The keys and values of one batch entry and head_kv, descaled, the keys rotated where wanted.
struct KeysAndValues {
  // [len_kv]: 0 where the page is missing. Reading a bit of a std::vector<bool> takes several times
  // as long under the sanitizers.
  std::vector<unsigned char> present;
  Row k;  // [len_kv, dim_qk]
  Row v;  // [len_kv, dim_vo]
};
KeysAndValues load_keys_and_values(const Problem& problem, const Arguments& arguments,
                                   const Entry& entry, std::int64_t head_kv, bool rotate_keys);

// Query i of head_q, descaled and rotated.
Row load_query(const Problem& problem, const Arguments& arguments, const Entry& entry,
               std::int64_t head_q, std::int64_t i);

double scale_of(const Problem& problem, const Arguments& arguments);

// A visible key of a query.
struct Pair {
  std::int64_t j = 0;
  double score = 0.0;
  double slope = 1.0;  // d score / d raw
};
// All of them, in order. `q` is the loaded query.
void visible_pairs(const Problem& problem, const Arguments& arguments, const Entry& entry,
                   std::int64_t head_q, std::int64_t i, const Row& q, const KeysAndValues& keys,
                   std::vector<Pair>& pairs);

// -inf where there is none.
double sink_of(const Problem& problem, const Arguments& arguments, std::int64_t head_q);

double dot(const double* a, const double* b, std::int64_t count);

}  // namespace attn::reference
