// The parameters that kernels get for a call, and the ranges of keys that they compute from them:
// the host compiles sequence.cuh here, so that device code is tested against core's visibility.
#include "cuda/host/arguments.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/visibility.hpp"
#include "cuda/families/make_plan.hpp"
#include "device_words.hpp"
// After the words that it uses.
#include "cuda/kernels/shared/sequence.cuh"

namespace attn::cuda::test {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TensorView view(std::uintptr_t address, DType dtype, std::initializer_list<std::int64_t> shape) {
  TensorView v = TensorView::contiguous(reinterpret_cast<void*>(address), dtype, shape);
  v.device = Device::cuda;
  return v;
}

struct Given {
  Arguments arguments;
  Problem problem;

  Given() {
    arguments.q = view(0x10000, DType::bf16, {2, 10, 4, 64});
    arguments.k = view(0x20000, DType::bf16, {2, 20, 2, 64});
    arguments.v = view(0x30000, DType::bf16, {2, 20, 2, 32});
    arguments.o = view(0x40000, DType::bf16, {2, 10, 4, 32});
    arguments.lse = view(0x50000, DType::f32, {2, 4, 10});
    problem = describe(arguments);
  }
  [[nodiscard]] device::Arguments fill(Pass pass = Pass::forward) const {
    return device_arguments(pass, problem, arguments, core::Access::element);
  }
};

char* at(std::uintptr_t address) {
  return reinterpret_cast<char*>(address);
}

TEST(CudaArguments, Sizes) {
  const device::Arguments a = Given().fill();
  EXPECT_EQ(a.batch, 2);
  EXPECT_EQ(a.heads_q, 4);
  EXPECT_EQ(a.heads_kv, 2);
  EXPECT_EQ(a.heads_per_kv, 2);
  EXPECT_EQ(a.max_len_q, 10);
  EXPECT_EQ(a.max_len_kv, 20);
  EXPECT_EQ(a.dim_qk, 64);
  EXPECT_EQ(a.dim_vo, 32);
  EXPECT_EQ(a.packed_q, 0);
  EXPECT_EQ(a.bias.base, nullptr);
  EXPECT_EQ(a.mask.base, nullptr);
  EXPECT_EQ(a.slopes, nullptr);
  EXPECT_EQ(a.sinks, nullptr);
  EXPECT_EQ(a.len_q.data, nullptr);
  EXPECT_EQ(a.cu_len_kv.data, nullptr);
  EXPECT_EQ(a.nonfinite_count, nullptr);
  EXPECT_EQ(a.dq.base, nullptr);
}

TEST(CudaArguments, RowsAreBytes) {
  Given given;
  given.arguments.k = given.arguments.k.transposed(1, 2);
  given.arguments.k.shape = {2, 2, 20, 64};
  given.arguments.k.offset_bytes = 32;
  const device::Arguments a = given.fill();
  EXPECT_EQ(shared::RowAddress(a.q, 1, 3, 2), at(0x10000) + 2 * (((1 * 10 + 3) * 4 + 2) * 64));
  EXPECT_EQ(shared::RowAddress(a.k, 1, 1, 15), at(0x20000) + 32 + 2 * (2560 + 64 + 15 * 128));
  EXPECT_EQ(shared::RowAddress(a.lse, 1, 7, 3), at(0x50000) + 4 * ((1 * 4 + 3) * 10 + 7));
  EXPECT_EQ(a.q.type, static_cast<int>(DType::bf16));
  EXPECT_EQ(a.lse.type, static_cast<int>(DType::f32));
}

TEST(CudaArguments, StridesBeyond32Bits) {
  Given given;
  const std::int64_t far = (std::int64_t{1} << 40) + 8;
  given.arguments.q.strides = {3 * far, far, 64, 1};
  const device::Arguments a = given.fill();
  EXPECT_EQ(shared::RowAddress(a.q, 1, 2, 3), at(0x10000) + 2 * (5 * far + 192));
  EXPECT_EQ(a.q.vector, 0) << "rows of a tile are too far apart";
  given.arguments.q.strides = {far, std::int64_t{1} << 22, far, 1};
  EXPECT_EQ(given.fill().q.vector, 0) << "2^23 bytes";
  given.arguments.q.strides = {far, (std::int64_t{1} << 22) - 8, far, 1};
  EXPECT_EQ(given.fill().q.vector, 1) << "entries and heads may be";
  given.arguments.q.shape[1] = 1;
  given.arguments.q.strides[1] = far;
  EXPECT_EQ(given.fill().q.vector, 1) << "a single row's stride is not used";
}

TEST(CudaArguments, PackedRows) {
  Given given;
  Arguments& from = given.arguments;
  from.q = view(0x10000, DType::bf16, {30, 4, 64});
  from.o = view(0x40000, DType::f32, {30, 4, 32});
  from.lse = view(0x50000, DType::f32, {4, 30});
  from.cu_len_q = view(0x60000, DType::i32, {3});
  from.cu_len_q.strides[0] = 5;
  from.kv_end = view(0x70000, DType::i32, {30});
  given.problem = describe(from);
  given.problem.len_q = 17;
  const device::Arguments a = given.fill();
  EXPECT_EQ(a.packed_q, 1);
  EXPECT_EQ(a.packed_kv, 0);
  EXPECT_EQ(a.total_q, 30);
  EXPECT_EQ(a.max_len_q, 17);
  EXPECT_EQ(shared::RowAddress(a.q, 1, 3, 2), at(0x10000) + 2 * ((3 * 4 + 2) * 64));
  EXPECT_EQ(shared::RowAddress(a.o, 1, 3, 2), at(0x40000) + 4 * ((3 * 4 + 2) * 32));
  EXPECT_EQ(a.o.type, static_cast<int>(DType::f32));
  EXPECT_EQ(shared::RowAddress(a.lse, 1, 3, 2), at(0x50000) + 4 * (2 * 30 + 3));
  EXPECT_EQ(shared::RowAddress(a.kv_end, 1, 3, 0), at(0x70000) + 4 * 3);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.cu_len_q.data), 0x60000u);
  EXPECT_EQ(a.cu_len_q.stride, 5);
}

