// Tiny: one sequence, one head, dims 1, scale 1 in float64, for values computed by hand.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>

#include "memory.hpp"
#include "reference/reference.hpp"

namespace attn::reference::test {

struct Tiny {
  Memory memory;
  Problem problem;
  Arguments arguments;

  Tiny(const Numbers& q, const Numbers& k, const Numbers& v) {
    const auto len_q = static_cast<std::int64_t>(q.size());
    const auto len_kv = static_cast<std::int64_t>(k.size());
    problem.dtype = DType::f64;
    problem.len_q = len_q;
    problem.len_kv = len_kv;
    problem.dim_qk = 1;
    problem.dim_vo = 1;
    Arguments& a = arguments;
    a.scale = 1.0;
    a.q = memory.f64({1, len_q, 1, 1}, q);
    a.k = memory.f64({1, len_kv, 1, 1}, k);
    a.v = memory.f64({1, len_kv, 1, 1}, v);
    a.o = memory.filled({1, len_q, 1, 1}, 777.0);
    a.lse = memory.filled({1, 1, len_q}, 777.0);
    a.dout = memory.filled({1, len_q, 1, 1}, 1.0);
    a.dq = memory.filled({1, len_q, 1, 1}, 777.0);
    a.dk = memory.filled({1, len_kv, 1, 1}, 777.0);
    a.dv = memory.filled({1, len_kv, 1, 1}, 777.0);
  }
  void add_dlse(const Numbers& dlse) {
    problem.dlse = true;
    arguments.dlse = memory.f64({1, 1, problem.len_q}, dlse);
  }
  void add_bias(const Numbers& bias) {
    problem.bias = {true, false, false, true, true};
    arguments.bias = memory.f64({1, 1, problem.len_q, problem.len_kv}, bias);
    problem.dbias = true;
    arguments.dbias = memory.filled({1, 1, problem.len_q, problem.len_kv}, 777.0);
  }
  void add_sink(double sink) {
    problem.sink = true;
    arguments.sinks = memory.f64({1}, {sink});
    problem.dsink = true;
    arguments.dsink = memory.filled({1}, 777.0);
  }

  [[nodiscard]] std::string run_forward() const { return forward(problem, arguments); }
  // Forward, then backward.
  [[nodiscard]] std::string run() const {
    const std::string found = forward(problem, arguments);
    return found.empty() ? backward(problem, arguments) : found;
  }
  [[nodiscard]] Numbers o() const { return values_of(arguments.o); }
  [[nodiscard]] Numbers lse() const { return values_of(arguments.lse); }
  [[nodiscard]] Numbers dq() const { return values_of(arguments.dq); }
  [[nodiscard]] Numbers dk() const { return values_of(arguments.dk); }
  [[nodiscard]] Numbers dv() const { return values_of(arguments.dv); }
  [[nodiscard]] Numbers dbias() const { return values_of(arguments.dbias); }
  [[nodiscard]] Numbers dsink() const { return values_of(arguments.dsink); }
};

}  // namespace attn::reference::test
