// Naive same-precision evaluation; see naive.hpp.
#include "naive.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/philox.hpp"
#include "naive_operands.hpp"
#include "values.hpp"

namespace attn::harness {
namespace {

__extension__ typedef __int128 Wide;

constexpr double kInf = std::numeric_limits<double>::infinity();

// One output: sums in T, and sums of the magnitudes of the same terms in double.
template <class T>
struct Sum {
  TensorView view;  // shape only
  std::vector<T> value;
  std::vector<double> magnitude;  // per element
  std::vector<double> square;     // of terms with a rounded operand; empty = no operand is rounded
  std::vector<double> flushed;    // sizes of the factors of operands below the normal range
  explicit Sum(const TensorView& like = {}, T initial = T(0))
      : view(shaped(like.dtype, {like.shape.begin(), like.shape.begin() + like.rank})),
        value(static_cast<std::size_t>(num_elements(like)), initial),
        magnitude(value.size(), 0.0) {}
  [[nodiscard]] std::size_t at(std::int64_t i0, std::int64_t i1, std::int64_t i2 = 0,
                               std::int64_t i3 = 0) const {
    return static_cast<std::size_t>(i0 * view.strides[0] + i1 * view.strides[1] +
                                    i2 * view.strides[2] + i3 * view.strides[3]);
  }
};

// An f32 rounded to 11 bits, halves away from zero.
double round_to_tf32(double x) {
  constexpr double kKept = 0x1p11;
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);
  return std::isfinite(x) ? std::ldexp(std::round(fraction * kKept) / kKept, exponent) : x;
}

// The type that operands of products are rounded to, f32 for tf32; none = not rounded.
class Operand {
 public:
  explicit Operand(DType type) : type_(type) {
    if (type == DType::none) return;
    unit_ = operand_unit(type);
    if (is_f8(type)) scale_ = kF8Scale;
    smallest_ = is_tf32() ? 0x1p-136 : smallest(type) / scale_;
  }
  [[nodiscard]] DType type() const { return type_; }
  [[nodiscard]] bool is_rounded() const { return type_ != DType::none; }
  [[nodiscard]] bool is_tf32() const { return type_ == DType::f32; }
  template <class T>
  [[nodiscard]] T rounded(T x) const {
    if (!is_rounded()) return x;
    const auto value = static_cast<double>(x);
    return static_cast<T>(is_tf32() ? round_to_tf32(value)
                                    : round_to(type_, value * scale_) / scale_);
  }
  // Adds the terms factor * operand * from[..] to the row that starts at `at`.
  template <class T>
  void note(Sum<T>& s, std::size_t at, T operand, T factor, const T* from,
            std::size_t count) const {
    const double size = std::fabs(static_cast<double>(operand));
    if (!is_rounded() || size == 0.0 || !std::isfinite(size)) return;
    const bool is_normal = size >= smallest_ / (2.0 * unit_);
    const double by =
        is_normal ? size * static_cast<double>(factor) : std::fabs(static_cast<double>(factor));
    for (std::size_t d = 0; d < count; ++d) {
      const double term = by * static_cast<double>(from[d]);
      if (is_normal) {
        s.square[at + d] += term * term;
      } else {
        s.flushed[at + d] += std::fabs(term);
      }
    }
  }
  // Standard deviation of a sum of such terms: relative errors are uniform in [-unit_, unit_].
  [[nodiscard]] double deviation(double square) const {
    return unit_ / std::sqrt(3.0) * std::sqrt(square);
  }
  [[nodiscard]] double flushed(double size) const { return smallest_ / 2.0 * size; }
  // Rounding error of a sum of products, relative to that of f32. Tensor cores keep 14 bits of a
  // sum of 8-bit products and truncate 33 addends at once: sqrt(33) units on average.
  [[nodiscard]] double sum_error() const { return is_f8(type_) ? 0x1p13 : 1.0; }

