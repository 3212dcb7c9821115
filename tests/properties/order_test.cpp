// Invariances: the place of a document among the others, the order of keys, the number of blocks
// that keys are streamed in, and the origin of positions.
#include <gtest/gtest.h>

#include <numeric>

#include "harness/values.hpp"
#include "layer.hpp"

namespace attn::properties {
namespace {

using harness::fill_all;
using harness::load;
using harness::store;

Problem packed_problem(DType dtype) {
  Problem p;
  p.dtype = dtype;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.dim_qk = p.dim_vo = 16;
  p.layout_q = p.layout_kv = Layout::packed;
  p.causal = true;
  p.window_left = 100;
  p.alibi = true;
  p.softcap = true;
  return p;
}

void set_lengths(Arena& arena, Problem& p, Arguments& a, const std::vector<std::int64_t>& lengths) {
  std::vector<double> starts{0.0};
  for (const std::int64_t length : lengths) {
    starts.push_back(starts.back() + static_cast<double>(length));
  }
  p.batch = static_cast<std::int64_t>(lengths.size());
  p.len_q = p.len_kv = *std::max_element(lengths.begin(), lengths.end());
  p.total_q = p.total_kv = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  a.cu_len_q = a.cu_len_kv = arena.numbers(DType::i32, starts);
}

void copy_rows(const TensorView& to, std::int64_t to_row, const TensorView& from,
               std::int64_t from_row, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t h = 0; h < to.shape[1]; ++h) {
      for (std::int64_t d = 0; d < to.shape[2]; ++d) {
        store(to, load(from, from_row + i, h, d), to_row + i, h, d);
      }
    }
  }
}

// The document of 150 rows alone, then after others, then before others.
TEST(Documents, AShiftedPackedDocumentKeepsItsBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Context context(threads_of(2));
    Arena arena;
    constexpr std::int64_t kLength = 150;
    Problem alone = packed_problem(dtype);
    alone.deterministic = true;
    Arguments lengths;
    set_lengths(arena, alone, lengths, {kLength});
    alone.len_q = alone.len_kv = 181;  // the maximum over the batches below
    Arguments a = make_layer(arena, alone);
    a.cu_len_q = a.cu_len_kv = lengths.cu_len_q;
    forward(context, alone, a);
    backward(context, alone, a);
    for (const std::vector<std::int64_t>& around :
         {std::vector<std::int64_t>{37, kLength, 181}, {181, 1, 70, kLength}, {kLength, 181}}) {
      Problem p = packed_problem(dtype);
      p.deterministic = true;
      Arguments cumulative;
      set_lengths(arena, p, cumulative, around);
      Arguments b = make_layer(arena, p);
      b.cu_len_q = b.cu_len_kv = cumulative.cu_len_q;
      std::int64_t start = 0;
      for (std::size_t n = 0; around[n] != kLength; ++n) start += around[n];
      for (const auto member : {&Arguments::q, &Arguments::k, &Arguments::v, &Arguments::dout}) {
        copy_rows(b.*member, start, a.*member, 0, kLength);
      }
      forward(context, p, b);
      backward(context, p, b);
      for (const auto member : {&Arguments::o, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
        EXPECT_TRUE(same_bits(slice(b.*member, 0, start, kLength), a.*member)) << start;
      }
      EXPECT_TRUE(same_bits(slice(b.lse, 1, start, kLength), a.lse));
    }
  }
}

