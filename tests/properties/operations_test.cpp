// Merge, its gradient and the rotary embedding against the reference, in every type and layout.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "harness/values.hpp"
#include "layer.hpp"
#include "reference/reference.hpp"

namespace attn::properties {
namespace {

using harness::fill_all;
using harness::num_elements;
using harness::store;

constexpr double kInf = std::numeric_limits<double>::infinity();

// A few units of rounding of the result type, relative to the tensor's largest value.
double units(DType dtype) {
  return dtype == DType::f64 ? 1e-13 : 4.0 * harness::unit_roundoff(dtype);
}

struct Layouts {
  bool packed;
  Arena& arena;
  [[nodiscard]] TensorView rows(DType dtype, const char* name) const {
    return packed ? arena.normal(dtype, {70, 3, 20}, name)
                  : arena.normal(dtype, {2, 35, 3, 20}, name);
  }
  [[nodiscard]] TensorView statistics(DType dtype, const char* name) const {
    return packed ? arena.normal(dtype, {3, 70}, name) : arena.normal(dtype, {2, 3, 35}, name);
  }
};

ContextOptions on(const std::string& backend) {
  ContextOptions options = threads_of(3);
  options.backend = backend;
  return options;
}

// Type, whether packed, backend.
class Operation : public ::testing::TestWithParam<std::tuple<DType, bool, const char*>> {
 protected:
  void SetUp() override {
    const std::string backend = std::get<2>(GetParam());
    for (const BackendInfo& info : backends(context)) {
      if (info.name == backend && !info.usable) GTEST_SKIP() << info.detail;
    }
    if (backend == "webgpu" && dtype() == DType::f64) GTEST_SKIP() << "no f64 on WebGPU";
  }
  [[nodiscard]] static DType dtype() { return std::get<0>(GetParam()); }
  [[nodiscard]] static DType statistics() {
    return dtype() == DType::f64 ? DType::f64 : DType::f32;
  }
  [[nodiscard]] Layouts layouts() { return {std::get<1>(GetParam()), arena}; }

  // Partials in which some rows have no keys: their o must not be read.
  template <class Tensors>
  void partials(Tensors& a) {
    const Layouts l = layouts();
    a.o1 = l.rows(statistics(), "o1");
    a.o2 = l.rows(dtype(), "o2");
    a.lse1 = l.statistics(statistics(), "lse1");
    a.lse2 = l.statistics(statistics(), "lse2");
    const auto empty = [&](const TensorView& lse, const TensorView& o, std::int64_t i,
                           std::int64_t h) {
      if (l.packed) {
        store(lse, -kInf, h, i);
        for (std::int64_t d = 0; d < 20; ++d) store(o, std::nan(""), i, h, d);
      } else {
        store(lse, -kInf, 1, h, i);
        for (std::int64_t d = 0; d < 20; ++d) store(o, std::nan(""), 1, i, h, d);
      }
    };
    empty(a.lse1, a.o1, 7, 0);
    empty(a.lse2, a.o2, 8, 1);
    empty(a.lse1, a.o1, 9, 2);
    empty(a.lse2, a.o2, 9, 2);
  }