 private:
  DType type_;
  // P is at most 1, and 8-bit types have few values near 0: kernels scale it, to 2^5 or more.
  static constexpr double kF8Scale = 32.0;
  double unit_ = 0.0;
  double smallest_ = 0.0;
  double scale_ = 1.0;
};

template <class T>
class Naive {
 public:
  Naive(const Case& c, const Inputs& inputs, const OutputSet& outputs, DType operands)
      : c_(c),
        p_(c.problem),
        in_(inputs),
        a_(inputs.arguments),
        outputs_(outputs),
        operand_(operands) {}

  std::vector<NaiveOutput> run() {
    for (const auto& [name, view] : outputs_.views) {
      sums_.emplace_back(view, name == "lse" ? static_cast<T>(-kInf) : T(0));
      if (!operand_.is_rounded()) continue;
      sums_.back().square.assign(sums_.back().value.size(), 0.0);
      sums_.back().flushed.assign(sums_.back().value.size(), 0.0);
    }
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      for (std::int64_t h = 0; h < p_.heads_q; ++h) {
        Operands<T> x = gather<T>(c_, in_, b, h, operand_.type());
        if (operand_.is_tf32()) {
          for (std::vector<T>* rows : {&x.q, &x.k, &x.k_by_dim, &x.v, &x.v_by_dim}) {
            for (T& element : *rows) element = operand_.rounded(element);
          }
        }
        c_.pass == Pass::backward ? backward(x) : forward(x);
      }
    }
    return finish();
  }

 private:
  // Row i: score and its components for every key of the sequence.
  struct Row {
    std::vector<T> score;      // -inf where hidden
    std::vector<T> ratio;      // tanh(raw / softcap)
    std::vector<T> keep;       // 0, or 256 / t
    std::vector<double> size;  // scale of the score's rounding error
    T largest = static_cast<T>(-kInf);
    bool is_nan = false;
  };

  Sum<T>* sum(const char* name) {
    for (std::size_t n = 0; n < sums_.size(); ++n) {
      if (outputs_.views[n].first == name) return &sums_[n];
    }
    return nullptr;
  }

  static std::int64_t broadcast(const TensorView& view, std::size_t dim, std::int64_t index) {
    return view.shape[dim] == 1 ? 0 : index;
  }

  static double at_extent(const TensorView& view, const Extent& extent, std::int64_t b,
                          std::int64_t h, std::int64_t i, std::int64_t j) {
    return load(view, extent.entry_of(b), broadcast(view, 1, h), broadcast(view, 2, i),
                broadcast(view, 3, j));
  }

  // The half-open range of keys that is visible under causal, window, kv_begin and kv_end.
  void band(const Operands<T>& x, std::int64_t i, std::int64_t& low, std::int64_t& high) const {
    low = 0;
    high = x.len_kv;
    // Windows and diagonals go up to the limits of 64 bits.
    const Wide place = Wide{i} + x.diag;
    const auto clamped = [&](Wide key) {
      return static_cast<std::int64_t>(std::clamp<Wide>(key, 0, x.len_kv));
    };
    if (p_.causal) high = std::min(high, clamped(place + 1));
    if (p_.window_left) low = std::max(low, clamped(place - *p_.window_left));
    if (p_.window_right) high = std::min(high, clamped(place + *p_.window_right + 1));
    const auto limit = [&](const TensorView& view) {
      return static_cast<std::int64_t>(
          in_.q.packed ? load(view, in_.q.begin[static_cast<std::size_t>(x.b)] + i)
                       : load(view, broadcast(view, 0, x.b), i));
    };
    if (p_.kv_begin) low = std::max(low, limit(a_.kv_begin));
    if (p_.kv_end) high = std::min(high, limit(a_.kv_end));
  }

