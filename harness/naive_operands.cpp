// Implements naive_operands.hpp.
#include "naive_operands.hpp"

#include <algorithm>
#include <limits>

#include "values.hpp"

namespace attn::harness {
namespace {

std::int64_t appended_length(const Problem& p, std::int64_t length) {
  return p.len_new > 0 ? std::min(length + p.len_new, p.len_kv) : length;
}

std::int64_t diagonal(const Case& c, const Inputs& in, std::size_t b) {
  const Problem& p = c.problem;
  if (p.diagonal == Diagonal::top_left) return 0;
  if (p.diagonal == Diagonal::bottom_right) {
    return appended_length(p, in.kv.length[b]) - in.q.length[b];
  }
  return c.diag ? *c.diag : c.origin.q - c.origin.kv;
}

// Whether 8-bit k and v, times their factors, are rounded to the type of a 16-bit q, or to that of
// the copy of an f8 q.
bool converts_cache(const Case& c) {
  const Problem& p = c.problem;
  const bool is_quantized = p.kv_type() == DType::i8 || is_f8(p.kv_type());
  const bool rotates_keys = c.pass == Pass::forward && p.rope != Rope::none;
  return is_quantized && (rotates_keys || std::max(p.dim_qk, p.dim_vo) > 256);
}

// Whether an f8 q, times its factor, is rounded to the type of its copy. Elsewhere the copy is
// exact and the factor multiplies the scores.
bool rounds_queries(const Problem& p) {
  return is_f8(p.dtype) &&
         (std::max(p.dim_qk, p.dim_vo) > 256 || (p.page_size > 0 && p.descale_rows));
}

// Position of row i of sequence b: a query, a key, or (in decode) an appended key.
std::int64_t position(const Case& c, const Inputs& in, bool queries, std::size_t b,
                      std::int64_t i) {
  const Problem& p = c.problem;
  const Rows& rows = queries ? in.q : in.kv;
  if (p.rope_positions) {
    const TensorView& view = queries ? in.arguments.rope_pos_q : in.arguments.rope_pos_k;
    if (rows.packed) return static_cast<std::int64_t>(load(view, rows.begin[b] + i));
    return static_cast<std::int64_t>(
        load(view, view.shape[0] == 1 ? 0 : static_cast<std::int64_t>(b), i));
  }
  std::int64_t place = i;
  if (queries) place += diagonal(c, in, b);
  if (!queries && c.pass == Pass::decode) place += in.kv.length[b];
  return place + c.rope_pos_offset;
}

// Rotates one row in place by sign * angle.
template <class T>
void rotate(const Case& c, const Inputs& in, std::int64_t at, double sign, T* row) {
  const Problem& p = c.problem;
  const std::int64_t half = p.rotary_dim() / 2;
  for (std::int64_t m = 0; m < half; ++m) {
    double cosine = 0.0;
    double sine = 0.0;
    if (p.rope_tables) {
      const TensorView& table = in.arguments.rope_cos;
      const std::int64_t index = std::clamp<std::int64_t>(at, 0, table.shape[0] - 1);
      cosine = load(table, index, m);
      sine = load(in.arguments.rope_sin, index, m);
    } else {
      const double angle =
          static_cast<double>(at) *
          std::pow(c.rope_base, -2.0 * static_cast<double>(m) / static_cast<double>(2 * half));
      cosine = std::cos(angle);
      sine = std::sin(angle);
    }
    const bool interleaved = p.rope == Rope::interleaved;
    T& x = row[interleaved ? 2 * m : m];
    T& y = row[interleaved ? 2 * m + 1 : m + half];
    const auto cos_t = static_cast<T>(cosine);
    const auto sin_t = static_cast<T>(sign * sine);
    const T turned = x * cos_t - y * sin_t;
    y = x * sin_t + y * cos_t;
    x = turned;
  }
}

double row_value(const TensorView& view, const Rows& rows, std::size_t b, std::int64_t i,
                 std::int64_t head, std::int64_t d) {
  return rows.packed ? load(view, rows.begin[b] + i, head, d)
                     : load(view, static_cast<std::int64_t>(b), i, head, d);
}

template <class T>
std::vector<T> transposed(const std::vector<T>& from, std::size_t rows, std::size_t columns) {
  std::vector<T> to(from.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t d = 0; d < columns; ++d) to[d * rows + r] = from[r * columns + d];
  }
  return to;
}

template <class T>
std::vector<double> sizes(const std::vector<T>& rows, std::size_t width, bool norm) {
  std::vector<double> result;
  for (std::size_t at = 0; at + width <= rows.size(); at += width) {
    double sum = 0.0;
    double largest = 0.0;
    for (std::size_t d = 0; d < width; ++d) {
      const double x = std::fabs(static_cast<double>(rows[at + d]));
      sum += x * x;
      largest = std::max(largest, x);
    }
    result.push_back(norm ? std::sqrt(sum) : largest);
  }
  return result;
}

template <class T>
class Gatherer {
 public:
  Gatherer(const Case& c, const Inputs& in, DType operands, Operands<T>& x)
      : c_(c),
        p_(c.problem),
        in_(in),
        a_(in.arguments),
        operands_(operands),
        converts_(converts_cache(c)),
        x_(x),
        b_(static_cast<std::size_t>(x.b)) {}