TEST(CudaArguments, VectorRows) {
  const auto vector = [](auto change) {
    Given given;
    change(given.arguments.q);
    given.problem = describe(given.arguments);
    return given.fill().q.vector;
  };
  EXPECT_EQ(vector([](TensorView&) {}), 1);
  EXPECT_EQ(vector([](TensorView& q) { q.offset_bytes = 8; }), 0);
  EXPECT_EQ(vector([](TensorView& q) { q.offset_bytes = 48; }), 1);
  EXPECT_EQ(vector([](TensorView& q) { q.shape[3] = 60; }), 0) << "a row ends inside 16 bytes";
  EXPECT_EQ(vector([](TensorView& q) { q.shape[3] = 56; }), 1);
  for (std::size_t d = 0; d < 3; ++d) {
    EXPECT_EQ(vector([d](TensorView& q) { q.strides[d] += 4; }), 0) << d;
    EXPECT_EQ(vector([d](TensorView& q) { q.strides[d] = 0; }), 1) << d;
  }
  Given one;
  one.arguments.q = view(0x10000, DType::bf16, {1, 10, 4, 64});
  one.arguments.q.strides[0] = 3;
  EXPECT_EQ(one.fill().q.vector, 1) << "a single seq's stride is not used";
  Given wide;
  wide.arguments.o = view(0x40000, DType::f32, {2, 10, 4, 4});
  EXPECT_EQ(wide.fill().o.vector, 1) << "4 f32 are 16 bytes";
}

