// The backward against central differences of the forward, in float64: every differentiable input,
// every option alone (all elements) and in pairs (some elements and one direction through all).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "compare.hpp"
#include "sample.hpp"

namespace attn::reference::test {
namespace {

constexpr double kTolerance = 1e-6;
constexpr double kStep = 1e-3;

// d f / d step at 0, with an error of fourth order.
template <class Function>
double derivative(Function f) {
  return (8.0 * (f(kStep) - f(-kStep)) - (f(2.0 * kStep) - f(-2.0 * kStep))) / (12.0 * kStep);
}

struct Input {
  const char* name;
  std::vector<double>* value;
  std::vector<double>* gradient;
};

std::vector<Input> differentiable(Sample& s) {
  std::vector<Input> inputs = {{"q", &s.q, &s.dq}, {"k", &s.k, &s.dk}, {"v", &s.v, &s.dv}};
  if (s.problem.dbias) inputs.push_back({"bias", &s.bias, &s.dbias});
  if (s.problem.dsink) inputs.push_back({"sink", &s.sinks, &s.dsink});
  return inputs;
}

double largest(const std::vector<double>& values) {
  double result = 0.0;
  for (const double value : values) {
    if (!(std::abs(value) <= result)) result = std::abs(value);
  }
  return result;
}

double loss_of(Sample& s) {
  EXPECT_EQ(s.run_forward(), "");
  return s.loss();
}

void check_elements(Sample& s, const Input& input, std::size_t every, std::size_t first) {
  // A gradient that is 0 everywhere (all rows empty) must be below 1e-9.
  const double bound = kTolerance * std::max(largest(*input.gradient), 1e-3);
  for (std::size_t e = first % every; e < input.value->size(); e += every) {
    const double gradient = (*input.gradient)[e];
    double& x = (*input.value)[e];
    const double x0 = x;
    if (!std::isfinite(x0)) {  // outside the sequences, or hidden: no gradient
      ASSERT_EQ(gradient, 0.0) << input.name << "[" << e << "]";
      continue;
    }
    const double expected = derivative([&](double step) {
      x = x0 + step;
      return loss_of(s);
    });
    x = x0;
    ASSERT_TRUE(std::abs(gradient - expected) <= bound)
        << "d" << input.name << "[" << e << "] = " << gradient << ", finite difference " << expected
        << ", largest " << largest(*input.gradient);
  }
}

void check_direction(Sample& s, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Input> inputs = differentiable(s);
  std::vector<std::vector<double>> start, direction;
  double found = 0.0;
  double scale = 1e-3;
  for (const Input& input : inputs) {
    start.push_back(*input.value);
    direction.emplace_back();
    for (const double g : *input.gradient) {
      direction.back().push_back(uniform(random, -1.0, 1.0));
      found += g * direction.back().back();
      scale = std::max(scale, std::abs(g));
    }
  }
  const double expected = derivative([&](double step) {
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      for (std::size_t e = 0; e < start[n].size(); ++e) {
        (*inputs[n].value)[e] = start[n][e] + step * direction[n][e];
      }
    }
    return loss_of(s);
  });
  for (std::size_t n = 0; n < inputs.size(); ++n) *inputs[n].value = start[n];
  ASSERT_TRUE(std::abs(found - expected) <= kTolerance * scale)
      << "along a random direction: " << found << ", finite difference " << expected;
}

// Returns the largest gradient of q, k or v; 0 if every row is empty.
double check_gradients(const Setting& setting, std::uint64_t seed, std::size_t every) {
  Sample s(setting, seed);
  EXPECT_EQ(s.run_forward(), "");
  EXPECT_EQ(s.run_backward(), "");
  for (const Input& input : differentiable(s)) check_elements(s, input, every, seed);
  check_direction(s, seed);
  return std::max({largest(s.dq), largest(s.dk), largest(s.dv)});
}

TEST(Gradient, Plain) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) check_gradients(small_setting(), seed, 1);
}

TEST(Gradient, EveryOptionAlone) {
  for (const Option& option : options()) {
    SCOPED_TRACE(option.name);
    double largest_seen = 0.0;
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      Setting setting = small_setting();
      option.apply(setting);
      largest_seen = std::max(largest_seen, check_gradients(setting, seed, 1));
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(largest_seen, 0.05);
  }
}

TEST(Gradient, EveryPairOfOptions) {
  std::uint64_t seed = 100;
  int not_empty = 0;
  int problems = 0;
  for (std::size_t a = 0; a < options().size(); ++a) {
    for (std::size_t b = a + 1; b < options().size(); ++b) {
      SCOPED_TRACE(options()[a].name + " + " + options()[b].name);
      Setting setting = small_setting();
      options()[a].apply(setting);
      options()[b].apply(setting);
      not_empty += check_gradients(setting, ++seed, 13) > 0.05;
      ++problems;
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(not_empty, problems * 9 / 10);
}

TEST(Gradient, ManyOptionsAtOnce) {
  std::mt19937_64 random(7);
  for (std::uint64_t n = 0; n < 150; ++n) {
    Setting setting = small_setting();
    std::string names;
    for (const Option& option : options()) {
      if (random() % 5 != 0) continue;
      option.apply(setting);
      names += option.name + " ";
    }
    SCOPED_TRACE(names);
    check_gradients(setting, n, 17);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace attn::reference::test
