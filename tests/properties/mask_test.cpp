// Masks with a structure: what they say as ranges of keys, with and without holes, next to the
// float64 reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "harness/values.hpp"
#include "layer.hpp"

namespace attn::properties {
namespace {

using harness::fill_all;

// Whether query i sees key j; n: entry of the mask times heads, plus head.
using Visible = std::function<bool(std::uint64_t n, std::uint64_t i, std::uint64_t j)>;
struct Pattern {
  std::string name;
  Visible visible;
};

const std::vector<Pattern>& patterns() {
  static const auto& all = *new std::vector<Pattern>{
      {"all", [](auto, auto, auto) { return true; }},
      {"none", [](auto, auto, auto) { return false; }},
      {"documents", [](auto, auto i, auto j) { return i / 37 == j / 37; }},
      {"documents of each head",
       [](auto n, auto i, auto j) { return i / (37 + n) == j / (37 + n); }},
      {"causal, every fifth row empty", [](auto, auto i, auto j) { return i % 5 != 3 && j <= i; }},
      {"window", [](auto n, auto i, auto j) { return j <= i + n && j + 40 > i; }},
      {"padding on the left", [](auto n, auto, auto j) { return j >= 61 + n; }},
      {"padding on the right", [](auto n, auto, auto j) { return j < 64 - n; }},
      {"one key", [](auto n, auto i, auto j) { return j == (i * 31 + n) % 70; }},
      {"the ends", [](auto, auto, auto j) { return j == 0 || j == 149; }},
      {"a window and a first key",
       [](auto, auto i, auto j) { return j == 0 || (j <= i && j + 20 > i); }},
      {"one hole", [](auto n, auto i, auto j) { return j != (i + n) % 150; }},
      {"a quarter at random",
       [](auto n, auto i, auto j) {
         return (n * 91 + i * 1009 + j * 7919) * 2654435761 % 97 > 24;
       }},
      {"whole words hidden", [](auto, auto i, auto j) { return (j / 64) % 2 == i % 2; }},
  };
  return all;
}

void fill_mask(const TensorView& mask, const Visible& visible) {
  const auto queries = static_cast<std::uint64_t>(mask.shape[2]);
  const auto keys = static_cast<std::uint64_t>(mask.shape[3]);
  fill_all(mask, [&](std::uint64_t at) {
    const std::uint64_t row = at / keys;
    // Any byte but 0 is true.
    return visible(row / queries, row % queries, at % keys) ? static_cast<double>(1 + at % 255)
                                                            : 0.0;
  });
}

// max |a - b|, as a part of max |b| where that is more than 1: gradients of a row with one key are
// 0 but for rounding. Infinite where one of them is not finite and the other differs.
double error(const TensorView& a, const TensorView& b) {
  const std::vector<double> x = harness::read_all(a);
  const std::vector<double> y = harness::read_all(b);
  double largest = 1.0;
  double apart = 0.0;
  for (std::size_t n = 0; n < x.size(); ++n) {
    if (x[n] == y[n]) continue;
    const double difference = std::fabs(x[n] - y[n]);
    apart = std::max(
        apart, std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity());
    largest = std::max(largest, std::fabs(y[n]));
  }
  return apart / largest;
}

// Forward and backward by the default backend of this machine's processor and by the reference.
void expect_reference(const Problem& problem, const std::string& what, const Visible& visible) {
  SCOPED_TRACE(to_string(problem) + ", " + what);
  Arena arena;
  ContextOptions options = threads_of(2);
  options.backend = "cpu";
  Context context(options);
  options.backend = "reference";
  Context reference(options);
  const Arguments a = make_layer(arena, problem);
  fill_mask(a.mask, visible);
  Arguments b = a;
  for (const auto member : {&Arguments::o, &Arguments::lse, &Arguments::dq, &Arguments::dk,
                            &Arguments::dv, &Arguments::dbias}) {
    if ((a.*member).given()) b.*member = arena.copy(a.*member);
  }
  forward(context, problem, a);
  backward(context, problem, a);
  forward(reference, problem, b);
  Arguments gradients = b;
  gradients.o = a.o;
  backward(reference, problem, gradients);
  const double bound = problem.dtype == DType::bf16  ? 0x1p-6
                       : problem.dtype == DType::f64 ? 1e-12
                                                     : 2e-5;
  for (const auto member : {&Arguments::o, &Arguments::lse, &Arguments::dq, &Arguments::dk,
                            &Arguments::dv, &Arguments::dbias}) {
    if (!(a.*member).given()) continue;
    EXPECT_LE(error(a.*member, b.*member), bound);
  }
}

Problem small_problem(DType dtype) {
  Problem p;
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.dim_qk = 24;
  p.dim_vo = 40;
  p.len_q = 150;
  p.len_kv = 150;
  return p;
}

TEST(Masks, OfEveryStructureEqualTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const Pattern& pattern : patterns()) {
      Problem p = small_problem(dtype);
      p.mask = {true, false, false, true, true};
      expect_reference(p, pattern.name, pattern.visible);
    }
  }
}

TEST(Masks, OfEveryExtentEqualTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int bits : {0, 1, 2, 3, 4, 5, 6, 7}) {
      Problem p = small_problem(dtype);
      p.mask = {true, (bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, true};
      for (const std::size_t n : {std::size_t{3}, std::size_t{6}, std::size_t{12}}) {
        expect_reference(p, patterns()[n].name, patterns()[n].visible);
      }
    }
  }
}

// Some keys are hidden from all queries by holes of the mask. Their scores must not matter, even if
// they are larger than all visible ones or not finite. (dq multiplies their dS = 0 with the key.)
TEST(Masks, HideScoresOfAnySize) {
  constexpr std::uint64_t kHidden[] = {3, 70, 100, 131};
  const auto hides = [&](std::uint64_t j) {
    return std::find(std::begin(kHidden), std::end(kHidden), j) != std::end(kHidden);
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Context context(threads_of(2));
    Arena arena;
    Problem p = small_problem(dtype);
    p.mask = {true, false, false, true, true};
    const Arguments a = make_layer(arena, p);
    fill_mask(a.mask,
              [&](auto n, auto i, auto j) { return !hides(j) && patterns()[12].visible(n, i, j); });
    Arguments b = make_layer(arena, p);
    b.mask = a.mask;
    forward(context, p, a);
    backward(context, p, a);
    for (const double value : {1e4, kInfinity, std::nan("")}) {
      SCOPED_TRACE(value);
      const std::vector<double> keys = harness::read_all(a.k);
      const auto row = static_cast<std::uint64_t>(p.heads_kv * p.dim_qk);
      fill_all(b.k, [&](std::uint64_t at) {
        const std::uint64_t j = at / row % static_cast<std::uint64_t>(p.len_kv);
        return hides(j) ? (j % 2 == 0 ? value : -value) : keys[at];
      });
      forward(context, p, b);
      if (std::isfinite(value)) backward(context, p, b);
      for (const auto member :
           {&Arguments::o, &Arguments::lse, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
        const bool gradient = member != &Arguments::o && member != &Arguments::lse;
        if (gradient && !std::isfinite(value)) continue;
        EXPECT_EQ(error(b.*member, a.*member), 0.0);
      }
    }
  }
}

TEST(Masks, BesideOtherOptionsEqualTheReference) {
  using Change = void (*)(Problem&);
  const Change changes[] = {[](Problem& p) { p.causal = true; },
                            [](Problem& p) { p.window_left = p.window_right = 30; },
                            [](Problem& p) { p.sink = true; },
                            [](Problem& p) { p.softcap = true; },
                            [](Problem& p) { p.rope = Rope::half; },
                            [](Problem& p) { p.dropout = true; },
                            [](Problem& p) {
                              p.bias = {true, false, true, true, true};
                              p.dbias = true;
                            },
                            [](Problem& p) { p.len_q = 3; },
                            [](Problem& p) { p.len_q = 1, p.len_kv = 1500; },
                            [](Problem& p) { p.len_kv = 1; }};
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Change change : changes) {
      Problem p = small_problem(dtype);
      p.mask = {true, false, false, true, true};
      change(p);
      for (const std::size_t n : {std::size_t{4}, std::size_t{10}}) {
        expect_reference(p, patterns()[n].name, patterns()[n].visible);
      }
    }
  }
}

TEST(Masks, ThatSayWhatAnOptionSaysEqualIt) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    Context context(threads_of(2));
    Arena arena;
    Problem masked = small_problem(dtype);
    masked.len_q = masked.len_kv = 333;
    masked.mask = {true, false, false, true, true};
    const Arguments a = make_layer(arena, masked);
    fill_mask(a.mask, [](auto, auto i, auto j) { return j <= i && j + 100 >= i; });
    forward(context, masked, a);
    backward(context, masked, a);
    Problem window = masked;
    window.mask = {};
    window.causal = true;
    window.window_left = 100;
    const Arguments b = make_layer(arena, window);
    forward(context, window, b);
    backward(context, window, b);
    for (const auto member :
         {&Arguments::o, &Arguments::lse, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
      EXPECT_LE(difference(a.*member, b.*member), dtype == DType::bf16 ? 0x1p-7 : close(dtype));
    }
  }
}

}  // namespace
}  // namespace attn::properties
