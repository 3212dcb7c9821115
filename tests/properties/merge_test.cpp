// Splitting the keys anywhere and merging gives the full result, forward and backward, in both ways
// that a ring can work: each part with its own lse and the merge's gradient, or with the full lse.
#include <gtest/gtest.h>

#include "harness/values.hpp"
#include "layer.hpp"

namespace attn::properties {
namespace {

Problem ring_problem(DType dtype, bool options) {
  Problem p;
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.len_q = 90;
  p.len_kv = 300;
  p.dim_qk = 24;
  p.dim_vo = 16;
  p.diagonal = Diagonal::explicit_value;
  if (options) {
    p.causal = true;
    p.window_left = 250;
    p.alibi = true;
    p.softcap = true;
    p.dropout = true;
    p.bias = {true, true, true, true, true};
    p.dbias = true;
  }
  return p;
}

constexpr std::int64_t kPlace = 210;  // position of the first query among the keys

// Keys [first, first + count) of the full problem, with separate outputs.
struct Part {
  Problem problem;
  Arguments arguments;
};

Part part_of(Arena& arena, const Problem& p, const Arguments& a, std::int64_t first,
             std::int64_t count) {
  Part part{p, a};
  part.problem.len_kv = count;
  Arguments& b = part.arguments;
  b.k = slice(a.k, 1, first, count);
  b.v = slice(a.v, 1, first, count);
  b.dk = slice(a.dk, 1, first, count);
  b.dv = slice(a.dv, 1, first, count);
  if (p.bias.given) {
    b.bias = slice(a.bias, 3, first, count);
    b.dbias = slice(a.dbias, 3, first, count);
  }
  b.origin.kv = first;
  b.o = arena.copy(a.o);
  b.lse = arena.copy(a.lse);
  b.dq = arena.copy(a.dq);
  return part;
}

class Ring : public ::testing::TestWithParam<std::tuple<DType, bool, std::int64_t>> {};

TEST_P(Ring, MergesToTheWholeAndItsGradients) {
  const auto [dtype, options, cut] = GetParam();
  Context context(threads_of(2));
  Arena arena;
  const Problem p = ring_problem(dtype, options);
  Arguments whole = make_layer(arena, p);
  whole.origin = {3, 1, kPlace, 0, 9};
  forward(context, p, whole);
  backward(context, p, whole);

  // The same tensors again for the parts; their dk, dv and dbias are slices of one tensor.
  Arguments target = whole;
  target.dk = arena.copy(whole.dk);
  target.dv = arena.copy(whole.dv);
  if (p.dbias) target.dbias = arena.copy(whole.dbias);
  harness::fill_all(target.dk, [](std::uint64_t) { return 99.0; });
  Part one = part_of(arena, p, target, 0, cut);
  Part two = part_of(arena, p, target, cut, p.len_kv - cut);
  forward(context, one.problem, one.arguments);
  forward(context, two.problem, two.arguments);
  MergeArguments m;
  m.o1 = one.arguments.o;
  m.lse1 = one.arguments.lse;
  m.o2 = two.arguments.o;
  m.lse2 = two.arguments.lse;
  m.o = arena.copy(whole.o);
  m.lse = arena.copy(whole.lse);
  harness::fill_all(m.o, [](std::uint64_t) { return 99.0; });
  merge(context, m);
  EXPECT_LE(difference(m.o, whole.o), close(dtype));
  EXPECT_LE(difference(m.lse, whole.lse), close(dtype));

  // Each part with its own o and lse.
  MergeBackwardArguments g;
  g.o1 = m.o1;
  g.lse1 = m.lse1;
  g.o2 = m.o2;
  g.lse2 = m.lse2;
  g.o = m.o;
  g.lse = m.lse;
  g.dout = whole.dout;
  g.dout1 = arena.copy(whole.dout);
  g.dout2 = arena.copy(whole.dout);
  g.dlse1 = arena.copy(whole.lse);
  g.dlse2 = arena.copy(whole.lse);
  merge_backward(context, g);
  one.arguments.dout = g.dout1;
  one.arguments.dlse = g.dlse1;
  two.arguments.dout = g.dout2;
  two.arguments.dlse = g.dlse2;
  for (Part* part : {&one, &two}) {
    part->problem.dlse = true;
    backward(context, part->problem, part->arguments);
  }
  const auto check = [&](const char* way) {
    add(one.arguments.dq, two.arguments.dq);
    EXPECT_LE(difference(one.arguments.dq, whole.dq), close(dtype)) << way;
    EXPECT_LE(difference(target.dk, whole.dk), close(dtype)) << way;
    EXPECT_LE(difference(target.dv, whole.dv), close(dtype)) << way;
    if (p.dbias) {
      EXPECT_LE(difference(target.dbias, whole.dbias), close(dtype)) << way;
    }
  };
  check("own lse");

  // Each part with the full problem's o and lse.
  harness::fill_all(target.dv, [](std::uint64_t) { return 99.0; });
  for (Part* part : {&one, &two}) {
    part->problem.dlse = false;
    part->arguments.dlse = {};
    part->arguments.dout = whole.dout;
    part->arguments.o = whole.o;
    part->arguments.lse = whole.lse;
    backward(context, part->problem, part->arguments);
  }
  check("the whole's lse");
}

INSTANTIATE_TEST_SUITE_P(Cuts, Ring,
                         ::testing::Combine(::testing::Values(DType::f32, DType::f64),
                                            ::testing::Bool(),
                                            ::testing::Values(1, 63, 64, 128, 217, 299)));

TEST(Merge, ASinkMergedLastIsASink) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Context context;
    Arena arena;
    Problem p = ring_problem(dtype, false);
    Problem with = p;
    with.sink = true;
    const Arguments whole = make_layer(arena, with);
    Arguments plain = whole;
    plain.sinks = {};
    Arguments a = whole;
    a.diag = plain.diag = 0;
    forward(context, with, a);
    plain.o = arena.copy(whole.o);
    plain.lse = arena.copy(whole.lse);
    forward(context, p, plain);
    MergeArguments m;
    m.o1 = plain.o;
    m.lse1 = plain.lse;
    m.lse2 = arena.copy(whole.lse);
    harness::fill_all(m.lse2, [&](std::uint64_t n) {
      const auto head = static_cast<std::int64_t>(n) / p.len_q % p.heads_q;
      return harness::load(whole.sinks, head);
    });
    m.o = plain.o;  // in place
    m.lse = plain.lse;
    merge(context, m);
    EXPECT_LE(difference(plain.o, a.o), close(dtype));
    EXPECT_LE(difference(plain.lse, a.lse), close(dtype));
  }
}

