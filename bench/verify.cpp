// Compares sampled rows with the reference and with a naive evaluation in the same precision.
#include "bench/verify.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "bench/slices.hpp"
#include "harness/inputs.hpp"
#include "harness/naive.hpp"
#include "harness/values.hpp"
#include "reference/reference.hpp"

namespace attn::bench {
namespace {

constexpr int kSamples = 6;

using NamedTensor = std::pair<const char*, TensorView Arguments::*>;

// Float64 memory shaped like a view.
class Exact {
 public:
  TensorView like(const TensorView& view) {
    auto& values = memory_.emplace_back(static_cast<std::size_t>(harness::num_elements(view)), 0.0);
    TensorView out = view;
    out.data = values.data();
    out.offset_bytes = 0;
    out.dtype = DType::f64;
    std::int64_t stride = 1;
    for (int d = view.rank - 1; d >= 0; --d) {
      out.strides[static_cast<std::size_t>(d)] = stride;
      stride *= view.shape[static_cast<std::size_t>(d)];
    }
    return out;
  }

 private:
  std::deque<std::vector<double>> memory_;
};

double element(const TensorView& view, std::int64_t linear) {
  return harness::load(view.dtype, static_cast<const char*>(view.address()) +
                                       harness::element_offset(view, linear) * size_of(view.dtype));
}

// The naive evaluation of a slice: values and magnitudes of each output of Arguments.
std::vector<harness::NaiveOutput> naive_of(const Slice& slice, Pass pass, DType operands) {
  harness::Case c;
  c.pass = pass;
  c.problem = slice.problem;
  c.diag = slice.arguments.diag;
  c.origin = slice.arguments.origin;
  c.scale = slice.arguments.scale;
  c.softcap = slice.arguments.softcap;
  c.dropout_p = slice.arguments.dropout_p;
  c.rope_base = slice.arguments.rope_base;
  c.rope_pos_offset = slice.arguments.rope_pos_offset;
  harness::Inputs inputs(harness::Case{});  // without tensors
  inputs.arguments = slice.arguments;
  inputs.q = harness::rows_q(c);
  inputs.kv = harness::rows_kv(c);
  return harness::naive(c, inputs, harness::OutputSet(c, DType::none), operands);
}

class Comparison {
 public:
  explicit Comparison(Error& error) : error_(error) {}

  // One output tensor of a slice; got, exact and naive have the same shape.
  void compare(const char* name, const TensorView& got, const TensorView& exact,
               const harness::NaiveOutput* naive, const std::string& where) {
    const std::int64_t count = harness::num_elements(got);
    const std::int64_t width =
        got.rank == 4 ? got.shape[static_cast<std::size_t>(got.rank - 1)] : 1;
    const double unit = harness::unit_roundoff(got.dtype);
    for (std::int64_t row = 0; row * width < count; ++row) {
      double largest = 0.0, worst = 0.0, naive_worst = 0.0;
      for (std::int64_t d = 0; d < width; ++d) {
        const double x = element(exact, row * width + d);
        const double error = distance(element(got, row * width + d), x);
        if (std::isnan(error) || error > worst) worst = error;  // a NaN stays
        largest = std::max(largest, std::fabs(x));
        if (naive != nullptr) {
          const auto at = static_cast<std::size_t>(row * width + d);
          naive_worst = std::max(naive_worst, distance(naive->values[at], x));
        }
      }
      double magnitude = largest, deviation = 0.0, flushed = 0.0;
      const auto at_row = static_cast<std::size_t>(row);
      if (naive != nullptr && at_row < naive->magnitude.size()) {
        magnitude = std::max(magnitude, naive->magnitude[at_row]);
        deviation = naive->deviation[at_row];
        flushed = naive->flushed[at_row];
      }
      const double rounding = unit * largest + 0x1p-24 * magnitude + deviation;
      judge(name, where, worst,
            2.0 * naive_worst + 4.0 * unit * largest + 0x1p-21 * magnitude + 6.0 * deviation +
                flushed);
      if (rounding > 0) {
        error_.ratio_to_naive = std::max(error_.ratio_to_naive, worst / (naive_worst + rounding));
      }
      ++error_.rows;
    }
  }

 private:
  // 0 for equal infinities; NaN if one side is NaN.
  static double distance(double a, double b) { return a == b ? 0.0 : std::fabs(a - b); }

  void judge(const char* name, const std::string& where, double worst, double allowed) {
    if (std::isnan(worst) || worst > error_.max_abs) error_.max_abs = worst;
    if (!(worst <= allowed) && error_.problem.empty()) {
      char text[256];
      std::snprintf(text, sizeof text, "%s at %s: error %.3g, allowed %.3g", name, where.c_str(),
                    worst, allowed);
      error_.problem = text;
    }
  }