  Arena arena;
  Context context{on(std::get<2>(GetParam()))};
};

TEST_P(Operation, MergeIsTheReferences) {
  MergeArguments a;
  partials(a);
  a.o = layouts().rows(dtype(), "o");
  a.lse = layouts().statistics(statistics(), "lse");
  for (const bool second : {true, false}) {
    if (!second) a.o2 = {};
    MergeArguments expected = a;
    expected.o = layouts().rows(DType::f64, "o");
    expected.lse = layouts().statistics(DType::f64, "lse");
    ASSERT_EQ(reference::merge(expected), "");
    merge(context, a);
    EXPECT_LE(difference(a.o, expected.o), units(dtype()));
    EXPECT_LE(difference(a.lse, expected.lse), units(statistics()));
  }
}

TEST_P(Operation, MergesGradientIsTheReferences) {
  for (const bool with_dlse : {false, true}) {
    MergeBackwardArguments a;
    partials(a);
    MergeArguments whole;
    whole.o1 = a.o1;
    whole.o2 = a.o2;
    whole.lse1 = a.lse1;
    whole.lse2 = a.lse2;
    whole.o = a.o = layouts().rows(dtype(), "o");
    whole.lse = a.lse = layouts().statistics(statistics(), "lse");
    merge(context, whole);
    a.dout = layouts().rows(dtype(), "dout");
    if (with_dlse) a.dlse = layouts().statistics(statistics(), "dlse");
    MergeBackwardArguments expected = a;
    for (const auto member : {&MergeBackwardArguments::dout1, &MergeBackwardArguments::dout2}) {
      a.*member = layouts().rows(dtype(), "x");
      expected.*member = layouts().rows(DType::f64, "x");
    }
    for (const auto member : {&MergeBackwardArguments::dlse1, &MergeBackwardArguments::dlse2}) {
      a.*member = layouts().statistics(statistics(), "x");
      expected.*member = layouts().statistics(DType::f64, "x");
    }
    ASSERT_EQ(reference::merge_backward(expected), "");
    merge_backward(context, a);
    EXPECT_LE(difference(a.dout1, expected.dout1), units(dtype()));
    EXPECT_LE(difference(a.dout2, expected.dout2), units(dtype()));
    EXPECT_LE(difference(a.dlse1, expected.dlse1), 4 * units(statistics()));
    EXPECT_LE(difference(a.dlse2, expected.dlse2), 4 * units(statistics()));
  }
}

TEST_P(Operation, RopeIsTheReferences) {
  const bool packed = std::get<1>(GetParam());
  for (const Rope style : {Rope::half, Rope::interleaved}) {
    for (const char* from : {"rows", "positions", "tables", "entries", "gaps"}) {
      for (const bool inverse : {false, true}) {
        const std::string source = from;
        if ((source == "entries" || source == "gaps") && !packed) continue;
        RopeArguments a;
        a.x = layouts().rows(dtype(), "x");
        a.out = layouts().rows(dtype(), "out");
        a.style = style;
        a.rot_dim = inverse ? 0 : 14;
        a.base = 500.0;
        a.inverse = inverse;
        a.pos_offset = 11;
        if (source == "positions") {
          a.pos_offset = 0;
          a.positions = packed ? arena.empty(DType::i32, {70}) : arena.empty(DType::i32, {1, 35});
          fill_all(a.positions, [](std::uint64_t n) { return static_cast<double>(n * 37 % 900); });
        }
        if (source == "tables") {
          const std::int64_t half = (a.rot_dim == 0 ? 20 : a.rot_dim) / 2;
          a.cos = arena.normal(statistics(), {40, half}, "cos");
          a.sin = arena.normal(statistics(), {40, half}, "sin");
        }
        if (source == "entries") a.cu_len = arena.numbers(DType::i32, {0, 1, 30, 70});
        if (source == "gaps") a.cu_len = arena.numbers(DType::i32, {3, 9, 60});
        RopeArguments expected = a;
        expected.out = layouts().rows(DType::f64, "out");
        ASSERT_EQ(reference::rope(expected), "");
        rope(context, a);
        EXPECT_LE(difference(a.out, expected.out), units(dtype())) << source << " " << inverse;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Operation,
                         ::testing::Combine(::testing::Values(DType::f32, DType::f16, DType::bf16,
                                                              DType::f64),
                                            ::testing::Bool(), ::testing::Values("cpu", "webgpu")));

// Cosines and sines are accurate to 1e-6 at positions up to 2^20.
TEST(Rope, IsRightFarOut) {
  Arena arena;
  Context context(threads_of(1));
  RopeArguments a;
  a.x = arena.empty(DType::f32, {1, 3, 1, 64});
  fill_all(a.x, [](std::uint64_t n) { return n % 2 == 0 ? 1.0 : 0.0; });
  a.out = arena.empty(DType::f32, {1, 3, 1, 64});
  a.style = Rope::interleaved;
  a.pos_offset = (std::int64_t{1} << 20) - 3;
  rope(context, a);
  for (std::int64_t row = 0; row < 3; ++row) {
    for (std::int64_t m = 0; m < 32; ++m) {
      const double angle = static_cast<double>(row + a.pos_offset) *
                           std::pow(10000.0, -2.0 * static_cast<double>(m) / 64.0);
      EXPECT_NEAR(harness::load(a.out, 0, row, 0, 2 * m), std::cos(angle), 1e-6);
      EXPECT_NEAR(harness::load(a.out, 0, row, 0, 2 * m + 1), std::sin(angle), 1e-6);
    }
  }
}

}  // namespace
}  // namespace attn::properties