  void queries() {
    const auto dim = static_cast<std::size_t>(p_.dim_qk);
    for (std::int64_t i = 0; i < x_.len_q; ++i) {
      for (std::int64_t d = 0; d < p_.dim_qk; ++d) {
        x_.q.push_back(static_cast<T>(row_value(a_.q, in_.q, b_, i, x_.h, d)) *
                       descale(a_.descale_q));
      }
      if (p_.rope != Rope::none) {
        rotate(c_, in_, position(c_, in_, true, b_, i), 1.0,
               x_.q.data() + static_cast<std::size_t>(i) * dim);
      }
      if (p_.rope != Rope::none || rounds_queries(p_)) {
        round_from(x_.q, static_cast<std::size_t>(i) * dim, operands_);
      }
      if (c_.pass != Pass::backward) continue;
      for (std::int64_t d = 0; d < p_.dim_vo; ++d) {
        x_.grad.push_back(static_cast<T>(row_value(a_.dout, in_.q, b_, i, x_.h, d)));
        if (a_.o.given()) x_.o.push_back(static_cast<T>(row_value(a_.o, in_.q, b_, i, x_.h, d)));
      }
    }
    x_.q_largest = sizes(x_.q, dim, false);
    x_.q_norm = sizes(x_.q, dim, true);
    x_.grad_norm = sizes(x_.grad, static_cast<std::size_t>(p_.dim_vo), true);
  }

  void keys() {
    const std::int64_t before = in_.kv.length[b_];
    for (std::int64_t j = 0; j < x_.len_kv; ++j) {
      bool hidden = false;
      if (p_.page_size > 0) {
        const double page = load(a_.block_table, x_.b, j / p_.page_size);
        hidden = page < 0 || page >= static_cast<double>(a_.k.shape[0]);
      }
      x_.hidden.push_back(hidden ? 1 : 0);
      key(j, before, hidden);
      for (std::int64_t d = 0; d < p_.dim_vo; ++d) {
        x_.v.push_back(hidden ? T(0)
                              : static_cast<T>(element(a_.v, a_.v_new, j, before, d)) *
                                    key_descale(a_.descale_v, j));
      }
      if (converts_) round_from(x_.v, x_.v.size() - static_cast<std::size_t>(p_.dim_vo), operands_);
    }
    const auto rows = static_cast<std::size_t>(x_.len_kv);
    x_.k_by_dim = transposed(x_.k, rows, static_cast<std::size_t>(p_.dim_qk));
    x_.v_by_dim = transposed(x_.v, rows, static_cast<std::size_t>(p_.dim_vo));
    x_.k_norm = sizes(x_.k, static_cast<std::size_t>(p_.dim_qk), true);
    x_.k_largest = sizes(x_.k, static_cast<std::size_t>(p_.dim_qk), false);
    x_.v_norm = sizes(x_.v, static_cast<std::size_t>(p_.dim_vo), true);
  }

 private:
  // Element d of key or value j, from the cache or from the appended rows.
  [[nodiscard]] double element(const TensorView& cache, const TensorView& fresh, std::int64_t j,
                               std::int64_t before, std::int64_t d) const {
    if (j >= before) return load(fresh, x_.b, j - before, x_.g, d);
    if (p_.page_size == 0) return row_value(cache, in_.kv, b_, j, x_.g, d);
    const auto page = static_cast<std::int64_t>(load(a_.block_table, x_.b, j / p_.page_size));
    return load(cache, page, j % p_.page_size, x_.g, d);
  }

  [[nodiscard]] T descale(const TensorView& descales) const {
    return descales.given() ? static_cast<T>(load(descales, x_.b, x_.g)) : T(1);
  }

