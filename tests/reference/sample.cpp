// Implements sample.hpp.
#include "sample.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "memory.hpp"
#include "reference/reference.hpp"

namespace attn::reference::test {

namespace {

std::int64_t integer(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  return count;
}

template <class T>
TensorView view_of(const std::vector<T>& memory, DType dtype,
                   const std::vector<std::int64_t>& shape) {
  TensorView view;
  view.data = const_cast<T*>(memory.data());
  view.dtype = dtype;
  view.rank = static_cast<std::int32_t>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    view.shape[dim] = shape[dim];
    view.strides[dim] = stride;
    stride *= shape[dim];
  }
  return view;
}

std::vector<std::int64_t> pair_shape(const Problem& p, const Extent& extent) {
  return {extent.entries(p.batch), extent.head ? p.heads_q : 1, extent.q ? p.len_q : 1,
          extent.kv ? p.len_kv : 1};
}

std::vector<std::int64_t> row_shape(Layout layout, std::int64_t batch, std::int64_t total,
                                    std::int64_t len, std::int64_t heads, std::int64_t dim) {
  if (layout == Layout::packed) return {total, heads, dim};
  return {batch, len, heads, dim};
}

// A bias with its gradient; the flags say which dimensions it does not broadcast.
auto bias(bool batch, bool head, bool q, bool kv) {
  return [=](Setting& s) {
    s.problem.bias = {true, batch, head, q, kv};
    s.problem.dbias = true;
  };
}

}  // namespace

double uniform(std::mt19937_64& random, double low, double high) {
  return low + (high - low) * static_cast<double>(random() >> 11) * 0x1p-53;
}

Setting small_setting() {
  Setting setting;
  Problem& p = setting.problem;
  p.dtype = DType::f64;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.len_q = 5;
  p.len_kv = 7;
  p.dim_qk = 4;
  p.dim_vo = 3;
  p.dlse = true;
  setting.numbers.softcap = 1.5;
  setting.numbers.dropout_p = 0.3;
  setting.numbers.seed = 0x123456789abcdef0;
  setting.numbers.offset = 0x0fedcba987654321;
  return setting;
}

const std::vector<Option>& options() {
  static const std::vector<Option> list = {
      {"mha", [](Setting& s) { s.problem.heads_kv = 4; }},
      {"mqa", [](Setting& s) { s.problem.heads_kv = 1; }},
      {"long_q", [](Setting& s) { s.problem.len_q = 9; }},
      {"one_query", [](Setting& s) { s.problem.len_q = 1; }},
      {"one_key", [](Setting& s) { s.problem.len_kv = 1; }},
      {"scale", [](Setting& s) { s.numbers.scale = -0.7; }},
      {"no_dlse", [](Setting& s) { s.problem.dlse = false; }},
      {"delta",
       [](Setting& s) {
         s.problem.delta = true;
         s.problem.dlse = false;
       }},
      {"causal", [](Setting& s) { s.problem.causal = true; }},
      {"top_left", [](Setting& s) { s.problem.diagonal = Diagonal::top_left; }},
      {"diag",
       [](Setting& s) {
         s.problem.diagonal = Diagonal::explicit_value;
         s.numbers.diag = -1;
       }},
      {"origin",
       [](Setting& s) {
         s.problem.diagonal = Diagonal::explicit_value;
         s.numbers.origin = {3, 2, 13, 11, 9};
       }},
      {"window_left", [](Setting& s) { s.problem.window_left = 2; }},
      {"window",
       [](Setting& s) {
         s.problem.window_left = 1;
         s.problem.window_right = 0;
       }},
      {"kv_begin", [](Setting& s) { s.problem.kv_begin = true; }},
      {"kv_end", [](Setting& s) { s.problem.kv_end = true; }},
      {"mask", [](Setting& s) { s.problem.mask = {true, true, true, true, true}; }},
      {"mask_bk", [](Setting& s) { s.problem.mask = {true, true, false, false, true}; }},
      {"softcap", [](Setting& s) { s.problem.softcap = true; }},
      {"alibi", [](Setting& s) { s.problem.alibi = true; }},
      {"bias_bhqk", bias(true, true, true, true)},
      {"bias_hqk", bias(false, true, true, true)},
      {"bias_bk", bias(true, false, false, true)},
      {"bias_q", bias(false, false, true, false)},
      {"bias_bh", bias(true, true, false, false)},
      {"bias_1", bias(false, false, false, false)},
      {"sink",
       [](Setting& s) {
         s.problem.sink = true;
         s.problem.dsink = true;
       }},
      {"dropout", [](Setting& s) { s.problem.dropout = true; }},
      {"rope_half", [](Setting& s) { s.problem.rope = Rope::half; }},
      {"rope_interleaved",
       [](Setting& s) {
         s.problem.rope = Rope::interleaved;
         s.problem.rot_dim = 2;
         s.numbers.rope_base = 100.0;
         s.numbers.rope_pos_offset = 5;
       }},
      {"rope_tables",
       [](Setting& s) {
         if (s.problem.rope == Rope::none) s.problem.rope = Rope::half;
         s.problem.rope_tables = true;
       }},
      {"rope_positions",
       [](Setting& s) {
         if (s.problem.rope == Rope::none) s.problem.rope = Rope::interleaved;
         s.problem.rope_positions = true;
       }},
      {"lengths_q", [](Setting& s) { s.problem.lengths_q = true; }},
      {"lengths_kv", [](Setting& s) { s.problem.lengths_kv = true; }},
      {"packed_q", [](Setting& s) { s.problem.layout_q = Layout::packed; }},
      {"packed_kv", [](Setting& s) { s.problem.layout_kv = Layout::packed; }},
  };
  return list;
}