TEST(CudaArguments, Pairs) {
  const auto fill = [](const char* extent, auto change, DType dtype = DType::bf16) {
    Given given;
    const Extent full = parse_problem(std::string("bias=") + extent).bias;
    given.arguments.bias = view(
        0x80000, dtype, {full.batch ? 2 : 1, full.head ? 4 : 1, full.q ? 10 : 1, full.kv ? 24 : 1});
    change(given.arguments.bias);
    given.problem.bias = full;
    return given.fill().bias;
  };
  const auto same = [](TensorView&) {};
  const device::ScoreTensor all = fill("bhqk", same);
  EXPECT_EQ(all.base, at(0x80000));
  EXPECT_EQ(all.stride_batch, 4 * 10 * 24 * 2);
  EXPECT_EQ(all.stride_head, 10 * 24 * 2);
  EXPECT_EQ(all.stride_q, 24 * 2);
  EXPECT_EQ(all.stride_kv, 2);
  EXPECT_EQ(all.vector, 1);
  const device::ScoreTensor keys = fill("k", [](TensorView& bias) { bias.strides[1] = 7; });
  EXPECT_EQ(keys.stride_batch, 0);
  EXPECT_EQ(keys.stride_head, 0);
  EXPECT_EQ(keys.stride_q, 0);
  EXPECT_EQ(keys.stride_kv, 2);
  EXPECT_EQ(keys.vector, 1);
  EXPECT_EQ(fill("bhq", same).vector, 0) << "the same for all keys: not side by side";
  EXPECT_EQ(fill("bhqk", [](TensorView& bias) { bias.offset_bytes = 2; }).vector, 0);
  EXPECT_EQ(fill("bhqk", [](TensorView& bias) { bias.strides[2] = 25; }).vector, 0);
  EXPECT_EQ(fill("bhqk", [](TensorView& bias) { bias.strides[3] = 2; }).vector, 0);
  EXPECT_EQ(fill("bhqk", same, DType::f32).type, static_cast<int>(DType::f32));
}

// As kernels divide (kernels/shared/score_entries.cuh), of the largest batch too.
TEST(CudaArguments, EntriesThatSequencesShare) {
  for (const std::int64_t batch : {std::int64_t{30030}, (std::int64_t{1} << 31) - 1}) {
    for (std::int64_t sharers = 1; sharers <= batch; sharers += sharers < 50 ? 1 : batch / 7) {
      Given given;
      given.problem.bias = {true, true, true, true, true, sharers};
      const std::uint64_t factor = given.fill().bias_factor;
      for (std::int64_t b = sharers - 1; b < batch; b += sharers * (1 + batch / sharers / 50)) {
        for (const std::int64_t at : {b, std::min(b + 1, batch - 1)}) {
          const auto sequence = static_cast<std::uint64_t>(at);
          const std::uint64_t low = sequence * (factor & 0xffffffff) >> 32;
          const std::uint64_t entry = (sequence * (factor >> 32) + low) >> 31;
          ASSERT_EQ(entry, static_cast<std::uint64_t>(at / sharers)) << sharers;
        }
      }
    }
  }
}

// Scores of raw products by the series that softcap gets, up to where it reaches.
TEST(CudaArguments, SeriesOfSoftcap) {
  Given given;
  given.problem.softcap = true;
  for (const double softcap : {0.5, 20.0, 50.0, 1e4}) {
    for (const double scale : {0.125, -2.0}) {
      given.arguments.softcap = softcap;
      given.arguments.scale = scale;
      const device::Arguments a = given.fill();
      ASSERT_NEAR(a.cap_reach, 0.6 * softcap / std::abs(scale), 1e-5 * softcap);
      for (int n = -1000; n <= 1000; ++n) {
        const double raw = static_cast<double>(a.cap_reach) * n / 1000.0;
        double series = 0.0;
        for (int k = 4; k >= 0; --k) series = series * raw * raw + a.cap_series[k];
        const double score = softcap * std::tanh(scale * raw / softcap) * std::log2(std::exp(1.0));
        ASSERT_NEAR(raw * series, score, 2e-7 * std::abs(score)) << softcap << " " << raw;
      }
      EXPECT_NEAR(a.cap_unit * softcap * std::log2(std::exp(1.0)), 1.0, 1e-6);
    }
  }
  // Coefficients that f32 can't hold: no product is in reach.
  given.arguments.softcap = 1e-300;
  EXPECT_LT(given.fill().cap_reach, 0.0f);
  given.arguments.softcap = 1e300;
  const device::Arguments a = given.fill();
  EXPECT_TRUE(std::isfinite(a.cap_reach * a.cap_reach)) << "the square of a product in reach";
}

