// Guarded memory detects wrong writes, values round according to their formats, and a case's
// arguments are the same in every memory layout.
#include "harness/inputs.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "harness/values.hpp"

namespace attn::harness {
namespace {

Case small_case() {
  Case c;
  c.pass = Pass::backward;
  c.problem.batch = 2;
  c.problem.heads_q = 4;
  c.problem.heads_kv = 2;
  c.problem.len_q = 5;
  c.problem.len_kv = 7;
  c.problem.dim_qk = 8;
  c.problem.dim_vo = 3;
  return c;
}

TEST(Values, RoundToTheNearestOfTheType) {
  EXPECT_EQ(round_to(DType::bf16, 1.0 + 0x1p-8), 1.0);  // tie to even
  EXPECT_EQ(round_to(DType::bf16, 1.0 + 3 * 0x1p-8), 1.0 + 0x1p-6);
  EXPECT_EQ(round_to(DType::f16, 65519.0), 65504.0);
  EXPECT_EQ(round_to(DType::f16, 65520.0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(round_to(DType::f16, 0x1p-25), 0.0);
  EXPECT_EQ(round_to(DType::f16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(round_to(DType::f32, 1.0 + 0x1p-24), 1.0);
  EXPECT_EQ(unit_roundoff(DType::f32), 0x1p-24);
  EXPECT_EQ(smallest(DType::f16), 0x1p-24);
}

TEST(Values, SurviveBeingStored) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto in = static_cast<std::uint16_t>(bits);
      const double x = load(dtype, &in);
      std::uint16_t out = 0;
      store(dtype, &out, x);
      if (std::isnan(x)) {
        EXPECT_TRUE(std::isnan(load(dtype, &out)));
      } else {
        ASSERT_EQ(in, out) << bits;
      }
    }
  }
}

TEST(Values, AreNormal) {
  double sum = 0.0;
  double squares = 0.0;
  constexpr int kCount = 100000;
  for (std::uint64_t n = 0; n < kCount; ++n) {
    const double x = hash_normal(3, 4, n);
    sum += x;
    squares += x * x;
  }
  EXPECT_LT(std::fabs(sum / kCount), 0.02);
  EXPECT_LT(std::fabs(squares / kCount - 1.0), 0.03);
}

TEST(Memory, NoticesWritesOutsideOfTheElements) {
  for (const Memory memory : {Memory::bshd, Memory::bhsd, Memory::sliced, Memory::padded}) {
    const auto written = [&](std::int64_t offset) {
      TensorSet tensors;
      const TensorView view = tensors.make("x", DType::f32, {2, 3, 2, 4}, memory, true);
      tensors.seal({view});
      static_cast<unsigned char*>(view.address())[offset] ^= 1u;
      return tensors.changed();
    };
    EXPECT_EQ(written(0), "");
    EXPECT_EQ(written(15), "");
    EXPECT_NE(written(-1), "");
    if (memory == Memory::padded) {
      EXPECT_NE(written(16), "");
    }
    std::int64_t last = 0;
    TensorSet tensors;
    const TensorView view = tensors.make("x", DType::f32, {2, 3, 2, 4}, memory, true);
    for (std::int64_t n = 0; n < num_elements(view); ++n) {
      last = std::max(last, element_offset(view, n));
    }
    EXPECT_EQ(written(last * 4 + 3), "");
    EXPECT_NE(written(last * 4 + 4), "");
  }
}

TEST(Memory, NoticesWritesToInputs) {
  const Case c = small_case();
  Inputs inputs(c);
  inputs.tensors.seal({});
  EXPECT_EQ(inputs.tensors.changed(), "");
  store(inputs.arguments.k, 0.5, 1, 2, 1, 3);
  EXPECT_NE(inputs.tensors.changed().find("k: "), std::string::npos);
}

TEST(Memory, EveryOrderHoldsTheSameValues) {
  Case c = small_case();
  const Inputs plain(c);
  for (const Memory memory : {Memory::bhsd, Memory::sliced, Memory::padded}) {
    c.memory = memory;
    const Inputs other(c);
    EXPECT_EQ(read_all(plain.arguments.q), read_all(other.arguments.q));
    EXPECT_EQ(read_all(plain.arguments.v), read_all(other.arguments.v));
    EXPECT_NE(plain.arguments.q.strides, other.arguments.q.strides);
  }
  c.memory = Memory::fused_qkv;
  c.problem.len_kv = c.problem.len_q;
  const Inputs fused(c);
  EXPECT_EQ(read_all(plain.arguments.q), read_all(fused.arguments.q));
  EXPECT_EQ(fused.arguments.q.data, fused.arguments.v.data);
}

TEST(Memory, WhatMustNotBeReadIsNan) {
  Case c = small_case();
  c.problem.lengths_q = c.problem.lengths_kv = true;
  c.lengths = Lengths::zero;
  const Inputs inputs(c);
  EXPECT_EQ(inputs.kv.length.back(), 0);
  EXPECT_TRUE(std::isnan(load(inputs.arguments.k, 1, 0, 0, 0)));
  EXPECT_FALSE(std::isnan(load(inputs.arguments.k, 0, 6, 0, 0)));
  EXPECT_TRUE(std::isnan(load(inputs.arguments.dout, 1, 0, 0, 0)));
}

TEST(Memory, PackedRowsHoldTheValuesOfPaddedOnes) {
  Case c = small_case();
  c.problem.lengths_q = c.problem.lengths_kv = true;
  c.lengths = Lengths::varied;
  const Inputs padded(c);
  c.problem.lengths_q = c.problem.lengths_kv = false;
  c.problem.layout_q = c.problem.layout_kv = Layout::packed;
  set_totals(c);
  const Inputs packed(c);
  ASSERT_EQ(packed.q.length, padded.q.length);
  const std::int64_t i = packed.q.length[1] - 1;
  ASSERT_GE(i, 0);
  EXPECT_EQ(load(padded.arguments.q, 1, i, 3, 5),
            load(packed.arguments.q, packed.q.begin[1] + i, 3, 5));
}

}  // namespace
}  // namespace attn::harness
