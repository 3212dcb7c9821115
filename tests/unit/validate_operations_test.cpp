// Every refusal of merge, its backward and rope, with its message; in-place calls.
#include <gtest/gtest.h>

#include <attn/attn.hpp>
#include <cmath>

#include "allocations.hpp"
#include "call.hpp"
#include "core/validate.hpp"

namespace attn {
namespace {

using test::CallMemory;

struct Merge {
  CallMemory memory;
  MergeArguments a;
  explicit Merge(DType dtype = DType::f32) {
    const DType stats = dtype == DType::f64 ? DType::f64 : DType::f32;
    for (TensorView MergeArguments::* view :
         {&MergeArguments::o1, &MergeArguments::o2, &MergeArguments::o}) {
      a.*view = memory.tensor(dtype, {2, 3, 4, 8});
    }
    for (TensorView MergeArguments::* view :
         {&MergeArguments::lse1, &MergeArguments::lse2, &MergeArguments::lse}) {
      a.*view = memory.tensor(stats, {2, 4, 3});
    }
  }
  [[nodiscard]] std::string message() const { return core::validate(a).message; }
};

TEST(ValidateMerge, Accepts) {
  Merge merge(DType::bf16);
  const auto before = test::allocations().count;
  EXPECT_TRUE(core::validate(merge.a).ok());
  EXPECT_EQ(test::allocations().count, before);
  merge.a.o1 = merge.memory.tensor(DType::f32, {2, 3, 4, 8});
  EXPECT_EQ(merge.message(), "");
  merge.a.o2 = {};
  merge.a.lse = {};
  EXPECT_EQ(merge.message(), "");
  Merge in_place;
  in_place.a.o = in_place.a.o1;
  in_place.a.lse = in_place.a.lse1;
  EXPECT_EQ(in_place.message(), "");
  Merge packed;
  packed.a.o = packed.memory.tensor(DType::f64, {3, 4, 8});
  packed.a.o1 = packed.memory.tensor(DType::f32, {3, 4, 8});
  packed.a.o2 = packed.memory.tensor(DType::f64, {3, 4, 8});
  for (TensorView* view : {&packed.a.lse, &packed.a.lse1, &packed.a.lse2}) {
    *view = packed.memory.tensor(DType::f64, {4, 3});
  }
  EXPECT_EQ(packed.message(), "");
}

TEST(ValidateMerge, Refuses) {
  {
    Merge merge;
    merge.a.o = {};
    EXPECT_EQ(merge.message(),
              "merge: o is needed: found none; accepted [b, n, h, dim] or [total, h, dim]");
  }
  {
    Merge merge;
    merge.a.o.dtype = DType::i32;
    EXPECT_EQ(merge.message(), "merge: type of o: found i32; accepted f32, f16, bf16, f64");
  }
  {
    Merge merge;
    merge.a.o.rank = 2;
    EXPECT_EQ(
        merge.message(),
        "merge: shape of o: found f32[2, 3] strides [96, 32] on host; accepted [b, n, h, dim] "
        "or [total, h, dim]");
  }
  {
    Merge merge;
    merge.a.o.shape[3] = 600;
    EXPECT_EQ(
        merge.message(),
        "merge: shape of o: found f32[2, 3, 4, 600] strides [96, 32, 8, 1] on host; accepted a "
        "last dimension of 1 to 512, others 0 to 2^31 - 1");
  }
  {
    Merge merge;
    merge.a.o1.dtype = DType::bf16;
    EXPECT_EQ(merge.message(),
              "merge: type of o1: found bf16; accepted f32, the type of o, or f32");
  }
  {
    Merge merge;
    merge.a.o2.shape[1] = 2;
    EXPECT_EQ(merge.message(),
              "merge: shape of o2: found f32[2, 2, 4, 8] strides [96, 32, 8, 1] on host; accepted "
              "[2, 3, 4, 8]");
  }
  {
    Merge merge;
    merge.a.lse2 = {};
    EXPECT_EQ(merge.message(), "merge: lse2 is needed: found none; accepted f32[2, 4, 3]");
  }
  {
    Merge merge;
    merge.a.o = merge.a.o2;
    EXPECT_EQ(merge.message(),
              "merge: aliases: found o, which is written, over memory of o2; accepted outputs in "
              "memory of their own, or exactly in place");
  }
  {
    Merge merge;  // not the same view
    merge.a.o = merge.a.o1.transposed(1, 2).transposed(1, 2);
    merge.a.o.strides = {96, 8, 24, 1};
    EXPECT_NE(merge.message().find("merge: aliases: found o, which is written, over memory of o1"),
              std::string::npos);
  }
  {
    Merge merge;
    merge.a.stream = nullptr;
    EXPECT_EQ(
        merge.message(),
        "merge: stream: found a stream with host tensors; accepted none: host work runs on the "
        "calling thread");
  }
}

TEST(ValidateMergeBackward, AcceptsAndRefuses) {
  CallMemory memory;
  MergeBackwardArguments a;
  using M = MergeBackwardArguments;
  for (TensorView M::* view : {&M::o1, &M::o2, &M::o, &M::dout, &M::dout1, &M::dout2}) {
    a.*view = memory.tensor(DType::f16, {2, 3, 4, 8});
  }
  for (TensorView M::* view : {&M::lse1, &M::lse2, &M::lse, &M::dlse, &M::dlse1, &M::dlse2}) {
    a.*view = memory.tensor(DType::f32, {2, 4, 3});
  }
  const auto before = test::allocations().count;
  EXPECT_TRUE(core::validate(a).ok());
  EXPECT_EQ(test::allocations().count, before);
  const auto message = [&](auto change) {
    M changed = a;
    change(changed);
    return core::validate(changed).message;
  };
  EXPECT_EQ(message([](M& m) { m.dlse = m.dlse1 = m.dlse2 = m.dout1 = m.dout2 = TensorView{}; }),
            "");
  EXPECT_EQ(message([](M& m) { m.dout = TensorView{}; }),
            "merge_backward: dout is needed: found none; accepted f16[2, 3, 4, 8]");
  EXPECT_EQ(message([](M& m) { m.lse = TensorView{}; }),
            "merge_backward: lse is needed: found none; accepted f32[2, 4, 3]");
  EXPECT_EQ(message([](M& m) { m.dout.dtype = DType::f32; }),
            "merge_backward: type of dout: found f32; accepted f16");
  EXPECT_EQ(message([](M& m) { m.o2 = TensorView{}; }),
            "merge_backward: dout2 goes with o2: found f16[2, 3, 4, 8] strides [96, 32, 8, 1] on "
            "host without o2; accepted both or neither");
  EXPECT_EQ(message([](M& m) { m.dout1 = m.dout; }),
            "merge_backward: aliases: found dout1, which is written, over memory of dout; accepted "
            "outputs in memory of their own");
  EXPECT_EQ(message([](M& m) { m.o = TensorView{}; }),
            "merge_backward: o is needed: found none; accepted [b, n, h, dim] or [total, h, dim]");
}

TEST(ValidateRope, AcceptsAndRefuses) {
  CallMemory memory;
  RopeArguments a;
  a.x = memory.tensor(DType::bf16, {2, 3, 4, 8});
  a.out = memory.tensor(DType::bf16, {2, 3, 4, 8});
  const TensorView table = memory.tensor(DType::f32, {10, 4});
  const TensorView positions = memory.tensor(DType::i32, {2, 3});
  const TensorView packed = memory.tensor(DType::bf16, {6, 4, 8});
  const auto before = test::allocations().count;
  EXPECT_TRUE(core::validate(a).ok());
  EXPECT_EQ(test::allocations().count, before);
  using R = RopeArguments;
  const auto message = [&](auto change) {
    R changed = a;
    change(changed);
    return core::validate(changed).message;
  };
  EXPECT_EQ(message([](R& r) { r.out = r.x; }), "");
  EXPECT_EQ(message([&](R& r) { r.cos = r.sin = table; }), "");
  EXPECT_EQ(message([&](R& r) { r.positions = positions; }), "");
  EXPECT_EQ(message([&](R& r) {
              r.x = r.out = packed;
              r.cu_len = positions;
              r.cu_len.rank = 1;
              r.cu_len.strides[0] = 1;
            }),
            "");
  EXPECT_EQ(message([](R& r) { r.x = TensorView{}; }),
            "rope: x is needed: found none; accepted [b, n, h, dim] or [total, h, dim]");
  EXPECT_EQ(message([](R& r) { r.out = TensorView{}; }),
            "rope: out is needed: found none; accepted bf16[2, 3, 4, 8]");
  EXPECT_EQ(message([](R& r) { r.style = Rope::none; }),
            "rope: style: found none; accepted interleaved, half");
  EXPECT_EQ(message([](R& r) { r.rot_dim = 5; }),
            "rope: rot_dim: found rot_dim=5; accepted even, 2 to 8");
  EXPECT_EQ(message([](R& r) { r.rot_dim = 10; }),
            "rope: rot_dim: found rot_dim=10; accepted even, 2 to 8");
  EXPECT_EQ(message([](R& r) { r.base = std::nan(""); }),
            "rope: base: found nan; accepted a finite number above 0");
  EXPECT_EQ(message([](R& r) { r.pos_offset = std::int64_t{1} << 60; }),
            "rope: pos_offset: found 1152921504606846976; accepted -2^53 to 2^53");
  EXPECT_EQ(message([&](R& r) { r.cos = table; }),
            "rope: cos goes with sin: found cos without sin; accepted both or neither");
  EXPECT_EQ(message([&](R& r) { r.sin = table; }),
            "rope: cos goes with sin: found sin without cos; accepted both or neither");
  EXPECT_EQ(
      message([&](R& r) {
        r.cos = r.sin = table;
        r.sin.shape[0] = 9;
      }),
      "rope: shape of sin: found f32[9, 4] strides [4, 1] on host; accepted as many positions "
      "as cos");
  EXPECT_EQ(message([&](R& r) { r.cu_len = positions; }),
            "rope: cu_len goes with a packed x: found i32[2, 3] strides [3, 1] on host without a "
            "packed x; accepted both or neither");
  EXPECT_EQ(message([](R& r) {
              r.out = r.x;
              r.out.offset_bytes = 2;
            }),
            "rope: aliases: found out, which is written, over memory of x; accepted outputs in "
            "memory of their own, or exactly in place");
}

}  // namespace
}  // namespace attn