  Row row(const Operands<T>& x, std::int64_t i) const {
    Row r;
    const auto keys = static_cast<std::size_t>(x.len_kv);
    std::vector<T> raw(keys, T(0));
    for (std::int64_t d = 0; d < p_.dim_qk; ++d) {
      const T q = x.q[static_cast<std::size_t>(i * p_.dim_qk + d)];
      const T* k = x.k_by_dim.data() + static_cast<std::size_t>(d) * keys;
      for (std::size_t j = 0; j < keys; ++j) raw[j] += q * k[j];
    }
    const T scale = scale_in_range();
    // Beyond this range a cap has no effect, or leaves scores of 0.
    const double most = std::sqrt(static_cast<double>(std::numeric_limits<T>::max()));
    const auto cap = static_cast<T>(std::clamp(a_.softcap, 1.0 / most, most));
    r.score.assign(keys, static_cast<T>(-kInf));
    r.ratio.assign(keys, T(0));
    r.keep.assign(keys, T(1));
    r.size.assign(keys, 0.0);
    const double dot_size =
        std::fabs(static_cast<double>(scale)) * x.q_norm[static_cast<std::size_t>(i)] / 4.0;
    std::int64_t low = 0;
    std::int64_t high = 0;
    band(x, i, low, high);
    for (std::int64_t j = low; j < high; ++j) {
      const auto n = static_cast<std::size_t>(j);
      if (x.hidden[n] || (p_.mask.given && at_extent(a_.mask, p_.mask, x.b, x.h, i, j) == 0.0))
        continue;
      T score = scale * raw[n];
      if (p_.softcap) {
        r.ratio[n] = std::tanh(score / cap);
        score = cap * r.ratio[n];
      }
      if (p_.alibi) score -= x.slope * static_cast<T>(std::abs(i + x.diag - j));
      if (p_.bias.given) score += static_cast<T>(at_extent(a_.bias, p_.bias, x.b, x.h, i, j));
      r.score[n] = score;
      const double size = std::max(std::fabs(static_cast<double>(score)), dot_size * x.k_norm[n]);
      r.size[n] = std::isfinite(size) ? size : 0.0;
      r.is_nan = r.is_nan || std::isnan(score);
      r.largest = std::max(r.largest, score);
      if (p_.dropout) r.keep[n] = keep(x, i, j);
    }
    return r;
  }

  [[nodiscard]] T keep(const Operands<T>& x, std::int64_t i, std::int64_t j) const {
    const Origin& origin = a_.origin;
    const std::int64_t heads = origin.heads_q > 0 ? origin.heads_q : p_.heads_q;
    const std::int64_t head = (origin.batch + x.b) * heads + origin.head + x.h;
    const std::uint32_t t = core::dropout_threshold(a_.dropout_p);
    const auto given = [](const Value<std::uint64_t>& value) {
      return value.device != nullptr ? *value.device : value.host;
    };
    const std::uint64_t offset = given(a_.offset);
    const std::uint32_t byte = core::dropout_byte(
        core::dropout_key(given(a_.seed), offset), static_cast<std::uint32_t>(offset),
        static_cast<std::uint32_t>(head), static_cast<std::uint32_t>(origin.q + i),
        static_cast<std::uint32_t>(origin.kv + j));
    return byte < t ? static_cast<T>(256.0 / t) : T(0);
  }

  // Row-major index of element 0 of row i in a tensor of rows, and of the row's statistic.
  std::size_t row_at(const Sum<T>& s, const Rows& rows, std::int64_t b, std::int64_t i,
                     std::int64_t h) const {
    return rows.packed ? s.at(rows.begin[static_cast<std::size_t>(b)] + i, h) : s.at(b, i, h);
  }
  std::size_t stat_at(const Sum<T>& s, std::int64_t b, std::int64_t i, std::int64_t h) const {
    return in_.q.packed ? s.at(h, in_.q.begin[static_cast<std::size_t>(b)] + i) : s.at(b, h, i);
  }