std::vector<double> Sample::numbers(std::mt19937_64& random, std::int64_t count) const {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = uniform(random, -1.5, 1.5);
  return values;
}

Sample::Sample(const Setting& setting, std::uint64_t seed)
    : problem(setting.problem), arguments(setting.numbers) {
  std::mt19937_64 random(seed);
  make_lengths(random);
  Problem& p = problem;
  const auto shape_q = [&](std::int64_t dim) {
    return row_shape(p.layout_q, p.batch, p.total_q, p.len_q, p.heads_q, dim);
  };
  const auto shape_kv = [&](std::int64_t dim) {
    return row_shape(p.layout_kv, p.batch, p.total_kv, p.len_kv, p.heads_kv, dim);
  };
  q = numbers(random, count_of(shape_q(p.dim_qk)));
  k = numbers(random, count_of(shape_kv(p.dim_qk)));
  v = numbers(random, count_of(shape_kv(p.dim_vo)));
  dout = numbers(random, count_of(shape_q(p.dim_vo)));
  o.assign(dout.size(), kNaN);
  const std::vector<std::int64_t> shape_lse =
      p.layout_q == Layout::packed ? std::vector<std::int64_t>{p.heads_q, p.total_q}
                                   : std::vector<std::int64_t>{p.batch, p.heads_q, p.len_q};
  lse.assign(static_cast<std::size_t>(count_of(shape_lse)), kNaN);
  dlse = numbers(random, count_of(shape_lse));
  if (!p.dlse && !p.delta) std::fill(dlse.begin(), dlse.end(), 0.0);
  delta.assign(lse.size(), kNaN);

  for (std::size_t e = 0; e < q.size(); ++e) {
    if (!query_counts(e)) q[e] = kNaN;
  }
  for (std::size_t e = 0; e < k.size(); ++e) {
    if (!key_counts(e)) k[e] = kNaN;
  }
  for (std::size_t e = 0; e < v.size(); ++e) {
    if (!key_counts(e / static_cast<std::size_t>(p.dim_vo) * static_cast<std::size_t>(p.dim_qk))) {
      v[e] = kNaN;
    }
  }
  for (std::size_t e = 0; e < dout.size(); ++e) {
    if (!query_counts(e / static_cast<std::size_t>(p.dim_vo) *
                      static_cast<std::size_t>(p.dim_qk))) {
      dout[e] = kNaN;
    }
  }

  arguments.q = view_of(q, DType::f64, shape_q(p.dim_qk));
  arguments.k = view_of(k, DType::f64, shape_kv(p.dim_qk));
  arguments.v = view_of(v, DType::f64, shape_kv(p.dim_vo));
  arguments.o = view_of(o, DType::f64, shape_q(p.dim_vo));
  arguments.dout = view_of(dout, DType::f64, shape_q(p.dim_vo));
  arguments.lse = view_of(lse, DType::f64, shape_lse);
  if (p.dlse) arguments.dlse = view_of(dlse, DType::f64, shape_lse);
  if (p.delta) arguments.delta = view_of(delta, DType::f64, shape_lse);
  make_options(random);
  make_gradients();
}

