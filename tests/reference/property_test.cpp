// Properties of the complete operation: chunks of keys merge to the full result and their gradients
// add up; the origin places chunks of queries and sequences; packed equals padded; types only
// round.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "compare.hpp"
#include "memory.hpp"
#include "reference/reference.hpp"
#include "sample.hpp"

namespace attn::reference::test {
namespace {

constexpr double kClose = 1e-13;

// Rows [first, first + count) of dimension `dim`.
TensorView slice(TensorView view, std::size_t dim, std::int64_t first, std::int64_t count) {
  view.offset_bytes += first * view.strides[dim] * 8;
  view.shape[dim] = count;
  return view;
}

// A ring's problem: causal, ALiBi, window, dropout, bias and sink over a long enough sequence.
Setting ring_setting() {
  Setting setting = small_setting();
  Problem& p = setting.problem;
  p.len_q = 12;
  p.len_kv = 15;
  p.causal = true;
  p.window_left = 9;
  p.diagonal = Diagonal::explicit_value;
  p.alibi = true;
  p.dropout = true;
  p.bias = {true, true, true, true, true};
  p.dbias = true;
  p.sink = true;
  p.dsink = true;
  setting.numbers.origin = {5, 0, 40, 38, 6};
  return setting;
}

TEST(Property, ChunksOfKeysMergeAndTheirGradientsAddUp) {
  Sample whole(ring_setting(), 5);
  ASSERT_EQ(whole.run_forward(), "");
  ASSERT_EQ(whole.run_backward(), "");
  const Problem& p = whole.problem;
  const Arguments& a = whole.arguments;

  Memory memory;
  const std::int64_t cut = 6;
  Numbers dq(whole.dq.size(), 0.0), dsink(whole.dsink.size(), 0.0);
  std::vector<TensorView> o, lse;
  const Shape shape_o(a.o.shape.begin(), a.o.shape.end());
  const Shape shape_lse(a.lse.shape.begin(), a.lse.shape.begin() + 3);
  Sample grads(ring_setting(), 5);  // dk, dv, dbias are written chunk by chunk
  for (int part = 0; part < 2; ++part) {
    const std::int64_t first = part == 0 ? 0 : cut;
    const std::int64_t count = part == 0 ? cut : p.len_kv - cut;
    Problem chunk = p;
    chunk.len_kv = count;
    chunk.sink = chunk.dsink = part == 1;  // the sink belongs to one chunk only
    Arguments b = a;
    b.k = slice(a.k, 1, first, count);
    b.v = slice(a.v, 1, first, count);
    b.bias = slice(a.bias, 3, first, count);
    if (part == 0) b.sinks = TensorView{};
    b.origin.kv += first;
    o.push_back(memory.filled(shape_o, kNaN));
    lse.push_back(memory.filled(shape_lse, kNaN));
    b.o = o.back();
    b.lse = lse.back();
    ASSERT_EQ(forward(chunk, b), "");

    // The backward reads o and lse of the full problem.
    b.o = a.o;
    b.lse = a.lse;
    b.dq = memory.filled({p.batch, p.len_q, p.heads_q, p.dim_qk}, kNaN);
    b.dk = slice(grads.arguments.dk, 1, first, count);
    b.dv = slice(grads.arguments.dv, 1, first, count);
    b.dbias = slice(grads.arguments.dbias, 3, first, count);
    b.dsink = part == 0 ? TensorView{} : grads.arguments.dsink;
    ASSERT_EQ(backward(chunk, b), "");
    const Numbers dq_part = values_of(b.dq);
    for (std::size_t e = 0; e < dq.size(); ++e) dq[e] += dq_part[e];
  }

  MergeArguments m;
  m.o1 = o[0];
  m.lse1 = lse[0];
  m.o2 = o[1];
  m.lse2 = lse[1];
  m.o = o[0];  // in place
  m.lse = lse[0];
  ASSERT_EQ(merge(m), "");
  EXPECT_TRUE(near(values_of(m.o), whole.o, kClose));
  EXPECT_TRUE(near(values_of(m.lse), whole.lse, kClose));
  EXPECT_TRUE(near(dq, whole.dq, kClose));
  EXPECT_TRUE(near(grads.dk, whole.dk, kClose));
  EXPECT_TRUE(near(grads.dv, whole.dv, kClose));
  EXPECT_TRUE(near(grads.dbias, whole.dbias, kClose));
  EXPECT_TRUE(near(grads.dsink, whole.dsink, kClose));
}

// First row and number of rows of sequence b.
std::pair<std::int64_t, std::int64_t> rows_of_sequence(Layout layout,
                                                       const std::vector<std::int32_t>& lengths,
                                                       const std::vector<std::int32_t>& cumulative,
                                                       std::size_t b) {
  if (layout == Layout::packed) return {cumulative[b], cumulative[b + 1] - cumulative[b]};
  return {0, lengths[b]};
}

// One sequence and head cut out of the problem. Its lengths come from the shapes instead of
// tensors. Its results must not change.
void check_alone(const Sample& whole, std::int64_t b, std::int64_t h) {
  Problem p = whole.problem;
  Arguments a = whole.arguments;
  const std::int64_t group = p.heads_q / p.heads_kv;
  const auto at_b = static_cast<std::size_t>(b);
  const bool packed_q = p.layout_q == Layout::packed;
  const auto [first_q, len_q] = rows_of_sequence(p.layout_q, whole.len_q, whole.cu_len_q, at_b);
  const auto [first_kv, len_kv] =
      rows_of_sequence(p.layout_kv, whole.len_kv, whole.cu_len_kv, at_b);

  // [b, n, h, d] or [total, h, d] to [1, len, 1, d].
  const auto rows = [&](TensorView view, std::int64_t first, std::int64_t len, std::int64_t head) {
    if (view.rank == 4) view = slice(view, 0, b, 1);
    if (view.rank == 3) {
      view = slice(view, 0, first, len);
      view.rank = 4;
      view.shape = {1, view.shape[0], view.shape[1], view.shape[2]};
      view.strides = {0, view.strides[0], view.strides[1], view.strides[2]};
    }
    return slice(slice(view, 1, 0, len), 2, head, 1);
  };
  // [b|1, n] or [total] integers to [1, len].
  const auto indices = [&](TensorView view, std::int64_t first, std::int64_t len) {
    if (!view.given()) return view;
    const std::int64_t at = view.rank == 2 ? (view.shape[0] == 1 ? 0 : b) * view.strides[0] : first;
    view.offset_bytes += at * 4;
    view.strides = {0, 1};
    view.rank = 2;
    view.shape = {1, len};
    return view;
  };
  const auto pairs = [&](TensorView view, Extent& extent, std::int64_t bytes) {
    if (!view.given()) return view;
    view.offset_bytes +=
        (extent.entry_of(b) * view.strides[0] + (extent.head ? h : 0) * view.strides[1]) * bytes;
    extent.batch = extent.head = false;
    extent.per_entry = 1;
    view.shape = {1, 1, extent.q ? len_q : 1, extent.kv ? len_kv : 1};
    return view;
  };
  p.batch = p.heads_q = p.heads_kv = 1;
  p.len_q = len_q;
  p.len_kv = len_kv;
  p.layout_q = p.layout_kv = Layout::padded;
  p.lengths_q = p.lengths_kv = false;
  a.origin.batch += b;
  a.origin.head += h;
  if (a.origin.heads_q == 0) a.origin.heads_q = whole.problem.heads_q;
  a.q = rows(a.q, first_q, len_q, h);
  a.k = rows(a.k, first_kv, len_kv, h / group);
  a.v = rows(a.v, first_kv, len_kv, h / group);
  a.kv_begin = indices(a.kv_begin, first_q, len_q);
  a.kv_end = indices(a.kv_end, first_q, len_q);
  a.rope_pos_q = indices(a.rope_pos_q, first_q, len_q);
  a.rope_pos_k = indices(a.rope_pos_k, first_kv, len_kv);
  a.bias = pairs(a.bias, p.bias, 8);
  a.mask = pairs(a.mask, p.mask, 1);
  if (p.alibi) {
    a.alibi_slopes = slice(slice(a.alibi_slopes, 0, b, 1), 1, h, 1);
    a.alibi_slopes.strides[0] = a.alibi_slopes.strides[1];
    a.alibi_slopes.rank = 1;
  }
  if (p.sink) a.sinks = slice(a.sinks, 0, h, 1);

  Memory memory;
  a.o = memory.filled({1, len_q, 1, p.dim_vo}, kNaN);
  a.lse = memory.filled({1, 1, len_q}, kNaN);
  ASSERT_EQ(forward(p, a), "");
  const TensorView all_o = rows(whole.arguments.o, first_q, len_q, h);
  const TensorView& all_lse = whole.arguments.lse;
  for (std::int64_t i = 0; i < len_q; ++i) {
    const std::int64_t lse_at =
        packed_q ? position_of(all_lse, {h, first_q + i}) : position_of(all_lse, {b, h, i});
    EXPECT_EQ(read(a.lse, i), read(all_lse, lse_at)) << b << " " << h << " " << i;
    for (std::int64_t c = 0; c < p.dim_vo; ++c) {
      EXPECT_EQ(read(a.o, i * p.dim_vo + c), read(all_o, position_of(all_o, {0, i, 0, c})));
    }
  }
}

TEST(Property, EachEntryAndHeadAlone) {
  std::mt19937_64 random(15);
  std::vector<std::vector<const Option*>> sets;
  for (const Option& option : options()) sets.push_back({&option});
  for (int n = 0; n < 60; ++n) {
    sets.emplace_back();
    for (const Option& option : options()) {
      if (random() % 5 == 0) sets.back().push_back(&option);
    }
  }
  for (const std::vector<const Option*>& set : sets) {
    Setting setting = small_setting();
    std::string names;
    for (const Option* option : set) {
      option->apply(setting);
      names += option->name + " ";
    }
    SCOPED_TRACE(names);
    Sample whole(setting, random());
    ASSERT_EQ(whole.run_forward(), "");
    for (std::int64_t b = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 4; ++h) check_alone(whole, b, h);
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Property, OriginPlacesQueriesBatchAndHeads) {
  Setting setting = small_setting();
  setting.problem.heads_kv = 4;
  setting.problem.len_q = 10;
  setting.problem.dropout = true;
  setting.problem.causal = true;
  setting.problem.diagonal = Diagonal::top_left;
  Sample whole(setting, 6);
  ASSERT_EQ(whole.run_forward(), "");
  const Numbers expected = whole.o;

  // Sequence 1, heads 1 and 2, queries from 3 on.
  Problem p = whole.problem;
  p.batch = 1;
  p.heads_q = p.heads_kv = 2;
  p.len_q = 7;
  p.diagonal = Diagonal::explicit_value;
  p.lse = false;
  Arguments a = whole.arguments;
  a.origin = {1, 1, 3, 0, 4};
  const auto part = [](const TensorView& view) { return slice(slice(view, 0, 1, 1), 2, 1, 2); };
  a.q = slice(part(a.q), 1, 3, 7);
  a.k = part(a.k);
  a.v = part(a.v);
  a.o = slice(part(a.o), 1, 3, 7);
  fill(a.o, kNaN);
  ASSERT_EQ(forward(p, a), "");
  EXPECT_TRUE(same(whole.o, expected));
}

TEST(Property, PackedEqualsPadded) {
  Setting setting = small_setting();
  for (const char* name : {"causal", "softcap", "dropout", "bias_hqk", "rope_half", "sink"}) {
    for (const Option& option : options()) {
      if (option.name == name) option.apply(setting);
    }
  }
  Setting packed_setting = setting;
  setting.problem.lengths_q = setting.problem.lengths_kv = true;
  packed_setting.problem.layout_q = packed_setting.problem.layout_kv = Layout::packed;
  Sample padded(setting, 8);
  Sample packed(packed_setting, 8);
  // The same lengths from the same seed; the rows are copied.
  const auto copy = [&](const TensorView& from, const TensorView& to,
                        const std::vector<std::int32_t>& cumulative, bool back) {
    for (std::int64_t b = 0; b < 2; ++b) {
      const auto start = cumulative[static_cast<std::size_t>(b)];
      const auto end = cumulative[static_cast<std::size_t>(b + 1)];
      for (std::int64_t i = 0; i < end - start; ++i) {
        for (std::int64_t e = 0; e < from.strides[1]; ++e) {
          const std::int64_t at_padded = b * from.strides[0] + i * from.strides[1] + e;
          const std::int64_t at_packed = (start + i) * to.strides[0] + e;
          if (back) write(from, at_padded, read(to, at_packed));
          if (!back) write(to, at_packed, read(from, at_padded));
        }
      }
    }
  };
  Arguments& a = padded.arguments;
  Arguments& b = packed.arguments;
  copy(a.q, b.q, packed.cu_len_q, false);
  copy(a.k, b.k, packed.cu_len_kv, false);
  copy(a.v, b.v, packed.cu_len_kv, false);
  copy(a.dout, b.dout, packed.cu_len_q, false);
  packed.problem.dlse = padded.problem.dlse = false;
  packed.bias = padded.bias;
  packed.sinks = padded.sinks;
  b.bias.data = packed.bias.data();
  b.sinks.data = packed.sinks.data();
  ASSERT_EQ(padded.run_forward(), "");
  ASSERT_EQ(packed.run_forward(), "");
  ASSERT_EQ(padded.run_backward(), "");
  ASSERT_EQ(packed.run_backward(), "");
  EXPECT_TRUE(same(packed.dbias, padded.dbias));
  EXPECT_TRUE(same(packed.dsink, padded.dsink));
  const auto unpacked = [&](const TensorView& like, const TensorView& from,
                            const std::vector<std::int32_t>& cumulative) {
    fill(like, 0.0);  // required value of rows past the lengths
    copy(like, from, cumulative, true);
    return values_of(like);
  };
  const Numbers o = padded.o, dq = padded.dq, dk = padded.dk, dv = padded.dv;
  EXPECT_TRUE(same(unpacked(a.o, b.o, packed.cu_len_q), o));
  EXPECT_TRUE(same(unpacked(a.dq, b.dq, packed.cu_len_q), dq));
  EXPECT_TRUE(same(unpacked(a.dk, b.dk, packed.cu_len_kv), dk));
  EXPECT_TRUE(same(unpacked(a.dv, b.dv, packed.cu_len_kv), dv));
}

TEST(Property, TypesOnlyRound) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Setting setting = small_setting();
    setting.problem.lengths_kv = true;
    setting.problem.bias = {true, false, true, false, true};
    setting.problem.dbias = true;
    Sample s(setting, 9);
    Arguments a = s.arguments;
    Memory memory;
    const auto narrow = [&](TensorView& view, std::vector<double>& wide) {
      const Shape shape(view.shape.begin(), view.shape.begin() + view.rank);
      const TensorView made = memory.tensor(dtype, shape, wide);
      const Numbers stored = values_of(made);
      std::copy(stored.begin(), stored.end(), wide.begin());  // the f64 sample uses these values
      view = made;
    };
    narrow(a.q, s.q);
    narrow(a.k, s.k);
    narrow(a.v, s.v);
    narrow(a.dout, s.dout);
    narrow(a.bias, s.bias);
    ASSERT_EQ(s.run_forward(), "");
    ASSERT_EQ(s.run_backward(), "");

    // f64 outputs show that no precision was lost.
    Problem p = s.problem;
    p.dtype = dtype;
    a.o = memory.filled({2, 5, 4, 3}, kNaN);
    a.dk = memory.filled({2, 7, 2, 4}, kNaN);
    ASSERT_EQ(forward(p, a), "");
    ASSERT_EQ(backward(p, a), "");
    EXPECT_TRUE(same(values_of(a.o), s.o));
    EXPECT_TRUE(same(values_of(a.dk), s.dk));

    // Outputs of the type equal these, rounded once.
    a.o = memory.filled({2, 5, 4, 3}, kNaN, dtype);
    a.dk = memory.filled({2, 7, 2, 4}, kNaN, dtype);
    const TensorView exact_o = s.arguments.o;
    ASSERT_EQ(forward(p, a), "");
    EXPECT_TRUE(same(values_of(a.o), values_of(memory.tensor(dtype, {2, 5, 4, 3}, s.o))));
    Arguments from_exact_o = a;
    from_exact_o.o = exact_o;
    ASSERT_EQ(backward(p, from_exact_o), "");
    EXPECT_TRUE(same(values_of(a.dk), values_of(memory.tensor(dtype, {2, 7, 2, 4}, s.dk))));
  }
}

TEST(Property, AccumulatingAddsEverywhere) {
  Setting setting = small_setting();
  setting.problem.lengths_q = setting.problem.lengths_kv = true;
  setting.problem.bias = {true, true, false, true, false};
  setting.problem.dbias = true;
  setting.problem.sink = setting.problem.dsink = true;
  Sample s(setting, 10);
  ASSERT_EQ(s.run_forward(), "");
  ASSERT_EQ(s.run_backward(), "");
  std::vector<std::vector<double>*> gradients = {&s.dq, &s.dk, &s.dv, &s.dbias, &s.dsink};
  std::vector<Numbers> expected;
  for (std::vector<double>* gradient : gradients) {
    expected.push_back(*gradient);
    for (double& value : expected.back()) value += 0.125;
    std::fill(gradient->begin(), gradient->end(), 0.125);
  }
  s.problem.accumulate = true;
  ASSERT_EQ(s.run_backward(), "");
  for (std::size_t n = 0; n < gradients.size(); ++n) {
    EXPECT_TRUE(same(*gradients[n], expected[n]));
  }
}

// [b, h, n, d] memory and padded strides are read and written at the strided positions.
TEST(Property, AnyStrides) {
  Sample s(small_setting(), 12);
  ASSERT_EQ(s.run_forward(), "");
  ASSERT_EQ(s.run_backward(), "");
  Memory memory;
  Arguments a = s.arguments;
  const auto scattered = [&](TensorView& view) {
    const TensorView from = view;
    const auto& n = from.shape;
    TensorView to = memory.filled({n[0], n[2], n[1], n[3] + 3}, kNaN).transposed(1, 2);
    to.shape[3] = n[3];
    for (std::int64_t b = 0; b < n[0]; ++b) {
      for (std::int64_t i = 0; i < n[1]; ++i) {
        for (std::int64_t h = 0; h < n[2]; ++h) {
          for (std::int64_t c = 0; c < n[3]; ++c) {
            write(to, position_of(to, {b, i, h, c}), read(from, position_of(from, {b, i, h, c})));
          }
        }
      }
    }
    view = to;
    return to;
  };
  const auto gathered = [](const TensorView& view) {
    Numbers values;
    for (std::int64_t b = 0; b < view.shape[0]; ++b) {
      for (std::int64_t i = 0; i < view.shape[1]; ++i) {
        for (std::int64_t h = 0; h < view.shape[2]; ++h) {
          for (std::int64_t c = 0; c < view.shape[3]; ++c) {
            values.push_back(read(view, position_of(view, {b, i, h, c})));
          }
        }
      }
    }
    return values;
  };
  for (TensorView* view : {&a.q, &a.k, &a.v, &a.dout, &a.o, &a.dq, &a.dk, &a.dv}) {
    fill(scattered(*view), kNaN);
  }
  a.q = s.arguments.q;
  a.k = s.arguments.k;
  a.v = s.arguments.v;
  a.dout = s.arguments.dout;
  for (TensorView* view : {&a.q, &a.k, &a.v, &a.dout}) scattered(*view);
  ASSERT_EQ(forward(s.problem, a), "");
  ASSERT_EQ(backward(s.problem, a), "");
  EXPECT_TRUE(same(gathered(a.o), s.o));
  EXPECT_TRUE(same(gathered(a.dq), s.dq));
  EXPECT_TRUE(same(gathered(a.dk), s.dk));
  EXPECT_TRUE(same(gathered(a.dv), s.dv));
}

}  // namespace
}  // namespace attn::reference::test