  void forward(const Operands<T>& x) {
    const auto dim = static_cast<std::size_t>(p_.dim_vo);
    Sum<T>& o = *sum("o");
    Sum<T>* lse = sum("lse");
    for (std::int64_t i = 0; i < x.len_q; ++i) {
      const Row r = row(x, i);
      const T top = std::max(r.largest, x.sink);
      if (std::isinf(top) && top < 0) continue;  // an empty row
      T total = std::exp(x.sink - top);
      const std::size_t at_row = row_at(o, in_.q, x.b, i, x.h);
      T* out = o.value.data() + at_row;
      double* magnitude = o.magnitude.data() + at_row;
      if (std::isinf(top)) total = T(0);
      double total_size = static_cast<double>(total);  // scale of the sum's rounding error
      const T below_sink = std::isinf(r.largest) ? T(0) : std::exp(r.largest - top);
      std::vector<T> weight(r.score.size());
      for (std::size_t j = 0; j < weight.size(); ++j) {
        weight[j] = std::isinf(top) ? T(0) : std::exp(r.score[j] - top);
        total += weight[j];
        total_size += static_cast<double>(weight[j]) * (1.0 + r.size[j]);
      }
      for (std::size_t j = 0; j < weight.size(); ++j) {
        T w = weight[j] * r.keep[j];
        const T* v = x.v.data() + j * dim;
        if (w == T(0)) continue;
        if (operand_.is_rounded()) {
          const T own = std::exp(r.score[j] - r.largest);
          const T factor = below_sink * r.keep[j];
          operand_.note(o, at_row, own, factor, v, dim);
          w = operand_.rounded(own) * factor;
        }
        const double spread = 1.0 + r.size[j];
        for (std::size_t d = 0; d < dim; ++d) out[d] += w * v[d];
        for (std::size_t d = 0; d < dim; ++d)
          magnitude[d] += spread * std::fabs(static_cast<double>(w * v[d]));
      }
      for (std::size_t d = 0; d < dim && total > T(0); ++d) {
        out[d] /= total;
        magnitude[d] += std::fabs(static_cast<double>(out[d])) * total_size;
        magnitude[d] /= static_cast<double>(total);
        if (!operand_.is_rounded()) continue;
        o.square[at_row + d] /= static_cast<double>(total) * static_cast<double>(total);
        o.flushed[at_row + d] /= static_cast<double>(total);
      }
      if (lse == nullptr) continue;
      const std::size_t at = stat_at(*lse, x.b, i, x.h);
      lse->value[at] = std::isinf(top) ? top : top + std::log(total);
      if (std::isfinite(top)) {
        lse->magnitude[at] = std::fabs(static_cast<double>(top));
        for (const double size : r.size) lse->magnitude[at] = std::max(lse->magnitude[at], size);
      }
    }
  }

  [[nodiscard]] T statistic(const TensorView& view, std::int64_t b, std::int64_t i,
                            std::int64_t h) const {
    return static_cast<T>(in_.q.packed ? load(view, h, in_.q.begin[static_cast<std::size_t>(b)] + i)
                                       : load(view, b, h, i));
  }

  [[nodiscard]] T scale_in_range() const {
    const double scale = a_.scale ? *a_.scale : 1.0 / std::sqrt(static_cast<double>(p_.dim_qk));
    constexpr auto kMost = static_cast<double>(std::numeric_limits<T>::max());
    return static_cast<T>(std::clamp(scale, -kMost, kMost));
  }

