// The reference compared with a trained model's layer; another implementation computed the expected
// results in float64 (examples/data/README.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "compare.hpp"
#include "files/safetensors.hpp"
#include "memory.hpp"
#include "reference/reference.hpp"

namespace attn::reference::test {
namespace {

constexpr std::int64_t kBatch = 2, kHeads = 12, kLen = 256, kDim = 32;

TEST(MiniLM, ForwardAndBackward) {
  const auto file = files::SafetensorsFile::read(ATTN_MINILM_FILE);
  ASSERT_TRUE(file.ok()) << file.error();
  const auto stored = [&](const char* name) {
    const files::FileTensor* tensor = file->find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return TensorView{};
    const auto view = files::view(*tensor);
    EXPECT_TRUE(view.ok()) << view.error();
    return view.ok() ? *view : TensorView{};
  };
  const auto rows = [&](const char* name) { return stored(name).transposed(1, 2); };

  Problem p;
  p.batch = kBatch;
  p.heads_q = p.heads_kv = kHeads;
  p.len_q = p.len_kv = kLen;
  p.dim_qk = p.dim_vo = kDim;
  p.lengths_q = p.lengths_kv = true;
  Memory memory;
  Arguments a;
  a.q = rows("q");
  a.k = rows("k");
  a.v = rows("v");
  a.dout = rows("do");
  a.len_q = a.len_kv = stored("lengths");
  const Shape shape{kBatch, kHeads, kLen, kDim};
  a.o = memory.filled(shape, kNaN).transposed(1, 2);
  a.dq = memory.filled(shape, kNaN).transposed(1, 2);
  a.dk = memory.filled(shape, kNaN).transposed(1, 2);
  a.dv = memory.filled(shape, kNaN).transposed(1, 2);
  a.lse = memory.filled({kBatch, kHeads, kLen}, kNaN);
  ASSERT_FALSE(::testing::Test::HasFailure());
  ASSERT_EQ(forward(p, a), "");
  ASSERT_EQ(backward(p, a), "");

  // Both are contiguous in the file's order; the results are stored in f32.
  const auto in_file_order = [](const TensorView& view) {
    return values_of(view.transposed(1, 2));
  };
  const double f32_rounding = 1e-7;
  EXPECT_TRUE(near(in_file_order(a.o), values_of(stored("o")), f32_rounding));
  EXPECT_TRUE(near(in_file_order(a.dq), values_of(stored("dq")), f32_rounding));
  EXPECT_TRUE(near(in_file_order(a.dk), values_of(stored("dk")), f32_rounding));
  EXPECT_TRUE(near(in_file_order(a.dv), values_of(stored("dv")), f32_rounding));

  const Numbers lse = values_of(a.lse);
  const Numbers expected_lse = values_of(stored("lse"));
  int empty_rows = 0;
  for (std::int64_t b = 0; b < kBatch; ++b) {
    const std::int64_t length = read_integer(a.len_q, b);
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kLen; ++i) {
        const auto at = static_cast<std::size_t>((b * kHeads + h) * kLen + i);
        if (i < length) {
          ASSERT_TRUE(std::abs(lse[at] - expected_lse[at]) <= 1e-12) << b << " " << h << " " << i;
          continue;
        }
        ++empty_rows;
        ASSERT_EQ(lse[at], -kInf);
        for (const TensorView* view : {&a.o, &a.dq, &a.dk, &a.dv}) {
          const std::int64_t row = position_of(*view, {b, i, h});
          for (std::int64_t c = 0; c < kDim; ++c) ASSERT_EQ(read(*view, row + c), 0.0);
        }
      }
    }
  }
  EXPECT_GT(empty_rows, 0);
}

}  // namespace
}  // namespace attn::reference::test