  Error& error_;
};

std::string reference_of(Pass pass, const Problem& problem, const Arguments& arguments) {
  switch (pass) {
    case Pass::forward: return reference::forward(problem, arguments);
    case Pass::backward: return reference::backward(problem, arguments);
    case Pass::decode: return reference::decode(problem, arguments);  // keys are rotated already
  }
  return "no such pass";
}

// Runs the reference on a slice and compares the outputs of `names`.
void check(const Slice& slice, Pass pass, const std::vector<NamedTensor>& names,
           const std::string& where, DType operands, Error& error) {
  Exact memory;
  Slice exact = slice;
  for (const auto& [name, member] : names) {
    exact.arguments.*member = memory.like(slice.arguments.*member);
  }
  const std::string failure = reference_of(pass, exact.problem, exact.arguments);
  if (!failure.empty()) {
    if (error.problem.empty()) error.problem = "the reference at " + where + ": " + failure;
    return;
  }
  const std::vector<harness::NaiveOutput> naive = naive_of(slice, pass, operands);
  Comparison comparison(error);
  for (const auto& [name, member] : names) {
    const auto found = std::find_if(naive.begin(), naive.end(),
                                    [&](const auto& output) { return output.name == name; });
    comparison.compare(name, slice.arguments.*member, exact.arguments.*member,
                       found == naive.end() ? nullptr : &*found, where);
  }
}

// Index of a sample in a dimension of this size: the first, the last, then hashed ones.
std::int64_t place(int sample, int dim, std::int64_t size) {
  if (size <= 1 || sample == 0) return 0;
  if (sample == 1) return size - 1;
  return static_cast<std::int64_t>(
      harness::hash(9, static_cast<std::uint64_t>(dim), static_cast<std::uint64_t>(sample)) %
      static_cast<std::uint64_t>(size));
}

// One thread per sample; they share only data that they read.
template <class Body>
void for_samples(Error& error, Body body) {
  std::vector<Error> errors(kSamples);
  std::vector<std::thread> threads;
  for (int sample = 0; sample < kSamples; ++sample) {
    threads.emplace_back([&body, &own = errors[static_cast<std::size_t>(sample)], sample] {
      try {
        body(sample, own);
      } catch (const std::exception& thrown) {
        own.problem = thrown.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Error& own : errors) {
    if (error.problem.empty()) error.problem = own.problem;
    if (std::isnan(own.max_abs) || own.max_abs > error.max_abs) error.max_abs = own.max_abs;
    error.ratio_to_naive = std::max(error.ratio_to_naive, own.ratio_to_naive);
    error.rows += own.rows;
  }
}

std::string text_of(std::int64_t b, std::int64_t h, const char* what, std::int64_t row) {
  return "entry " + std::to_string(b) + " head " + std::to_string(h) + " " + what + " " +
         std::to_string(row);
}

// Turns off all gradients except these.
void keep_only(Slice& slice, std::initializer_list<bool Problem::*> switches,
               std::initializer_list<TensorView Arguments::*> views) {
  for (bool Problem::* flag :
       {&Problem::dq, &Problem::dk, &Problem::dv, &Problem::dbias, &Problem::dsink}) {
    const bool kept = std::find(switches.begin(), switches.end(), flag) != switches.end();
    slice.problem.*flag = slice.problem.*flag && kept;
  }
  for (TensorView Arguments::* view :
       {&Arguments::dq, &Arguments::dk, &Arguments::dv, &Arguments::dbias, &Arguments::dsink}) {
    const bool kept = std::find(views.begin(), views.end(), view) != views.end();
    if (!kept) slice.arguments.*view = TensorView{};
  }
}

// Document bounds count from key 0 of the sequence; in a key slice, key j is key 0.
class Bounds {
 public:
  void shift(Slice& slice, std::int64_t j) {
    int side = 0;
    for (TensorView* view : {&slice.arguments.kv_begin, &slice.arguments.kv_end}) {
      std::vector<std::int32_t>& shifted = shifted_[side++];
      if (!view->given()) continue;
      for (std::int64_t i = 0; i < harness::num_elements(*view); ++i) {
        shifted.push_back(static_cast<std::int32_t>(element(*view, i)) -
                          static_cast<std::int32_t>(j));
      }
      *view = TensorView::contiguous(shifted.data(), DType::i32, {1, slice.problem.len_q});
    }
  }

 private:
  std::vector<std::int32_t> shifted_[2];
};

// Checks a gradient that several slices contribute to: compares it with the sums of the reference's
// and of the naive values. Such gradients (dbias, dsink) are sums of dS itself, which is not
// rounded for a matrix product.
void check_sum(std::vector<Slice>& slices, const NamedTensor& output, const std::string& where,
               Error& error) {
  Exact memory;
  const TensorView got = slices.front().arguments.*output.second;
  const TensorView exact = memory.like(got);
  harness::NaiveOutput naive;
  for (Slice& slice : slices) {
    Slice run = slice;
    run.problem.accumulate = true;
    run.arguments.*output.second = exact;
    const std::string failure = reference::backward(run.problem, run.arguments);
    if (!failure.empty()) {
      if (error.problem.empty()) error.problem = "the reference at " + where + ": " + failure;
      return;
    }
    for (const harness::NaiveOutput& part : naive_of(slice, Pass::backward, DType::none)) {
      if (part.name != output.first) continue;
      naive.values.resize(part.values.size());
      naive.magnitude.resize(part.magnitude.size());
      naive.deviation.resize(part.magnitude.size(), 0.0);
      naive.flushed.resize(part.magnitude.size(), 0.0);
      for (std::size_t n = 0; n < part.values.size(); ++n) naive.values[n] += part.values[n];
      for (std::size_t n = 0; n < part.magnitude.size(); ++n) {
        naive.magnitude[n] += part.magnitude[n];
      }
    }
  }
  Comparison(error).compare(output.first, got, exact, &naive, where);
}

// Row i of a bias gradient, summed over the sequences that share the bias.
void verify_dbias(const Cell& cell, const Inputs& inputs, Error& error) {
  const Problem& p = cell.problem;
  if (!(p.bias.head && p.bias.q && p.bias.kv)) return;  // a sum over rows is too long for a sample
  for (int sample = 0; sample < kSamples; ++sample) {
    const std::int64_t h = place(sample, 1, p.heads_q);
    const std::int64_t i = place(sample, 2, p.len_q);
    const std::int64_t entry = place(sample, 0, p.bias.entries(p.batch));
    const std::int64_t first = entry * p.bias.sharers(p.batch);
    std::vector<Slice> slices;
    for (std::int64_t b = first; b < first + p.bias.sharers(p.batch); ++b) {
      // Sequences with different lengths have rows of different shapes.
      if (inputs.lengths_q[static_cast<std::size_t>(b)] != p.len_q ||
          inputs.lengths_kv[static_cast<std::size_t>(b)] != p.len_kv) {
        return;
      }
      slices.push_back(query_slice(cell, inputs, b, h, i));
      keep_only(slices.back(), {&Problem::dbias}, {&Arguments::dbias});
    }
    check_sum(slices, {"dbias", &Arguments::dbias}, text_of(entry, h, "row", i), error);
  }
}

// A sink's gradient is a sum over all rows of all sequences.
void verify_dsink(const Cell& cell, const Inputs& inputs, Error& error) {
  const Problem& p = cell.problem;
  const std::int64_t g = p.heads_kv - 1;
  std::vector<Slice> slices;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    slices.push_back(key_slice(cell, inputs, b, g, 0));
    keep_only(slices.back(), {&Problem::dsink}, {&Arguments::dsink});
  }
  check_sum(slices, {"dsink", &Arguments::dsink}, "the heads of key head " + std::to_string(g),
            error);
}

void verify_queries(const Cell& cell, const Inputs& inputs, DType operands, Error& error) {
  const Problem& p = cell.problem;
  const bool backward = cell.pass == Pass::backward;
  std::vector<NamedTensor> names;
  if (backward) {
    if (p.dq) names.emplace_back("dq", &Arguments::dq);
  } else {
    names.emplace_back("o", &Arguments::o);
    if (p.lse) names.emplace_back("lse", &Arguments::lse);
  }
  if (names.empty()) return;
  for_samples(error, [&](int sample, Error& own) {
    const std::int64_t b = place(sample, 0, p.batch);
    const std::int64_t h = place(sample, 1, p.heads_q);
    const std::int64_t length = inputs.lengths_q[static_cast<std::size_t>(b)];
    if (length == 0) return;
    const std::int64_t i = place(sample, 2, length);
    Slice slice = query_slice(cell, inputs, b, h, i);
    keep_only(slice, {&Problem::dq}, {&Arguments::dq});
    check(slice, cell.pass, names, text_of(b, h, "row", i), operands, own);
  });
}

void verify_keys(const Cell& cell, const Inputs& inputs, DType operands, Error& error) {
  const Problem& p = cell.problem;
  std::vector<NamedTensor> names;
  if (p.dk) names.emplace_back("dk", &Arguments::dk);
  if (p.dv) names.emplace_back("dv", &Arguments::dv);
  if (names.empty()) return;
  for_samples(error, [&](int sample, Error& own) {
    const std::int64_t b = place(sample, 3, p.batch);
    const std::int64_t g = place(sample, 4, p.heads_kv);
    const std::int64_t length = inputs.lengths_kv[static_cast<std::size_t>(b)];
    if (length == 0) return;
    const std::int64_t j = place(sample, 5, length);
    Slice slice = key_slice(cell, inputs, b, g, j);
    keep_only(slice, {&Problem::dk, &Problem::dv}, {&Arguments::dk, &Arguments::dv});
    Bounds bounds;
    bounds.shift(slice, j);
    check(slice, Pass::backward, names, text_of(b, g, "key", j), operands, own);
  });
}

}  // namespace

Error verify(const Cell& cell, const Inputs& inputs, DType operands) {
  Error error;
  if (cell.problem.accumulate || cell.problem.rope_positions || cell.problem.rope_tables) {
    error.problem = "cells with accumulate, rope tables or positions can't be verified here";
    return error;
  }
  verify_queries(cell, inputs, operands, error);
  if (cell.pass == Pass::backward) {
    verify_keys(cell, inputs, operands, error);
    if (cell.problem.dbias) verify_dbias(cell, inputs, error);
    if (cell.problem.dsink) verify_dsink(cell, inputs, error);
  }
  return error;
}

}  // namespace attn::bench