  void backward(const Operands<T>& x) {
    const auto dim_qk = static_cast<std::size_t>(p_.dim_qk);
    const auto dim_vo = static_cast<std::size_t>(p_.dim_vo);
    const auto keys = static_cast<std::size_t>(x.len_kv);
    const T scale = scale_in_range();
    Sum<T>* dq = sum("dq");
    Sum<T>* dk = sum("dk");
    Sum<T>* dv = sum("dv");
    Sum<T>* dbias = sum("dbias");
    Sum<T>* dsink = sum("dsink");
    // Rounded for the products; delta uses the unrounded values.
    std::vector<T> operand_grad = x.grad;
    for (T& element : operand_grad) element = operand_.rounded(element);
    for (std::int64_t i = 0; i < x.len_q; ++i) {
      const T lse = statistic(a_.lse, x.b, i, x.h);
      if (std::isinf(lse) && lse < 0) continue;  // an empty row: no gradient
      const T* grad = x.grad.data() + static_cast<std::size_t>(i) * dim_vo;
      T delta = T(0);
      if (p_.delta) {
        delta = statistic(a_.delta, x.b, i, x.h);
      } else {
        const T* o = x.o.data() + static_cast<std::size_t>(i) * dim_vo;
        for (std::size_t d = 0; d < dim_vo; ++d) delta += grad[d] * o[d];
        if (p_.dlse) delta -= statistic(a_.dlse, x.b, i, x.h);
      }
      double delta_size = x.grad_norm[static_cast<std::size_t>(i)] * x.o_norm(i, dim_vo);
      delta_size = std::max(delta_size, std::fabs(static_cast<double>(delta)));
      if (dsink != nullptr && std::isfinite(x.sink)) {
        const T share = std::exp(x.sink - lse);
        const auto at = static_cast<std::size_t>(x.h);
        dsink->value[at] -= share * delta;
        dsink->magnitude[at] += static_cast<double>(share) * delta_size;
      }
      const Row r = row(x, i);
      const T* product_grad = operand_grad.data() + static_cast<std::size_t>(i) * dim_vo;
      std::vector<T> dp(keys, T(0));
      for (std::size_t d = 0; d < dim_vo; ++d) {
        const T* v = x.v_by_dim.data() + d * keys;
        for (std::size_t j = 0; j < keys; ++j) dp[j] += product_grad[d] * v[j];
      }
      const T* q = x.q.data() + static_cast<std::size_t>(i) * dim_qk;
      for (std::size_t j = 0; j < keys; ++j) {
        if (std::isinf(r.score[j]) && r.score[j] < 0) continue;
        const auto key = static_cast<std::int64_t>(j);
        const T p = std::exp(r.score[j] - lse);
        const T ds = p * (r.keep[j] * dp[j] - delta);
        const double weight = static_cast<double>(p) * (1.0 + r.size[j]);
        const double size = weight * (static_cast<double>(r.keep[j]) *
                                          x.grad_norm[static_cast<std::size_t>(i)] * x.v_norm[j] +
                                      delta_size);
        if (dbias != nullptr) {
          const std::size_t at =
              dbias->at(p_.bias.entry_of(x.b), broadcast(dbias->view, 1, x.h),
                        broadcast(dbias->view, 2, i), broadcast(dbias->view, 3, key));
          dbias->value[at] += ds;
          dbias->magnitude[at] += size;
        }
        const T slope = p_.softcap ? T(1) - r.ratio[j] * r.ratio[j] : T(1);
        const T capped_ds = ds * slope;
        const double draw_size = std::fabs(static_cast<double>(scale * slope)) * size;
        if (dq != nullptr) {
          add(*dq, row_at(*dq, in_.q, x.b, i, x.h), capped_ds, scale, x.k.data() + j * dim_qk,
              dim_qk, draw_size * x.k_largest[j]);
        }
        if (dk != nullptr) {
          add(*dk, row_at(*dk, in_.kv, x.b, key, x.g), capped_ds, scale, q, dim_qk,
              draw_size * x.q_largest[static_cast<std::size_t>(i)]);
        }
        if (dv != nullptr) {
          add(*dv, row_at(*dv, in_.kv, x.b, key, x.g), p, r.keep[j], product_grad, dim_vo,
              weight * static_cast<double>(r.keep[j]) * x.grad_norm[static_cast<std::size_t>(i)]);
        }
      }
    }
  }

  // Adds factor * operand * from[..] to the row that starts at `at`; its size is recorded at the
  // first element.
  void add(Sum<T>& s, std::size_t at, T operand, T factor, const T* from, std::size_t count,
           double size) const {
    operand_.note(s, at, operand, factor, from, count);
    const T by = factor * operand_.rounded(operand);
    T* to = s.value.data() + at;
    for (std::size_t d = 0; d < count; ++d) to[d] += by * from[d];
    s.magnitude[at] += size;
  }

