// Sample: a small random problem in float64 with its tensors, for tests of the reference. Elements
// that must never matter (past lengths, outside packed sequences, outputs before the call) hold
// NaN.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace attn::reference::test {

// The recipe of a sample. Numbers (scale, softcap, diag, origin, ...) come from `numbers`; the
// problem determines the tensors. Types are f64; the sample chooses totals of packed layouts.
struct Setting {
  Problem problem;
  Arguments numbers;
};
// Two sequences, four heads on two, 5 queries, 7 keys, dims 4 and 3, with dlse and all gradients.
Setting small_setting();

// A change of the small setting; each names one option.
struct Option {
  std::string name;
  std::function<void(Setting&)> apply;
};
// Every option that has a backward.
const std::vector<Option>& options();

// A number in [low, high), the same on every platform.
double uniform(std::mt19937_64& random, double low, double high);

class Sample {
 public:
  Sample(const Setting& setting, std::uint64_t seed);
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;

  Problem problem;
  Arguments arguments;
  std::vector<double> q, k, v, o, lse, bias, sinks, slopes, cos, sin;
  std::vector<double> dout, dlse, delta, dq, dk, dv, dbias, dsink;
  std::vector<std::uint8_t> mask;
  std::vector<std::int32_t> len_q, len_kv, cu_len_q, cu_len_kv, kv_begin, kv_end, pos_q, pos_k;

  // Runs the forward. Then sets dlse of empty rows, which must be ignored, to NaN, and computes
  // delta if the problem has it.
  std::string run_forward();
  std::string run_backward();
  // sum(o * dout) + sum(lse * dlse) over the rows that are not empty.
  [[nodiscard]] double loss() const;

  // True if the row of q (or k) with this element belongs to a sequence.
  [[nodiscard]] bool query_counts(std::size_t element_of_q) const;
  [[nodiscard]] bool key_counts(std::size_t element_of_k) const;

 private:
  void make_lengths(std::mt19937_64& random);
  void make_options(std::mt19937_64& random);
  void make_gradients();
  [[nodiscard]] std::vector<double> numbers(std::mt19937_64& random, std::int64_t count) const;

  std::vector<bool> row_q_counts_, row_kv_counts_;  // rows of [batch, len] or [total]
};

}  // namespace attn::reference::test
