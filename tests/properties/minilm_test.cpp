// A trained model's layer: results within 2e-6, relative to each tensor's largest value, of those
// that another implementation computed in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "files/safetensors.hpp"
#include "harness/values.hpp"
#include "layer.hpp"

namespace attn::properties {
namespace {

using harness::load;

// The file holds [b, h, n, d].
TensorView rows(const files::SafetensorsFile& file, const char* name) {
  const files::FileTensor* tensor = file.find(name);
  if (tensor == nullptr) return {};
  const auto view = files::view(*tensor);
  return view.ok() ? view->transposed(1, 2) : TensorView{};
}

TEST(MiniLm, IsWithinTwoMillionths) {
  const auto read = files::SafetensorsFile::read(ATTN_MINILM_FILE);
  ASSERT_TRUE(read.ok()) << read.error();
  const files::SafetensorsFile& file = *read;
  Context context(threads_of(2));
  Arena arena;
  Arguments a;
  a.q = rows(file, "q");
  a.k = rows(file, "k");
  a.v = rows(file, "v");
  a.dout = rows(file, "do");
  a.len_q = a.len_kv = *files::view(*file.find("lengths"));
  const TensorView lse = *files::view(*file.find("lse"));
  a.lse = arena.empty(DType::f32, {lse.shape[0], lse.shape[1], lse.shape[2]});
  for (const auto member : {&Arguments::o, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
    a.*member = arena.copy(a.q);
    harness::fill_all(a.*member, [](std::uint64_t) { return std::nan(""); });
  }
  Problem p = describe(a);
  p.dlse = p.delta = p.deterministic = p.accumulate = false;
  ASSERT_EQ(plan(context, Pass::forward, p).backend, "cpu");
  forward(context, p, a);
  backward(context, p, a);

  // Rows past the lengths are compared separately: the file may hold any value there.
  const auto worst = [&](const TensorView& actual, const TensorView& expected) {
    double error = 0.0;
    double largest = 0.0;
    for (std::int64_t b = 0; b < actual.shape[0]; ++b) {
      const auto length = static_cast<std::int64_t>(load(a.len_q, b));
      for (std::int64_t i = 0; i < actual.shape[1]; ++i) {
        for (std::int64_t n = 0; n < actual.shape[2] * actual.shape[3]; ++n) {
          const std::int64_t h = n / actual.shape[3];
          const std::int64_t d = n % actual.shape[3];
          const double x = load(actual, b, i, h, d);
          if (i >= length) {
            EXPECT_EQ(x, 0.0);
            continue;
          }
          const double apart = std::fabs(x - load(expected, b, i, h, d));
          if (!(apart <= error)) error = apart;
          largest = std::max(largest, std::fabs(load(expected, b, i, h, d)));
        }
      }
    }
    return error / largest;
  };
  EXPECT_LE(worst(a.o, rows(file, "o")), 2e-6);
  EXPECT_LE(worst(a.dq, rows(file, "dq")), 2e-6);
  EXPECT_LE(worst(a.dk, rows(file, "dk")), 2e-6);
  EXPECT_LE(worst(a.dv, rows(file, "dv")), 2e-6);
  double error = 0.0;
  double largest = 0.0;
  for (std::int64_t b = 0; b < lse.shape[0]; ++b) {
    const auto length = static_cast<std::int64_t>(load(a.len_q, b));
    EXPECT_LT(length, lse.shape[2] + 1);
    for (std::int64_t h = 0; h < lse.shape[1]; ++h) {
      for (std::int64_t i = 0; i < lse.shape[2]; ++i) {
        const double x = load(a.lse, b, h, i);
        if (i >= length) {
          EXPECT_EQ(x, -std::numeric_limits<double>::infinity());
          continue;
        }
        const double apart = std::fabs(x - load(lse, b, h, i));
        if (!(apart <= error)) error = apart;
        largest = std::max(largest, std::fabs(load(lse, b, h, i)));
      }
    }
  }
  EXPECT_LE(error / largest, 2e-6);
}

}  // namespace
}  // namespace attn::properties