  // The factor of key j, which has a page.
  [[nodiscard]] T key_descale(const TensorView& descales, std::int64_t j) const {
    if (!descales.given() || descales.rank == 2) return descale(descales);
    const bool paged = p_.page_size > 0;
    const auto first =
        paged ? static_cast<std::int64_t>(load(a_.block_table, x_.b, j / p_.page_size)) : x_.b;
    const std::int64_t row = descales.shape[1] == 1 ? 0 : paged ? j % p_.page_size : j;
    return static_cast<T>(load(descales, first, row, x_.g));
  }

  void key(std::int64_t j, std::int64_t before, bool hidden) {
    const std::size_t start = x_.k.size();
    raw_key(start, j, before, hidden);
    const T factor = hidden ? T(1) : key_descale(a_.descale_k, j);
    for (std::size_t at = start; at < x_.k.size(); ++at) x_.k[at] *= factor;
    if (converts_) round_from(x_.k, start, operands_);
  }

  void raw_key(std::size_t start, std::int64_t j, std::int64_t before, bool hidden) {
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) {
      x_.k.push_back(hidden ? T(0) : static_cast<T>(element(a_.k, a_.k_new, j, before, d)));
    }
    if (p_.rope == Rope::none) return;
    if (c_.pass != Pass::decode) {
      rotate(c_, in_, position(c_, in_, false, b_, j), 1.0, x_.k.data() + start);
      if (!converts_) round_from(x_.k, start, operands_);
    } else if (j >= before) {
      rotate(c_, in_, position(c_, in_, false, b_, j - before), 1.0, x_.k.data() + start);
      round_from(x_.k, start, p_.kv_type());  // it is stored and read back
    }
  }

  // Rounds the elements from `start` on.
  static void round_from(std::vector<T>& rows, std::size_t start, DType type) {
    for (std::size_t at = start; at < rows.size() && type != DType::none; ++at) {
      rows[at] = static_cast<T>(round_to(type, static_cast<double>(rows[at])));
    }
  }

  const Case& c_;
  const Problem& p_;
  const Inputs& in_;
  const Arguments& a_;
  const DType operands_;
  const bool converts_;
  Operands<T>& x_;
  std::size_t b_;
};

}  // namespace

template <class T>
Operands<T> gather(const Case& c, const Inputs& in, std::int64_t b, std::int64_t h,
                   DType operands) {
  const Problem& p = c.problem;
  const auto entry = static_cast<std::size_t>(b);
  Operands<T> x;
  x.b = b;
  x.h = h;
  x.g = h / (p.heads_q / p.heads_kv);
  x.len_q = in.q.length[entry];
  x.len_kv = appended_length(p, in.kv.length[entry]);
  x.diag = diagonal(c, in, entry);
  const Arguments& a = in.arguments;
  if (p.alibi) {
    x.slope =
        static_cast<T>(c.slopes_per_batch ? load(a.alibi_slopes, b, h) : load(a.alibi_slopes, h));
  }
  x.sink = p.sink ? static_cast<T>(load(a.sinks, h)) : -std::numeric_limits<T>::infinity();
  Gatherer<T> gatherer(c, in, operands, x);
  gatherer.queries();
  gatherer.keys();
  return x;
}

template <class T>
void rotate_back(const Case& c, const Inputs& in, bool queries, T* data) {
  const Problem& p = c.problem;
  const Rows& rows = queries ? in.q : in.kv;
  const std::int64_t heads = queries ? p.heads_q : p.heads_kv;
  const std::int64_t len = queries ? p.len_q : p.len_kv;
  for (std::size_t b = 0; b < rows.length.size(); ++b) {
    for (std::int64_t i = 0; i < rows.length[b]; ++i) {
      const std::int64_t row =
          rows.packed ? rows.begin[b] + i : static_cast<std::int64_t>(b) * len + i;
      for (std::int64_t head = 0; head < heads; ++head) {
        rotate(c, in, position(c, in, queries, b, i), -1.0, data + (row * heads + head) * p.dim_qk);
      }
    }
  }
}

DType output_type(const Problem& p, const std::string& name) {
  if (name == "o") return p.out_type();
  if (name == "lse" || name == "dsink") return p.statistics_type();
  if (name == "dbias") return p.dbias_type();
  return p.grad_type();
}

template Operands<float> gather(const Case&, const Inputs&, std::int64_t, std::int64_t, DType);
template Operands<double> gather(const Case&, const Inputs&, std::int64_t, std::int64_t, DType);
template void rotate_back(const Case&, const Inputs&, bool, float*);
template void rotate_back(const Case&, const Inputs&, bool, double*);

}  // namespace attn::harness