void Sample::make_lengths(std::mt19937_64& random) {
  Problem& p = problem;
  const auto make = [&](Layout layout, bool& given, std::int64_t longest, std::int64_t& total,
                        std::vector<std::int32_t>& lengths, std::vector<std::int32_t>& cumulative,
                        std::vector<bool>& counts) {
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(p.batch), longest);
    if (layout == Layout::packed) given = false;
    if (given || layout == Layout::packed) {
      // The first sequence never has the maximum length and is empty in one of four samples.
      for (std::int64_t& length : chosen) length = integer(random, 1, longest);
      chosen[0] =
          random() % 4 == 0 ? 0 : std::min(chosen[0], std::max<std::int64_t>(longest - 1, 1));
    }
    if (layout == Layout::packed) {
      // One row before and one after all sequences.
      total = 2;
      cumulative = {1};
      counts = {false};
      for (const std::int64_t length : chosen) {
        total += length;
        cumulative.push_back(cumulative.back() + static_cast<std::int32_t>(length));
        counts.insert(counts.end(), static_cast<std::size_t>(length), true);
      }
      counts.push_back(false);
      return;
    }
    for (const std::int64_t length : chosen) {
      lengths.push_back(static_cast<std::int32_t>(length));
      for (std::int64_t row = 0; row < longest; ++row) counts.push_back(row < length);
    }
  };
  make(p.layout_q, p.lengths_q, p.len_q, p.total_q, len_q, cu_len_q, row_q_counts_);
  make(p.layout_kv, p.lengths_kv, p.len_kv, p.total_kv, len_kv, cu_len_kv, row_kv_counts_);
  if (p.lengths_q) arguments.len_q = view_of(len_q, DType::i32, {p.batch});
  if (p.lengths_kv) arguments.len_kv = view_of(len_kv, DType::i32, {p.batch});
  if (p.layout_q == Layout::packed) {
    arguments.cu_len_q = view_of(cu_len_q, DType::i32, {p.batch + 1});
  }
  if (p.layout_kv == Layout::packed) {
    arguments.cu_len_kv = view_of(cu_len_kv, DType::i32, {p.batch + 1});
  }
}