TEST(CudaArguments, Scores) {
  Given given;
  device::Arguments a = given.fill();
  EXPECT_FLOAT_EQ(a.scale, 0.125f);
  EXPECT_FLOAT_EQ(a.scale_log2, 0.125f * 1.4426950408889634f);
  EXPECT_EQ(a.negative_scale, 0);
  given.arguments.scale = -2.0;
  a = given.fill();
  EXPECT_EQ(a.scale, -2.0f);
  EXPECT_FLOAT_EQ(a.scale_log2, 2.8853900817779268f);
  EXPECT_EQ(a.negative_scale, 1);
  given.arguments.scale = 0.0;
  a = given.fill();
  EXPECT_EQ(a.scale, 0.0f);
  EXPECT_TRUE(std::isnormal(a.scale_log2)) << "times -inf it must stay -inf, and is not flushed";
  EXPECT_LT(a.scale_log2, 1e-37f);
  given.arguments.scale = 1e300;
  a = given.fill();
  EXPECT_TRUE(std::isfinite(a.scale) && std::isfinite(a.scale_log2));
  given.arguments.scale = 3.0;
  given.arguments.softcap = 30.0;
  EXPECT_EQ(given.fill().softcap, 0.0f) << "not without the problem's word";
  given.problem.softcap = true;
  a = given.fill();
  EXPECT_EQ(a.softcap, 30.0f);
  EXPECT_FLOAT_EQ(a.inverse_cap, 0.1f);
  for (const double softcap : {1e-300, 1e300}) {
    given.arguments.softcap = softcap;
    a = given.fill();
    EXPECT_TRUE(a.softcap > 0.0f && std::isfinite(a.softcap * 1.45f)) << softcap;
    EXPECT_TRUE(a.inverse_cap > 0.0f && std::isfinite(a.inverse_cap)) << softcap;
  }
  given.arguments.alibi_slopes = view(0x60000, DType::f32, {2, 4});
  given.arguments.sinks = view(0x70000, DType::f32, {4});
  given.arguments.sinks.strides[0] = 3;
  a = given.fill();
  EXPECT_EQ(a.slopes_stride_batch, 16);
  EXPECT_EQ(a.slopes_stride_head, 4);
  EXPECT_EQ(a.sinks_stride, 12);
  given.arguments.alibi_slopes = view(0x60000, DType::f32, {4});
  EXPECT_EQ(given.fill().slopes_stride_batch, 0);
}

TEST(CudaArguments, Dropout) {
  Given given;
  given.arguments.dropout_p = 0.5;
  EXPECT_EQ(given.fill().keep_threshold, 256u);
  given.problem.dropout = true;
  given.arguments.seed = std::uint64_t{5};
  given.arguments.offset = std::uint64_t{1} << 40;
  given.arguments.origin = {3, 1, -2, (std::int64_t{1} << 32) + 9, 0};
  device::Arguments a = given.fill();
  EXPECT_EQ(a.keep_threshold, 128u);
  EXPECT_EQ(a.keep_scale, 2.0f);
  EXPECT_EQ(a.seed, 5u);
  EXPECT_EQ(a.offset, std::uint64_t{1} << 40);
  EXPECT_EQ(a.seed_at, nullptr);
  EXPECT_EQ(a.origin_q, 0xfffffffeu);
  EXPECT_EQ(a.origin_kv, 9u);
  EXPECT_EQ(a.origin_head, 3u * 4 + 1);
  EXPECT_EQ(a.origin_heads, 4u);
  given.arguments.origin.heads_q = 16;
  const std::uint64_t there = 1;
  given.arguments.seed = &there;
  a = given.fill();
  EXPECT_EQ(a.origin_head, 3u * 16 + 1);
  EXPECT_EQ(a.origin_heads, 16u);
  EXPECT_EQ(static_cast<const void*>(a.seed_at), &there);
}

