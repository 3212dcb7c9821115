// Operands of the naive evaluation of one (sequence, head): dense copies of its rows in T, after
// the rotary embedding and the append.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "case.hpp"
#include "inputs.hpp"

namespace attn::harness {

template <class T>
struct Operands {
  std::int64_t b = 0;
  std::int64_t h = 0;
  std::int64_t g = 0;  // key head
  std::int64_t len_q = 0;
  std::int64_t len_kv = 0;  // after the append
  std::int64_t diag = 0;
  T slope = T(0);
  T sink = T(0);                  // -inf = no sink
  std::vector<T> q, k, k_by_dim;  // [n, dim_qk], [m, dim_qk], [dim_qk, m]
  std::vector<T> v, v_by_dim;     // [m, dim_vo], [dim_vo, m]
  std::vector<T> grad, o;         // dout and o, [n, dim_vo]; backward only
  std::vector<char> hidden;       // [m]: the key is on a missing page
  std::vector<double> q_largest, q_norm, k_largest, k_norm, v_norm, grad_norm;  // norms of the rows

  [[nodiscard]] double o_norm(std::int64_t i, std::size_t dim) const {
    double sum = 0.0;
    for (std::size_t d = 0; d < dim && !o.empty(); ++d) {
      const auto x = static_cast<double>(o[static_cast<std::size_t>(i) * dim + d]);
      sum += x * x;
    }
    return std::sqrt(sum);
  }
};

// `operands`: the type that rotated q and k are rounded to before they are multiplied, and 8-bit q,
// k and v that are rotated or have dims above 256; none = they are not.
template <class T>
Operands<T> gather(const Case& c, const Inputs& inputs, std::int64_t b, std::int64_t h,
                   DType operands);

// Rotates the rows of a gradient of q or of k, row-major, by the negative angle.
template <class T>
void rotate_back(const Case& c, const Inputs& inputs, bool queries, T* rows);

// The type of the output with this name in the problem.
DType output_type(const Problem& problem, const std::string& name);

}  // namespace attn::harness