// A split by the caller, one call per part, compared with decode's split.
TEST(Merge, DecodeGivesTheSameHoweverItIsSplit) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    Context context;
    Arena arena;
    Problem p = ring_problem(dtype, false);
    p.len_q = 3;
    p.len_kv = 1000;
    p.diagonal = Diagonal::bottom_right;
    p.causal = true;
    p.split_keys = kSplitNone;
    Arguments a = make_layer(arena, p);
    decode(context, p, a);
    for (const std::int64_t keys : {1, 7, 64, 100, 999, 1000, 5000}) {
      Arguments b = a;
      b.o = arena.copy(a.o);
      b.lse = arena.copy(a.lse);
      set_zero(b.o);
      p.split_keys = keys;
      decode(context, p, b);
      EXPECT_LE(difference(b.o, a.o), close(dtype)) << keys;
      EXPECT_LE(difference(b.lse, a.lse), close(dtype)) << keys;
    }
  }
}

// split = keys(n): a row's bits don't depend on the batch around it.
TEST(Merge, ASplitByKeysDoesNotSeeTheBatch) {
  Context context;
  Arena arena;
  Problem p = ring_problem(DType::f32, false);
  p.batch = 5;
  p.len_q = 1;
  p.len_kv = 700;
  p.diagonal = Diagonal::bottom_right;
  p.split_keys = 128;
  const Arguments a = make_layer(arena, p);
  decode(context, p, a);
  Problem single = p;
  single.batch = 1;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    Arguments one = a;
    one.q = slice(a.q, 0, b, 1);
    one.k = slice(a.k, 0, b, 1);
    one.v = slice(a.v, 0, b, 1);
    one.o = arena.copy(slice(a.o, 0, b, 1));
    one.lse = arena.copy(slice(a.lse, 0, b, 1));
    set_zero(one.o);
    decode(context, single, one);
    EXPECT_TRUE(same_bits(one.o, slice(a.o, 0, b, 1)));
    EXPECT_TRUE(same_bits(one.lse, slice(a.lse, 0, b, 1)));
  }
}

}  // namespace
}  // namespace attn::properties
