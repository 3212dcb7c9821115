// Merge of two partial results over disjoint keys, and its gradient (docs/semantics.md, "Merge").
// Scalar code: it is bound by memory bandwidth.
#include <cmath>
#include <limits>

#include "cpu/kernels/element.hpp"
#include "cpu/kernels/kernels.hpp"

namespace attn::cpu {
namespace {

// Position of a row and head in a tensor or statistic. Packed: b is 0, i is the packed row.
struct Place {
  std::int64_t b = 0;
  std::int64_t i = 0;
  std::int64_t head = 0;
};

Place place_of(const TensorView& o, std::int64_t row, std::int64_t head) {
  if (o.rank == 3) return {0, row, head};
  return {row / o.shape[1], row % o.shape[1], head};
}

char* tensor_at(const TensorView& view, const Place& at) {
  const auto& s = view.strides;
  const std::int64_t offset =
      view.rank == 3 ? at.i * s[0] + at.head * s[1] : at.b * s[0] + at.i * s[1] + at.head * s[2];
  return static_cast<char*>(view.address()) + offset * size_of(view.dtype);
}

char* stat_at(const TensorView& view, const Place& at) {
  const auto& s = view.strides;
  const std::int64_t offset =
      view.rank == 2 ? at.head * s[0] + at.i * s[1] : at.b * s[0] + at.head * s[1] + at.i * s[2];
  return static_cast<char*>(view.address()) + offset * size_of(view.dtype);
}

template <class T>
struct Weights {
  T lse, w1, w2;
};

// lse = logaddexp(lse1, lse2), w_n = exp(lse_n - lse); 0 for a partial without keys.
template <class T>
Weights<T> weights_of(T lse1, T lse2) {
  constexpr T kEmpty = -std::numeric_limits<T>::infinity();
  if (lse1 == kEmpty) return {lse2, T(0), lse2 == kEmpty ? T(0) : T(1)};
  if (lse2 == kEmpty) return {lse1, T(1), T(0)};
  const T largest = lse1 > lse2 ? lse1 : lse2;
  const T e1 = std::exp(lse1 - largest);
  const T e2 = std::exp(lse2 - largest);
  return {largest + std::log(e1 + e2), e1 / (e1 + e2), e2 / (e1 + e2)};
}

// Element c of a partial. Returns 0 without reading it if its weight is 0 or it was not given.
template <class T>
T partial_element(const TensorView& o, const char* row, T weight, std::int64_t c) {
  if (row == nullptr || weight == T(0)) return T(0);
  return LoadElement<T>(o.dtype, row + c * size_of(o.dtype));
}

template <class T>
void merge_row(const MergeArguments& a, const Place& at) {
  const Weights<T> w = weights_of(*reinterpret_cast<const T*>(stat_at(a.lse1, at)),
                                  *reinterpret_cast<const T*>(stat_at(a.lse2, at)));
  const char* row1 = tensor_at(a.o1, at);
  const char* row2 = a.o2.given() ? tensor_at(a.o2, at) : nullptr;
  char* out = tensor_at(a.o, at);
  const std::int64_t dim = a.o.shape[static_cast<std::size_t>(a.o.rank - 1)];
  for (std::int64_t c = 0; c < dim; ++c) {
    const T value =
        w.w1 * partial_element(a.o1, row1, w.w1, c) + w.w2 * partial_element(a.o2, row2, w.w2, c);
    StoreElement(a.o.dtype, out + c * size_of(a.o.dtype), value, false, false);
  }
  if (a.lse.given()) *reinterpret_cast<T*>(stat_at(a.lse, at)) = w.lse;
}

template <class T>
void merge_backward_row(const MergeBackwardArguments& a, const Place& at) {
  const Weights<T> w = weights_of(*reinterpret_cast<const T*>(stat_at(a.lse1, at)),
                                  *reinterpret_cast<const T*>(stat_at(a.lse2, at)));
  const char* dout = tensor_at(a.dout, at);
  const char* o = tensor_at(a.o, at);
  const T dlse = a.dlse.given() ? *reinterpret_cast<const T*>(stat_at(a.dlse, at)) : T(0);
  const std::int64_t dim = a.o.shape[static_cast<std::size_t>(a.o.rank - 1)];
  const auto part = [&](const TensorView& o_part, T weight, const TensorView& dout_part,
                        const TensorView& dlse_part) {
    const char* row = o_part.given() ? tensor_at(o_part, at) : nullptr;
    T sum = dlse;
    for (std::int64_t c = 0; c < dim && !(weight == T(0)); ++c) {
      const T grad = LoadElement<T>(a.dout.dtype, dout + c * size_of(a.dout.dtype));
      sum += grad * (partial_element(o_part, row, weight, c) -
                     LoadElement<T>(a.o.dtype, o + c * size_of(a.o.dtype)));
      if (dout_part.given()) {
        StoreElement(dout_part.dtype, tensor_at(dout_part, at) + c * size_of(dout_part.dtype),
                     weight * grad, false, false);
      }
    }
    if (weight == T(0)) {
      sum = T(0);
      for (std::int64_t c = 0; dout_part.given() && c < dim; ++c) {
        StoreElement(dout_part.dtype, tensor_at(dout_part, at) + c * size_of(dout_part.dtype), T(0),
                     false, false);
      }
    }
    if (dlse_part.given()) *reinterpret_cast<T*>(stat_at(dlse_part, at)) = weight * sum;
  };
  part(a.o1, w.w1, a.dout1, a.dlse1);
  part(a.o2, w.w2, a.dout2, a.dlse2);
}

template <class Row>
void each_row(const TensorView& o, std::int64_t begin, std::int64_t end, Row&& row) {
  const std::int64_t heads = o.shape[static_cast<std::size_t>(o.rank - 2)];
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t head = 0; head < heads; ++head) row(place_of(o, r, head));
  }
}

}  // namespace

void merge_rows(const MergeArguments& a, std::int64_t begin, std::int64_t end) {
  each_row(a.o, begin, end, [&](const Place& at) {
    a.lse1.dtype == DType::f64 ? merge_row<double>(a, at) : merge_row<float>(a, at);
  });
}

void merge_backward_rows(const MergeBackwardArguments& a, std::int64_t begin, std::int64_t end) {
  each_row(a.o, begin, end, [&](const Place& at) {
    a.lse1.dtype == DType::f64 ? merge_backward_row<double>(a, at)
                               : merge_backward_row<float>(a, at);
  });
}

}  // namespace attn::cpu