// Device code on what the host fills, against the core's rule.
TEST(CudaArguments, VisibilityAtTheEndsOfTheNumbers) {
  const std::vector<std::int64_t> diags{0,
                                        1,
                                        -1,
                                        7,
                                        -7,
                                        1 << 20,
                                        -9,
                                        kMax,
                                        kMin + 1,
                                        kMax - 5,
                                        kMin + 9,
                                        1ll << 60,
                                        -(1ll << 60),
                                        (1ll << 60) + 3,
                                        -(1ll << 60) - 3};
  const std::vector<std::optional<std::int64_t>> sides{
      std::nullopt, 0, 1, 5, 1 << 20, 1ll << 60, (1ll << 60) + 4, kMax};
  int seen = 0;
  for (const Diagonal diagonal :
       {Diagonal::bottom_right, Diagonal::top_left, Diagonal::explicit_value}) {
    for (const std::int64_t diag : diags) {
      if (diagonal != Diagonal::explicit_value && diag != 0) continue;
      for (const auto& left : sides) {
        for (const auto& right : sides) {
          for (const bool causal : {false, true}) {
            Given given;
            given.problem.diagonal = diagonal;
            given.arguments.diag = diag;
            given.problem.window_left = left;
            given.problem.window_right = right;
            given.problem.causal = causal;
            const device::Arguments a = given.fill();
            const shared::Sequence seq = shared::SequenceOf(a, 1);
            ASSERT_EQ(seq.len_q, 10);
            ASSERT_EQ(seq.len_kv, 20);
            for (const int i : {0, 1, 9}) {
              const std::int64_t exact = core::diagonal_of(diagonal, diag, 10, 20);
              core::KeyRange expected = core::keys_in(given.problem, i, exact, 20);
              if (expected.empty()) expected = {0, 0};
              const shared::KeyRange keys = shared::VisibleKeys(a, seq, i);
              // Where i + diag leaves 64 bits the core saturates at i, the kernel at the diagonal.
              if (core::saturating_add(exact, 9) - 9 != exact) continue;
              EXPECT_EQ(keys.begin, expected.begin);
              EXPECT_EQ(keys.end, expected.end)
                  << to_string(given.problem) << " diag " << diag << " i " << i;
              seen += keys.end > keys.begin ? 1 : 0;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(seen, 1000);
}

TEST(CudaArguments, LengthsAreClamped) {
  Given given;
  const std::vector<int> len_q{-3, 99};
  const std::vector<int> len_kv{7, 20};
  given.arguments.len_q = view(reinterpret_cast<std::uintptr_t>(len_q.data()), DType::i32, {2});
  given.arguments.len_kv = view(reinterpret_cast<std::uintptr_t>(len_kv.data()), DType::i32, {2});
  const device::Arguments a = given.fill();
  const shared::Sequence first = shared::SequenceOf(a, 0);
  EXPECT_EQ(first.len_q, 0);
  EXPECT_EQ(first.rows_q, 10) << "padded rows past the length are written";
  EXPECT_EQ(first.len_kv, 7);
  EXPECT_EQ(first.diag, 7);
  EXPECT_EQ(shared::SequenceOf(a, 1).len_q, 10);
}

TEST(CudaArguments, KeyRangesOfQueries) {
  Given given;
  const std::vector<int> begin{-5, 3, 8, 30, 0, 0, 0, 0, 0, 0};
  const std::vector<int> end{4, 90, 8, 40, -1, 20, 20, 20, 20, 20};
  given.arguments.kv_begin =
      view(reinterpret_cast<std::uintptr_t>(begin.data()), DType::i32, {1, 10});
  given.arguments.kv_end = view(reinterpret_cast<std::uintptr_t>(end.data()), DType::i32, {1, 10});
  given.problem.kv_begin = given.problem.kv_end = true;
  const device::Arguments a = given.fill();
  const shared::Sequence seq = shared::SequenceOf(a, 1);
  const std::vector<std::pair<int, int>> expected{{0, 4}, {3, 20}, {0, 0}, {0, 0}, {0, 0}, {0, 20}};
  for (int i = 0; i < 6; ++i) {
    const shared::KeyRange keys = shared::VisibleKeys(a, seq, i);
    EXPECT_EQ(std::pair(keys.begin, keys.end), expected[static_cast<std::size_t>(i)]) << i;
  }
}

TEST(CudaArguments, Gradients) {
  Given given;
  given.arguments.dout = view(0x90000, DType::bf16, {2, 10, 4, 32});
  given.arguments.dq = view(0xa0000, DType::f32, {2, 10, 4, 64});
  given.arguments.dlse = view(0xb0000, DType::f32, {2, 4, 10});
  given.arguments.dsink = view(0xc0000, DType::f32, {4});
  given.problem.accumulate = true;
  EXPECT_EQ(given.fill().dq.base, nullptr) << "not of the forward";
  EXPECT_EQ(given.fill().accumulate, 0);
  const device::Arguments a = given.fill(Pass::backward);
  EXPECT_EQ(a.dout.base, at(0x90000));
  EXPECT_EQ(a.dq.type, static_cast<int>(DType::f32));
  EXPECT_EQ(a.dlse.stride_head, 40);
  EXPECT_EQ(a.dsink_stride, 4);
  EXPECT_EQ(a.accumulate, 1);
  EXPECT_EQ(a.dk.base, nullptr);
}

}  // namespace
}  // namespace attn::cuda::test
