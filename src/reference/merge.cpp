// Merging two partial results, and its gradient (docs/semantics.md, "Merge").
#include <algorithm>
#include <cmath>

#include "reference/elements.hpp"
#include "reference/needs.hpp"
#include "reference/reference.hpp"

namespace attn::reference {

namespace {

// The position of one row: of o [b, n, h, dim] or packed [total, h, dim], and of lse [b, h, n] or
// [h, total].
struct Place {
  std::int64_t batch, i, head;

  [[nodiscard]] std::int64_t row(const TensorView& view) const {
    return view.rank == 4 ? position_of(view, {batch, i, head}) : position_of(view, {i, head});
  }
  [[nodiscard]] std::int64_t statistic(const TensorView& view) const {
    return view.rank == 3 ? position_of(view, {batch, head, i}) : position_of(view, {head, i});
  }
};

// Calls body(place) for every row of a tensor shaped like o.
template <class Body>
void for_each_row(const TensorView& o, Body body) {
  const bool padded = o.rank == 4;
  const std::int64_t batch = padded ? o.shape[0] : 1;
  const std::int64_t rows = padded ? o.shape[1] : o.shape[0];
  const std::int64_t heads = padded ? o.shape[2] : o.shape[1];
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) body(Place{b, i, h});
    }
  }
}

std::int64_t dim_of(const TensorView& o) {
  return o.shape[static_cast<std::size_t>(o.rank - 1)];
}

double log_add_exp(double a, double b) {
  const double largest = std::max(a, b);
  if (largest == -kInfinity) return largest;
  return largest + std::log(std::exp(a - largest) + std::exp(b - largest));
}

// exp(lse_n - lse); 0 for a partial without keys.
double weight_of(double lse_n, double lse) {
  return lse_n == -kInfinity ? 0.0 : std::exp(lse_n - lse);
}

// Zeros when the partial is not given (a sink) or has no keys: it is not read then.
Row partial_row(const TensorView& o_n, const Place& place, double lse_n, std::int64_t dim) {
  if (!o_n.given() || lse_n == -kInfinity) return Row(static_cast<std::size_t>(dim), 0.0);
  return read_row(o_n, place.row(o_n), dim);
}

void write_row(const TensorView& view, const Place& place, const Row& row) {
  std::int64_t at = place.row(view);
  for (const double value : row) write(view, at++, value);
}

}  // namespace

std::string merge(const MergeArguments& a) {
  const TensorView& o = a.o;
  std::string found = check("reference merge", {{"o", o},
                                                {"o1", a.o1, o.rank},
                                                {"lse1", a.lse1, o.rank - 1},
                                                {"o2", a.o2, o.rank, false},
                                                {"lse2", a.lse2, o.rank - 1},
                                                {"lse", a.lse, o.rank - 1, false}});
  if (!found.empty()) return found;
  const std::int64_t dim = dim_of(o);
  for_each_row(o, [&](const Place& place) {
    const double lse1 = read(a.lse1, place.statistic(a.lse1));
    const double lse2 = read(a.lse2, place.statistic(a.lse2));
    const double lse = log_add_exp(lse1, lse2);
    const double w1 = weight_of(lse1, lse);
    const double w2 = weight_of(lse2, lse);
    const Row o1 = partial_row(a.o1, place, lse1, dim);
    const Row o2 = partial_row(a.o2, place, lse2, dim);
    Row merged(o1.size());
    for (std::size_t c = 0; c < merged.size(); ++c) merged[c] = w1 * o1[c] + w2 * o2[c];
    write_row(o, place, merged);
    if (a.lse.given()) write(a.lse, place.statistic(a.lse), lse);
  });
  return "";
}

std::string merge_backward(const MergeBackwardArguments& a) {
  const int rank = a.dout.rank;
  std::string found = check("reference merge_backward", {{"dout", a.dout},
                                                         {"o1", a.o1, rank},
                                                         {"lse1", a.lse1, rank - 1},
                                                         {"o2", a.o2, rank, false},
                                                         {"lse2", a.lse2, rank - 1},
                                                         {"o", a.o, rank},
                                                         {"lse", a.lse, rank - 1},
                                                         {"dlse", a.dlse, rank - 1, false},
                                                         {"dout1", a.dout1, rank, false},
                                                         {"dlse1", a.dlse1, rank - 1, false},
                                                         {"dout2", a.dout2, rank, false},
                                                         {"dlse2", a.dlse2, rank - 1, false}});
  if (!found.empty()) return found;
  const std::int64_t dim = dim_of(a.dout);
  for_each_row(a.dout, [&](const Place& place) {
    const double lse = read(a.lse, place.statistic(a.lse));
    const double dlse = a.dlse.given() ? read(a.dlse, place.statistic(a.dlse)) : 0.0;
    const Row o = read_row(a.o, place.row(a.o), dim);
    const Row dout = read_row(a.dout, place.row(a.dout), dim);

    const auto partial = [&](const TensorView& o_view, const TensorView& lse_view,
                             const TensorView& dout_view, const TensorView& dlse_view) {
      const double lse_n = read(lse_view, place.statistic(lse_view));
      const Row o_n = partial_row(o_view, place, lse_n, dim);
      const double w = weight_of(lse_n, lse);
      Row dout_n(dout.size(), 0.0);
      double dlse_n = 0.0;
      if (lse_n != -kInfinity) {
        dlse_n = w * dlse;
        for (std::size_t c = 0; c < dout.size(); ++c) {
          dout_n[c] = w * dout[c];
          dlse_n += w * dout[c] * (o_n[c] - o[c]);
        }
      }
      if (dout_view.given()) write_row(dout_view, place, dout_n);
      if (dlse_view.given()) write(dlse_view, place.statistic(dlse_view), dlse_n);
    };
    partial(a.o1, a.lse1, a.dout1, a.dlse1);
    partial(a.o2, a.lse2, a.dout2, a.dlse2);
  });
  return "";
}

}  // namespace attn::reference