// One padded row of documents separated by kv_begin and kv_end, compared with one call per
// document.
TEST(Documents, ARowOfDocumentsIsACallForEach) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Context context(threads_of(2));
    Arena arena;
    Problem p;
    p.dtype = dtype;
    p.heads_q = p.heads_kv = 2;
    p.dim_qk = p.dim_vo = 16;
    p.len_q = p.len_kv = 333;
    p.kv_begin = p.kv_end = true;
    p.alibi = true;
    Arguments a = make_layer(arena, p);
    const std::vector<std::int64_t> cuts{0, 5, 70, 199, 200, 333};
    std::vector<double> begin;
    std::vector<double> end;
    for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
      for (std::int64_t i = cuts[n]; i < cuts[n + 1]; ++i) {
        begin.push_back(static_cast<double>(cuts[n]));
        end.push_back(static_cast<double>(cuts[n + 1]));
      }
    }
    const auto one_row = [](TensorView view) {
      view.rank = 2;
      view.shape[1] = view.shape[0];
      view.shape[0] = 1;
      view.strides = {view.shape[1], 1, 0, 0};
      return view;
    };
    a.kv_begin = one_row(arena.numbers(DType::i32, begin));
    a.kv_end = one_row(arena.numbers(DType::i32, end));
    forward(context, p, a);
    backward(context, p, a);
    Problem single = p;
    single.kv_begin = single.kv_end = false;
    for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
      const std::int64_t first = cuts[n];
      const std::int64_t count = cuts[n + 1] - first;
      single.len_q = single.len_kv = count;
      Arguments b = a;
      b.kv_begin = b.kv_end = {};
      for (const auto member : {&Arguments::q, &Arguments::k, &Arguments::v, &Arguments::dout,
                                &Arguments::o, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
        b.*member = arena.copy(slice(a.*member, 1, first, count));
      }
      b.lse = arena.copy(slice(a.lse, 2, first, count));
      forward(context, single, b);
      backward(context, single, b);
      for (const auto member : {&Arguments::o, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
        EXPECT_LE(difference(slice(a.*member, 1, first, count), b.*member), 2 * close(dtype)) << n;
      }
    }
  }
}

Problem plain_problem(DType dtype, std::int64_t len_q, std::int64_t len_kv) {
  Problem p;
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = p.heads_kv = 2;
  p.dim_qk = 24;
  p.dim_vo = 40;
  p.len_q = len_q;
  p.len_kv = len_kv;
  return p;
}

TEST(Order, PermutingKeysPermutesNothingInO) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Context context(threads_of(2));
    Arena arena;
    const Problem p = plain_problem(dtype, 100, 301);
    const Arguments a = make_layer(arena, p);
    forward(context, p, a);
    backward(context, p, a);
    Arguments b = make_layer(arena, p);
    const auto from = [&](std::int64_t j) { return j * 97 % 301; };
    const auto permute = [&](const TensorView& to, const TensorView& view) {
      for (std::int64_t n = 0; n < p.batch * p.heads_kv * view.shape[3]; ++n) {
        const std::int64_t d = n % view.shape[3];
        const std::int64_t h = n / view.shape[3] % p.heads_kv;
        const std::int64_t batch = n / view.shape[3] / p.heads_kv;
        for (std::int64_t j = 0; j < p.len_kv; ++j) {
          store(to, load(view, batch, from(j), h, d), batch, j, h, d);
        }
      }
    };
    permute(b.k, a.k);
    permute(b.v, a.v);
    forward(context, p, b);
    backward(context, p, b);
    EXPECT_LE(difference(b.o, a.o), close(dtype));
    EXPECT_LE(difference(b.lse, a.lse), close(dtype));
    EXPECT_LE(difference(b.dq, a.dq), close(dtype));
    const TensorView dk = arena.copy(a.dk);
    permute(dk, a.dk);
    EXPECT_LE(difference(b.dk, dk), close(dtype));
    const TensorView dv = arena.copy(a.dv);
    permute(dv, a.dv);
    EXPECT_LE(difference(b.dv, dv), close(dtype));
  }
}