void Sample::make_options(std::mt19937_64& random) {
  Problem& p = problem;
  Arguments& a = arguments;
  const auto integers = [&](std::int64_t count, std::int64_t low, std::int64_t high) {
    std::vector<std::int32_t> values;
    for (std::int64_t n = 0; n < count; ++n) {
      values.push_back(static_cast<std::int32_t>(integer(random, low, high)));
    }
    return values;
  };
  const auto per_row = [&](Layout layout, std::int64_t total, std::int64_t batch,
                           std::int64_t len) {
    return layout == Layout::packed ? std::vector<std::int64_t>{total}
                                    : std::vector<std::int64_t>{batch, len};
  };
  const std::vector<std::int64_t> per_query = per_row(p.layout_q, p.total_q, p.batch, p.len_q);

  if (p.kv_begin) {
    kv_begin = integers(count_of(per_query), -2, p.len_kv - 1);
    a.kv_begin = view_of(kv_begin, DType::i32, per_query);
  }
  if (p.kv_end) {
    const std::vector<std::int64_t> shared = per_row(p.layout_q, p.total_q, 1, p.len_q);
    kv_end = integers(count_of(shared), 0, p.len_kv + 2);
    a.kv_end = view_of(kv_end, DType::i32, shared);
  }
  if (p.mask.given) {
    const std::vector<std::int64_t> shape = pair_shape(p, p.mask);
    for (std::int64_t n = 0; n < count_of(shape); ++n) {
      mask.push_back(static_cast<std::uint8_t>(random() % 3));
    }
    a.mask = view_of(mask, DType::u8, shape);
  }
  if (p.bias.given) {
    bias = numbers(random, count_of(pair_shape(p, p.bias)));
    if (bias.size() > 4) bias[2] = -std::numeric_limits<double>::infinity();
    a.bias = view_of(bias, DType::f64, pair_shape(p, p.bias));
  }
  if (p.alibi) {
    slopes = numbers(random, p.batch * p.heads_q);
    a.alibi_slopes = view_of(slopes, DType::f64, {p.batch, p.heads_q});
  }
  if (p.sink) {
    sinks = numbers(random, p.heads_q);
    sinks[1] = -std::numeric_limits<double>::infinity();
    a.sinks = view_of(sinks, DType::f64, {p.heads_q});
  }
  if (p.rope_tables) {
    // Arbitrary numbers: the map stays linear, and the gradient test needs nothing else.
    const std::int64_t width = p.rotary_dim() / 2;
    cos = numbers(random, 6 * width);
    sin = numbers(random, 6 * width);
    a.rope_cos = view_of(cos, DType::f64, {6, width});
    a.rope_sin = view_of(sin, DType::f64, {6, width});
  }
  if (p.rope_positions) {
    pos_q = integers(count_of(per_query), -3, 12);
    a.rope_pos_q = view_of(pos_q, DType::i32, per_query);
    const std::vector<std::int64_t> per_key = per_row(p.layout_kv, p.total_kv, 1, p.len_kv);
    pos_k = integers(count_of(per_key), -3, 12);
    a.rope_pos_k = view_of(pos_k, DType::i32, per_key);
  }
}

void Sample::make_gradients() {
  const auto like = [](const TensorView& view, std::vector<double>& memory) {
    const std::vector<std::int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
    memory.assign(static_cast<std::size_t>(count_of(shape)), kNaN);
    return view_of(memory, DType::f64, shape);
  };
  arguments.dq = like(arguments.q, dq);
  arguments.dk = like(arguments.k, dk);
  arguments.dv = like(arguments.v, dv);
  if (problem.dbias) arguments.dbias = like(arguments.bias, dbias);
  if (problem.dsink) arguments.dsink = like(arguments.sinks, dsink);
}

std::string Sample::run_forward() {
  std::string found = forward(problem, arguments);
  if (!found.empty()) return found;
  const auto dim = static_cast<std::size_t>(problem.dim_vo);
  const bool packed = problem.layout_q == Layout::packed;
  const auto heads = static_cast<std::size_t>(problem.heads_q);
  const auto rows = static_cast<std::size_t>(packed ? problem.total_q : problem.len_q);
  for (std::size_t at = 0; at < lse.size(); ++at) {
    const std::size_t i = at % rows;
    const std::size_t h = at / rows % heads;
    const std::size_t b = at / rows / heads;
    if (std::isinf(lse[at])) {
      dlse[at] = kNaN;
      delta[at] = kNaN;
      continue;
    }
    delta[at] = -dlse[at];
    for (std::size_t c = 0; c < dim; ++c) {
      const std::size_t e = ((b * rows + i) * heads + h) * dim + c;
      delta[at] += o[e] * dout[e];
    }
  }
  return "";
}

std::string Sample::run_backward() {
  Arguments given = arguments;
  if (problem.delta) given.o = TensorView{};
  return backward(problem, given);
}

double Sample::loss() const {
  double sum = 0.0;
  for (std::size_t e = 0; e < o.size(); ++e) {
    if (!std::isnan(dout[e])) sum += o[e] * dout[e];
  }
  for (std::size_t at = 0; at < lse.size(); ++at) {
    if (!std::isinf(lse[at])) sum += lse[at] * dlse[at];
  }
  return sum;
}

bool Sample::query_counts(std::size_t element_of_q) const {
  return row_q_counts_[element_of_q / static_cast<std::size_t>(problem.heads_q * problem.dim_qk)];
}

bool Sample::key_counts(std::size_t element_of_k) const {
  return row_kv_counts_[element_of_k / static_cast<std::size_t>(problem.heads_kv * problem.dim_qk)];
}

}  // namespace attn::reference::test
