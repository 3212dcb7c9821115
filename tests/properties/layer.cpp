// Implements layer.hpp.
#include "layer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness/values.hpp"

namespace attn::properties {

using harness::fill_all;
using harness::load;
using harness::num_elements;
using harness::read_all;

ContextOptions threads_of(std::int32_t threads) {
  ContextOptions options;
  options.threads = threads;
  return options;
}

TensorView Arena::empty(DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView view = TensorView::contiguous(nullptr, dtype, shape);
  const std::int64_t bytes = num_elements(view) * size_of(dtype);
  memory_.emplace_back(static_cast<std::size_t>(bytes) + 1, std::byte{0xFF});
  view.data = memory_.back().data();
  return view;
}

TensorView Arena::normal(DType dtype, std::initializer_list<std::int64_t> shape,
                         const std::string& name) {
  const TensorView view = empty(dtype, shape);
  fill_all(view, [stream = harness::stream_of(name)](std::uint64_t n) {
    return harness::hash_normal(1, stream, n);
  });
  return view;
}

TensorView Arena::numbers(DType dtype, const std::vector<double>& values) {
  const TensorView view = empty(dtype, {static_cast<std::int64_t>(values.size())});
  fill_all(view, [&](std::uint64_t n) { return values[n]; });
  return view;
}

TensorView Arena::copy(const TensorView& from, DType dtype) {
  TensorView view = from;
  if (dtype != DType::none) view.dtype = dtype;
  const std::vector<double> values = read_all(from);
  memory_.emplace_back(values.size() * static_cast<std::size_t>(size_of(view.dtype)) + 1);
  view.data = memory_.back().data();
  view.offset_bytes = 0;
  std::int64_t stride = 1;
  for (auto dim = static_cast<std::size_t>(view.rank); dim-- > 0;) {
    view.strides[dim] = stride;
    stride *= view.shape[dim];
  }
  fill_all(view, [&](std::uint64_t n) { return values[n]; });
  return view;
}

Arguments make_layer(Arena& arena, const Problem& p) {
  const DType statistics = p.statistics_type();
  const bool packed_q = p.layout_q == Layout::packed;
  const bool packed_kv = p.layout_kv == Layout::packed;
  const auto rows = [&](bool packed, std::int64_t total, std::int64_t len, std::int64_t heads,
                        std::int64_t dim, DType dtype, const char* name) {
    const bool filled = name != nullptr;
    if (packed) {
      return filled ? arena.normal(dtype, {total, heads, dim}, name)
                    : arena.empty(dtype, {total, heads, dim});
    }
    return filled ? arena.normal(dtype, {p.batch, len, heads, dim}, name)
                  : arena.empty(dtype, {p.batch, len, heads, dim});
  };
  const auto queries = [&](std::int64_t dim, DType dtype, const char* name) {
    return rows(packed_q, p.total_q, p.len_q, p.heads_q, dim, dtype, name);
  };
  const auto keys = [&](std::int64_t dim, DType dtype, const char* name) {
    return rows(packed_kv, p.total_kv, p.len_kv, p.heads_kv, dim, dtype, name);
  };
  Arguments a;
  a.q = queries(p.dim_qk, p.dtype, "q");
  a.k = keys(p.dim_qk, p.kv_type(), "k");
  a.v = keys(p.dim_vo, p.kv_type(), "v");
  a.o = queries(p.dim_vo, p.out_type(), nullptr);
  a.dout = queries(p.dim_vo, p.out_type(), "dout");
  a.lse = packed_q ? arena.empty(statistics, {p.heads_q, p.total_q})
                   : arena.empty(statistics, {p.batch, p.heads_q, p.len_q});
  if (p.dq) a.dq = queries(p.dim_qk, p.grad_type(), nullptr);
  if (p.dk) a.dk = keys(p.dim_qk, p.grad_type(), nullptr);
  if (p.dv) a.dv = keys(p.dim_vo, p.grad_type(), nullptr);
  const auto size = [&](const Extent& e, int dim) {
    const bool full[] = {e.batch, e.head, e.q, e.kv};
    const std::int64_t sizes[] = {p.batch, p.heads_q, p.len_q, p.len_kv};
    return full[dim] ? sizes[dim] : 1;
  };
  if (p.bias.given) {
    a.bias =
        arena.normal(p.bias_type(),
                     {size(p.bias, 0), size(p.bias, 1), size(p.bias, 2), size(p.bias, 3)}, "bias");
    if (p.dbias) {
      a.dbias = arena.empty(p.dbias_type(),
                            {size(p.bias, 0), size(p.bias, 1), size(p.bias, 2), size(p.bias, 3)});
    }
  }
  if (p.mask.given) {
    a.mask = arena.empty(DType::u8,
                         {size(p.mask, 0), size(p.mask, 1), size(p.mask, 2), size(p.mask, 3)});
    fill_all(a.mask, [](std::uint64_t n) { return harness::hash(1, 2, n) % 3 == 0 ? 0.0 : 1.0; });
  }
  if (p.alibi) {
    a.alibi_slopes = arena.empty(statistics, {p.heads_q});
    fill_all(a.alibi_slopes, [](std::uint64_t n) { return 0.5 / static_cast<double>(n + 1); });
  }
  if (p.sink) {
    a.sinks = arena.normal(statistics, {p.heads_q}, "sinks");
    if (p.dsink) a.dsink = arena.empty(statistics, {p.heads_q});
  }
  if (p.dlse) {
    a.dlse = packed_q ? arena.normal(statistics, {p.heads_q, p.total_q}, "dlse")
                      : arena.normal(statistics, {p.batch, p.heads_q, p.len_q}, "dlse");
  }
  if (p.softcap) a.softcap = 3.0;
  if (p.dropout) {
    a.dropout_p = 0.25;
    a.seed = Value<std::uint64_t>(0x123456789ABCDEFu);
    a.offset = Value<std::uint64_t>(77);
  }
  return a;
}

TensorView slice(TensorView view, int dim, std::int64_t first, std::int64_t count) {
  const auto at = static_cast<std::size_t>(dim);
  view.offset_bytes += first * view.strides[at] * size_of(view.dtype);
  view.shape[at] = count;
  return view;
}

double difference(const TensorView& a, const TensorView& b) {
  const std::vector<double> x = read_all(a);
  const std::vector<double> y = read_all(b);
  if (x.size() != y.size()) return std::numeric_limits<double>::infinity();
  double largest = 0.0;
  double error = 0.0;
  for (std::size_t n = 0; n < x.size(); ++n) {
    if (x[n] == y[n]) {
      if (std::isfinite(y[n])) largest = std::max(largest, std::fabs(y[n]));
      continue;
    }
    const double apart = std::fabs(x[n] - y[n]);
    if (!(apart <= std::numeric_limits<double>::max())) {
      return std::numeric_limits<double>::infinity();
    }
    error = std::max(error, apart);
    largest = std::max(largest, std::fabs(y[n]));
  }
  return error == 0.0 ? 0.0 : error / largest;
}

bool same_bits(const TensorView& a, const TensorView& b) {
  const std::vector<double> x = read_all(a);
  const std::vector<double> y = read_all(b);
  return std::equal(x.begin(), x.end(), y.begin(), y.end(), [](double left, double right) {
    return left == right ? std::signbit(left) == std::signbit(right)
                         : std::isnan(left) && std::isnan(right);
  });
}

void add(const TensorView& to, const TensorView& from) {
  const std::vector<double> x = read_all(to);
  const std::vector<double> y = read_all(from);
  fill_all(to, [&](std::uint64_t n) { return x[n] + y[n]; });
}

void set_zero(const TensorView& view) {
  fill_all(view, [](std::uint64_t) { return 0.0; });
}

double close(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : 4e-6;
}

}  // namespace attn::properties
