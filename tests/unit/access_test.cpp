// What a call's tensors allow kernels to load.
#include "core/access.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace attn::core {
namespace {

TensorView view(std::uintptr_t address, DType dtype, std::initializer_list<std::int64_t> shape) {
  return TensorView::contiguous(reinterpret_cast<void*>(address), dtype, shape);
}

class AccessOf : public ::testing::Test {
 protected:
  AccessOf() {
    a.q = view(0x10000, DType::bf16, {2, 10, 4, 64});
    a.k = view(0x20000, DType::bf16, {2, 20, 2, 64});
    a.v = view(0x30000, DType::bf16, {2, 20, 2, 32});
    a.o = view(0x40000, DType::bf16, {2, 10, 4, 32});
    a.dout = view(0x50000, DType::bf16, {2, 10, 4, 32});
    a.dq = view(0x60000, DType::bf16, {2, 10, 4, 64});
    a.dk = view(0x70000, DType::bf16, {2, 20, 2, 64});
    a.dv = view(0x80000, DType::bf16, {2, 20, 2, 32});
  }
  Access access(Pass pass = Pass::forward) {
    Problem problem = describe(a);
    problem.dropout = dropout;
    return access_of(pass, problem, a);
  }

  Arguments a;
  bool dropout = false;
};

TEST_F(AccessOf, ContiguousTensors) {
  EXPECT_EQ(access(), Access::tma);
  EXPECT_EQ(access(Pass::backward), Access::tma);
}

TEST_F(AccessOf, InputsThatAreNotAligned) {
  for (TensorView* tensor : {&a.q, &a.k, &a.v}) {
    tensor->offset_bytes = 4;
    EXPECT_EQ(access(), Access::element);
    tensor->offset_bytes = 48;
    EXPECT_EQ(access(), Access::tma);
    tensor->offset_bytes = 0;
    for (std::size_t d = 0; d < 3; ++d) {
      tensor->strides[d] += 4;
      EXPECT_EQ(access(), Access::element) << d;
      tensor->strides[d] -= 4;
    }
  }
  a.dout.strides[1] += 1;
  EXPECT_EQ(access(), Access::tma) << "the forward does not read it";
  EXPECT_EQ(access(Pass::backward), Access::element);
}

TEST_F(AccessOf, OutputsNeverForceElements) {
  a.o.offset_bytes = 4;
  EXPECT_EQ(access(), Access::vector);
  EXPECT_EQ(access(Pass::backward), Access::vector);
  a.o.offset_bytes = 0;
  for (TensorView* tensor : {&a.dq, &a.dk, &a.dv}) {
    tensor->strides[1] += 1;
    EXPECT_EQ(access(Pass::backward), Access::vector);
    EXPECT_EQ(access(), Access::tma);
    tensor->strides[1] -= 1;
  }
}

TEST_F(AccessOf, ScalesThatNoModifierMultipliesArePositiveForTma) {
  for (const double scale : {-0.5, 0.0}) {
    a.scale = scale;
    EXPECT_EQ(access(), Access::vector) << scale;
    EXPECT_EQ(access(Pass::backward), Access::tma) << scale;
    a.softcap = 10.0;
    EXPECT_EQ(access(), Access::tma) << scale;
    a.softcap = 0.0;
  }
  a.scale = 2.0;
  EXPECT_EQ(access(), Access::tma);
}

TEST_F(AccessOf, BiasAndMaskForTma) {
  a.bias = view(0x90000, DType::f32, {1, 4, 10, 20});
  a.mask = view(0xA0000, DType::u8, {2, 1, 10, 32});
  a.mask.shape[3] = 20;
  EXPECT_EQ(access(), Access::tma);
  EXPECT_EQ(access(Pass::backward), Access::tma);
  a.bias.offset_bytes = 4;
  EXPECT_EQ(access(), Access::vector);
  EXPECT_EQ(access(Pass::backward), Access::vector);
  a.bias.offset_bytes = 0;
  a.mask.strides[2] = 20;
  EXPECT_EQ(access(), Access::vector) << "rows of 20 bytes";
  a.mask.strides[2] = 32;
  a.bias.strides[3] = 2;
  EXPECT_EQ(access(), Access::vector) << "keys apart";
}

// TMA loads rows of any length, but stores multiples of 16 bytes.
TEST_F(AccessOf, RowsOfDbiasForTma) {
  a.bias = view(0x90000, DType::bf16, {2, 4, 10, 24});
  a.dbias = view(0xa0000, DType::bf16, {2, 4, 10, 24});
  EXPECT_EQ(access(Pass::backward), Access::tma);
  a.bias.shape[3] = 20;
  a.dbias.shape[3] = 20;
  EXPECT_EQ(access(Pass::backward), Access::vector);
  a.dbias = {};
  EXPECT_EQ(access(Pass::backward), Access::tma);
  a.bias = view(0x90000, DType::bf16, {2, 4, 1, 20});
  a.bias.strides = {96, 24, 24, 1};
  a.dbias = a.bias;
  EXPECT_EQ(access(Pass::backward), Access::vector) << "a single row";
}

TEST_F(AccessOf, StridesThatOnlyTmaCannotTake) {
  a.k.strides[0] = -a.k.strides[0];
  EXPECT_EQ(access(), Access::vector);
  a.k.strides[0] = 0;
  EXPECT_EQ(access(), Access::vector) << "expanded";
  a.k.strides[0] = std::int64_t{1} << 39;  // 2^40 bytes
  EXPECT_EQ(access(), Access::vector);
  a.k.strides[0] -= 8;
  EXPECT_EQ(access(), Access::tma);
}

TEST_F(AccessOf, RowsTooFarApart) {
  a.q.strides[1] = std::int64_t{1} << 22;  // 256 rows of a tile are 2^31 bytes apart
  EXPECT_EQ(access(), Access::element);
  a.q.strides[1] -= 8;
  EXPECT_EQ(access(), Access::tma);
}

TEST_F(AccessOf, StridesOfASingleElementAreNotUsed) {
  a.q = view(0x10000, DType::bf16, {1, 10, 4, 64});
  a.q.strides[0] = 3;
  a.k = view(0x20000, DType::bf16, {1, 20, 2, 64});
  a.v = view(0x30000, DType::bf16, {1, 20, 2, 32});
  a.o = view(0x40000, DType::bf16, {1, 10, 4, 32});
  EXPECT_EQ(access(), Access::tma);
}

TEST_F(AccessOf, EmptyTensorsHaveNoTensorMap) {
  a.k = view(0x20000, DType::bf16, {2, 0, 2, 64});
  a.v = view(0x30000, DType::bf16, {2, 0, 2, 32});
  EXPECT_EQ(access(), Access::vector);
}

TEST_F(AccessOf, DropoutFromWithinAPhiloxBlock) {
  a.origin.q = 8;
  EXPECT_EQ(access(), Access::tma) << "no dropout";
  dropout = true;
  EXPECT_EQ(access(), Access::element);
  a.origin.q = 32;
  EXPECT_EQ(access(), Access::tma);
  a.origin.kv = 1;
  EXPECT_EQ(access(), Access::element);
}

// Calls are keyed by it before they are validated.
TEST_F(AccessOf, ViewsThatBreakRules) {
  a.k.rank = 99;
  EXPECT_EQ(access_of(Pass::forward, Problem{}, a), Access::element);
  a.k.rank = 0;
  EXPECT_EQ(access_of(Pass::forward, Problem{}, a), Access::element);
  a.k = a.q;
  a.k.strides[1] = INT64_MAX;
  EXPECT_EQ(access_of(Pass::forward, Problem{}, a), Access::element);
  a.k.strides[1] = INT64_MIN;
  EXPECT_EQ(access_of(Pass::forward, Problem{}, a), Access::vector);
}

TEST(BestAccess, FollowsTypesAndDims) {
  const auto best = [](Pass pass, const char* text) {
    return best_access(pass, parse_problem(text));
  };
  EXPECT_EQ(best(Pass::forward, "dtype=bf16"), Access::tma);
  EXPECT_EQ(best(Pass::forward, "dtype=bf16 dim_vo=60"), Access::element);
  EXPECT_EQ(best(Pass::forward, "dtype=f32 dim_vo=60"), Access::tma) << "15 vectors";
  EXPECT_EQ(best(Pass::forward, "dtype=bf16 dtype_kv=f16"), Access::element);
  EXPECT_EQ(best(Pass::decode, "dtype=bf16 dtype_kv=f8e4m3"), Access::tma);
  EXPECT_EQ(best(Pass::decode, "dtype=bf16 dtype_kv=f8e4m3 dim_vo=72"), Access::element);
  EXPECT_EQ(best(Pass::forward, "dtype=bf16 dtype_out=f32"), Access::tma);
  EXPECT_EQ(best(Pass::backward, "dtype=bf16 dtype_out=f32"), Access::element)
      << "dout is rounded on the way";
}

}  // namespace
}  // namespace attn::core