// Thirty keys in one block, and the same thirty over many blocks between hidden keys.
TEST(Order, StreamingEqualsOneBlock) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Context context(threads_of(2));
    Arena arena;
    const Problem dense = plain_problem(dtype, 50, 30);
    const Arguments a = make_layer(arena, dense);
    forward(context, dense, a);
    backward(context, dense, a);
    constexpr std::int64_t kGap = 17;
    Problem sparse = plain_problem(dtype, 50, 30 * kGap);
    sparse.mask = {true, false, false, false, true};
    Arguments b = make_layer(arena, sparse);
    fill_all(b.mask, [](std::uint64_t j) { return j % kGap == 11 ? 1.0 : 0.0; });
    for (std::int64_t batch = 0; batch < dense.batch; ++batch) {
      for (std::int64_t j = 0; j < 30; ++j) {
        for (std::int64_t n = 0; n < 2 * 40; ++n) {
          store(b.v, load(a.v, batch, j, n / 40, n % 40), batch, j * kGap + 11, n / 40, n % 40);
        }
        for (std::int64_t n = 0; n < 2 * 24; ++n) {
          store(b.k, load(a.k, batch, j, n / 24, n % 24), batch, j * kGap + 11, n / 24, n % 24);
        }
      }
    }
    forward(context, sparse, b);
    backward(context, sparse, b);
    const double bound = dtype == DType::bf16 ? 0x1p-7 : close(dtype);
    EXPECT_LE(difference(b.o, a.o), bound);
    EXPECT_LE(difference(b.lse, a.lse), bound);
    EXPECT_LE(difference(b.dq, a.dq), bound);
    for (std::int64_t j = 0; j < 30; ++j) {
      EXPECT_LE(difference(slice(b.dv, 1, j * kGap + 11, 1), slice(a.dv, 1, j, 1)), 2 * bound);
    }
    const TensorView hidden = slice(b.dk, 1, 0, 11);
    const TensorView zero = arena.copy(hidden);
    set_zero(zero);
    EXPECT_EQ(difference(hidden, zero), 0.0);
  }
}

// A mask that hides whole tiles of keys, and the same pairs hidden by causal.
TEST(Order, CausalAsAMaskEqualsCausal) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const std::int64_t len : {90, 333}) {
      Context context(threads_of(2));
      Arena arena;
      Problem causal = plain_problem(dtype, len, len);
      causal.causal = true;
      const Arguments a = make_layer(arena, causal);
      forward(context, causal, a);
      backward(context, causal, a);
      Problem masked = plain_problem(dtype, len, len);
      masked.mask = {true, false, false, true, true};
      const Arguments b = make_layer(arena, masked);
      const auto n = static_cast<std::uint64_t>(len);
      fill_all(b.mask, [n](std::uint64_t at) { return at % n <= at / n % n ? 1.0 : 0.0; });
      forward(context, masked, b);
      backward(context, masked, b);
      const double bound = dtype == DType::bf16 ? 0x1p-7 : close(dtype);
      EXPECT_LE(difference(b.o, a.o), bound);
      EXPECT_LE(difference(b.lse, a.lse), bound);
      EXPECT_LE(difference(b.dq, a.dq), bound);
      EXPECT_LE(difference(b.dk, a.dk), bound);
      EXPECT_LE(difference(b.dv, a.dv), bound);
    }
  }
}

TEST(Rope, AndItsInverseAreTheIdentity) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const Rope style : {Rope::half, Rope::interleaved}) {
      for (const std::int64_t rot_dim : {0, 2, 10}) {
        Context context(threads_of(2));
        Arena arena;
        RopeArguments r;
        r.x = arena.normal(dtype, {2, 77, 3, 24}, "x");
        r.out = arena.empty(dtype, {2, 77, 3, 24});
        r.style = style;
        r.rot_dim = rot_dim;
        r.pos_offset = 1000;
        rope(context, r);
        EXPECT_GE(difference(r.out, r.x), 0.1);
        const TensorView x = r.x;
        r.x = r.out;  // in place
        r.inverse = true;
        rope(context, r);
        EXPECT_LE(difference(r.out, x), dtype == DType::f64 ? 1e-14 : 5e-7);
      }
    }
  }
}