  std::vector<NaiveOutput> finish() {
    if (p_.rope != Rope::none && c_.pass == Pass::backward) {
      for (const bool queries : {true, false}) {
        Sum<T>* s = sum(queries ? "dq" : "dk");
        if (s != nullptr) {
          rotate_back(c_, in_, queries, s->value.data());
        }
      }
    }
    std::vector<NaiveOutput> results;
    for (std::size_t n = 0; n < sums_.size(); ++n) {
      const auto& [name, view] = outputs_.views[n];
      NaiveOutput result{name, {}, {}, {}, {}};
      const DType type = output_type(p_, name);
      const std::vector<double> old = p_.accumulate && c_.pass == Pass::backward
                                          ? read_all(view)
                                          : std::vector<double>(sums_[n].value.size(), 0.0);
      const auto width = static_cast<std::size_t>(
          std::max<std::int64_t>(view.shape[static_cast<std::size_t>(view.rank - 1)], 1));
      for (std::size_t at = 0; at < sums_[n].value.size(); ++at) {
        T value = sums_[n].value[at];
        if (old[at] != 0.0) value += static_cast<T>(old[at]);
        if (p_.nonfinite_zero && name != "lse" && !std::isfinite(value)) value = T(0);
        result.values.push_back(round_to(type, static_cast<double>(value)));
        if (at % width == 0) {
          for (auto* rows : {&result.magnitude, &result.deviation, &result.flushed}) {
            rows->push_back(0.0);
          }
        }
        if (operand_.is_rounded()) {  // a NaN never compares as larger
          result.deviation.back() =
              std::max(result.deviation.back(), operand_.deviation(sums_[n].square[at]));
          result.flushed.back() =
              std::max(result.flushed.back(), operand_.flushed(sums_[n].flushed[at]));
        }
        const double terms = sums_[n].magnitude[at];
        // Terms that a planted NaN reaches say nothing about the row's other elements.
        const double size = terms > 0.0 ? terms * operand_.sum_error() + std::fabs(old[at]) : 0.0;
        result.magnitude.back() = std::max(result.magnitude.back(), size);
      }
      results.push_back(std::move(result));
    }
    return results;
  }

  const Case& c_;
  const Problem& p_;
  const Inputs& in_;
  const Arguments& a_;
  const OutputSet& outputs_;
  Operand operand_;
  std::vector<Sum<T>> sums_;
};

}  // namespace

std::vector<NaiveOutput> naive(const Case& c, const Inputs& inputs, const OutputSet& old,
                               DType operands) {
  if (c.problem.dtype == DType::f64) return Naive<double>(c, inputs, old, DType::none).run();
  return Naive<float>(c, inputs, old, operands).run();
}

double operand_unit(DType operands) {
  return operands == DType::f32 ? 0x1p-11 : unit_roundoff(operands);
}

DType operand_type(const Problem& problem, Device device, const PlanSummary& plan) {
  if (problem.dtype == DType::f32 && problem.precision == Precision::tf32) {
    return device == Device::cuda ? DType::f32 : DType::none;
  }
  if (is_f8(problem.dtype)) {
    if (device != Device::cuda) return DType::none;
    // Kernels for f8 queries round P to e4m3. Other kernels run on a 16-bit copy of q.
    const auto copies = std::count(plan.kernels.begin(), plan.kernels.end(), "attn_rope");
    if (copies == 0) return DType::f8e4m3;
    return problem.out_type() == DType::f16 ? DType::f16 : DType::bf16;
  }
  const bool is_16_bit = problem.dtype == DType::f16 || problem.dtype == DType::bf16;
  // The names of the CPU's bf16 engines have "bf16" in them.
  const bool rounds = device == Device::cuda ||
                      (device == Device::host && plan.kernel.find("bf16") != std::string::npos);
  return rounds && is_16_bit ? problem.dtype : DType::none;
}

}  // namespace attn::harness