// A row gets the same bits alone as among others, by an explicit position as by its place, and they
// are those of exact angles.
TEST(Rope, DependsOnThePositionAlone) {
  for (const Rope style : {Rope::half, Rope::interleaved}) {
    for (const std::int64_t first : {0, 7, -40, (1 << 20) - 61}) {
      for (const std::int64_t rot_dim : {0, 6, 34}) {
        Context context(threads_of(2));
        Arena arena;
        RopeArguments r;
        r.x = arena.normal(DType::f32, {1, 150, 2, 72}, "x");
        r.out = arena.empty(DType::f32, {1, 150, 2, 72});
        r.style = style;
        r.rot_dim = rot_dim;
        r.pos_offset = first;
        rope(context, r);

        RopeArguments reversed = r;
        reversed.out = arena.empty(DType::f32, {1, 150, 2, 72});
        reversed.x = arena.copy(r.x);
        std::vector<double> positions(150);
        for (std::int64_t i = 0; i < 150; ++i) {
          positions[static_cast<std::size_t>(149 - i)] = static_cast<double>(first + i);
          for (std::int64_t n = 0; n < 2 * 72; ++n) {
            store(reversed.x, load(r.x, 0, i, n / 72, n % 72), 0, 149 - i, n / 72, n % 72);
          }
        }
        TensorView order = arena.numbers(DType::i32, positions);
        order.rank = 2;
        order.shape[0] = 1;
        order.shape[1] = 150;
        order.strides[0] = 150;
        order.strides[1] = 1;
        reversed.positions = order;
        reversed.pos_offset = 0;
        rope(context, reversed);

        RopeArguments exact = r;
        exact.x = arena.copy(r.x, DType::f64);
        exact.out = arena.empty(DType::f64, {1, 150, 2, 72});
        rope(context, exact);
        for (std::int64_t i = 0; i < 150; ++i) {
          EXPECT_TRUE(same_bits(slice(r.out, 1, i, 1), slice(reversed.out, 1, 149 - i, 1)))
              << first << " " << i;
        }
        EXPECT_LE(difference(r.out, exact.out), 1e-7);
      }
    }
  }
}

// Angles are relative: the start of positions does not matter, and rotating before the call is the
// same.
TEST(Rope, InAttentionIsRelativeAndTheSameAsAhead) {
  Context context(threads_of(2));
  Arena arena;
  Problem p = plain_problem(DType::f64, 70, 130);
  p.rope = Rope::half;
  Arguments a = make_layer(arena, p);
  forward(context, p, a);
  backward(context, p, a);
  Arguments b = a;
  for (const auto member :
       {&Arguments::o, &Arguments::lse, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
    b.*member = arena.copy(a.*member);
    set_zero(b.*member);
  }
  b.rope_pos_offset = 12345;
  forward(context, p, b);
  backward(context, p, b);
  EXPECT_LE(difference(b.o, a.o), 1e-10);
  EXPECT_LE(difference(b.dq, a.dq), 1e-10);
  EXPECT_LE(difference(b.dk, a.dk), 1e-10);

  Problem ahead = p;
  ahead.rope = Rope::none;
  RopeArguments r;
  r.x = a.q;
  r.out = arena.copy(a.q);
  r.pos_offset = p.len_kv - p.len_q;
  rope(context, r);
  Arguments c = b;
  c.q = r.out;
  c.rope_pos_offset = 0;
  r.x = a.k;
  r.out = arena.copy(a.k);
  r.pos_offset = 0;
  rope(context, r);
  c.k = r.out;
  forward(context, ahead, c);
  EXPECT_LE(difference(c.o, a.o), 1e-12);
  backward(context, ahead, c);
  r.x = r.out = c.dq;
  r.inverse = true;
  r.pos_offset = p.len_kv - p.len_q;
  rope(context, r);
  EXPECT_LE(difference(c.dq, a.dq), 1e-12);
}

}  // namespace
}  // namespace attn::properties
