// The kernels around the main ones, run on the host (emulated/device.hpp) with the arguments, grids
// and workspace of a plan, against what they say that they compute.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulated_call.hpp"
// After the words that it is written in.
#include "cuda/kernels/shared/entry.cuh"

namespace attn::cuda::test {
namespace {

Call backward_call(DType out, std::int64_t dim, const std::vector<int>& packed = {}) {
  Call call;
  attn::Arguments& a = call.arguments;
  const std::int64_t rows = 140;
  const auto queries = [&](DType dtype, std::int64_t columns) {
    return packed.empty() ? call.make(dtype, {3, 70, 2, columns})
                          : call.make(dtype, {rows, 2, columns});
  };
  const auto statistics = [&] {
    return packed.empty() ? call.make(DType::f32, {3, 2, 70}) : call.make(DType::f32, {2, rows});
  };
  a.q = queries(DType::bf16, dim);
  a.k = call.make(DType::bf16,
                  {packed.empty() ? 3 : static_cast<int>(packed.size()) - 1, 90, 1, dim});
  a.v = call.make(DType::bf16, {a.k.shape[0], 90, 1, dim});
  a.o = queries(out, dim);
  a.dout = queries(out, dim);
  a.lse = statistics();
  a.dlse = statistics();
  a.dq = queries(DType::bf16, dim);
  if (packed.empty()) {
    a.len_q = call.integers({70, 33, 0});
  } else {
    a.cu_len_q = call.integers(packed);
  }
  a.sinks = call.make(DType::f32, {2});
  a.dsink = call.make(DType::f32, {2});
  call.problem = describe(a);
  call.problem.len_q = 70;
  call.problem.causal = true;
  // Some rows see nothing; their dlse does not count.
  for (const int i : {0, 5, 64}) {
    static_cast<float*>(a.lse.address())[i] = -kInfinity;
    static_cast<float*>(a.dlse.address())[i] = std::numeric_limits<float>::quiet_NaN();
  }
  return call;
}

double dot(const Call& call, const shared::Entry& entry, int i, int head) {
  double sum = 0.0;
  const auto dtype = static_cast<DType>(call.device.o.type);
  for (int d = 0; d < call.device.dim_vo; ++d) {
    const std::int64_t at = d * size_of(dtype);
    sum += double{load(shared::RowAddress(call.device.o, entry.b, entry.first_q + i, head) + at,
                       dtype)} *
           load(shared::RowAddress(call.device.dout, entry.b, entry.first_q + i, head) + at, dtype);
  }
  return sum;
}

void expect_prepared(Call& call) {
  ASSERT_NO_FATAL_FAILURE(call.prepare(Pass::backward));
  ASSERT_EQ(call.plan.plan.tile_q, 64) << "what the emulated kernel is compiled for";
  call.run("attn_prepare");
  call.run("attn_sink_gradient");
  const device::Arguments& a = call.device;
  EXPECT_TRUE(call.workspace_end_is_whole());
  for (long long n = 0; n < a.zeros_bytes; ++n) ASSERT_EQ(a.zeros[n], 0) << n;
  const int tiles = (a.max_len_q + 63) / 64;
  std::vector<double> dsink(2, 0.0);
  int finite = 0;
  for (int b = 0; b < a.batch; ++b) {
    const shared::Entry entry = shared::EntryOf(a, b);
    for (int tile = 0; tile < tiles; ++tile) {
      shared::TileRange expected;
      for (int i = 64 * tile; i < std::min(64 * tile + 64, entry.rows_q); ++i) {
        const long long first = a.packed_q != 0 ? entry.first_q : 1ll * b * a.max_len_q;
        shared::KeyRange keys;
        if (i < entry.len_q) {
          keys = shared::KeysOf(a, entry, i);
          shared::Join(expected, keys);
        }
        EXPECT_EQ(a.row_ranges[2 * (first + i)], keys.begin) << b << " " << i;
        EXPECT_EQ(a.row_ranges[2 * (first + i) + 1], keys.end) << b << " " << i;
      }
      const int* range = a.q_ranges + 4 * (b * tiles + tile);
      EXPECT_EQ(range[0], expected.first) << b << " " << tile;
      EXPECT_EQ(range[1], expected.last) << b << " " << tile;
      EXPECT_EQ(range[2], expected.all_first) << b << " " << tile;
      EXPECT_EQ(range[3], expected.all_last) << b << " " << tile;
    }
    for (int head = 0; head < 2; ++head) {
      for (int i = 0; i < entry.rows_q; ++i) {
        const auto value = [&](const device::Rows& rows) {
          return *reinterpret_cast<const float*>(
              shared::RowAddress(rows, b, entry.first_q + i, head));
        };
        const auto* stats =
            reinterpret_cast<const float*>(shared::RowAddress(a.stats, b, entry.first_q + i, head));
        if (i >= entry.len_q || value(a.lse) == -kInfinity) {
          EXPECT_EQ(stats[0], kInfinity);
          EXPECT_EQ(stats[1], 0.0f);
          continue;
        }
        const double delta = a.delta.base != nullptr
                                 ? double{value(a.delta)}
                                 : dot(call, entry, i, head) - double{value(a.dlse)};
        EXPECT_NEAR(stats[0], value(a.lse) * 1.4426950408889634, 1e-6);
        EXPECT_NEAR(stats[1], delta, 1e-5) << b << " " << head << " " << i;
        dsink[static_cast<std::size_t>(head)] -=
            std::exp(a.sinks[head] - double{value(a.lse)}) * delta;
        ++finite;
      }
    }
  }
  EXPECT_GT(finite, 100);
  for (int head = 0; head < 2; ++head) {
    EXPECT_NEAR(a.dsink[head], dsink[static_cast<std::size_t>(head)], 1e-3) << head;
  }
}

TEST(CudaSmallKernels, PrepareAndSinks) {
  // Whole chunks, chunks that some lanes don't have, elements; 8, 16 and 32 lanes a row.
  for (const auto& [out, dim] : {std::pair{DType::bf16, 64},
                                 {DType::bf16, 100},
                                 {DType::bf16, 256},
                                 {DType::bf16, 37},
                                 {DType::f32, 44}}) {
    SCOPED_TRACE(std::string(to_string(out)) + " " + std::to_string(dim));
    Call call = backward_call(out, dim);
    expect_prepared(call);
  }
}

// Many short entries, some empty, one past the end, one that ends before it begins; rows left out.
TEST(CudaSmallKernels, PrepareAndSinksOfPackedRows) {
  std::vector<int> lengths{3, 64, 64, 64};
  for (int n = 0; n < 10; ++n) lengths.push_back(65 + n);
  lengths.push_back(500);
  lengths.push_back(50);
  Call call = backward_call(DType::bf16, 64, lengths);
  expect_prepared(call);
}

TEST(CudaSmallKernels, CallersDelta) {
  Call call = backward_call(DType::bf16, 64);
  call.arguments.o = call.arguments.dlse = TensorView{};
  call.arguments.delta = call.make(DType::f32, {3, 2, 70});
  call.problem.delta = true;
  call.problem.dlse = false;
  expect_prepared(call);
}

TEST(CudaSmallKernels, SinksAddUp) {
  Call call = backward_call(DType::bf16, 64);
  static_cast<float*>(call.arguments.sinks.address())[1] = -kInfinity;
  auto* dsink = static_cast<float*>(call.arguments.dsink.address());
  call.problem.accumulate = true;
  ASSERT_NO_FATAL_FAILURE(call.prepare(Pass::backward));
  call.run("attn_prepare");
  const std::vector<float> before(dsink, dsink + 2);
  call.run("attn_sink_gradient");
  const float once = dsink[0] - before[0];
  EXPECT_NE(once, 0.0f);
  EXPECT_EQ(dsink[1], before[1]) << "no sink";
  call.run("attn_sink_gradient");
  EXPECT_FLOAT_EQ(dsink[0] - before[0], 2.0f * once);
}

TEST(CudaSmallKernels, Finish) {
  for (const DType grad : {DType::bf16, DType::f32}) {
    for (const auto& [dim, counts] : {std::pair<std::int64_t, bool>{44, true},
                                      {37, true},
                                      {100, true},
                                      {256, false},
                                      {104, false},
                                      {64, false},
                                      {96, false}}) {
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(std::string(to_string(grad)) + " " + std::to_string(dim));
        const bool packed = dim == 100 || dim == 96;
        Call call = backward_call(DType::bf16, dim,
                                  packed ? std::vector<int>{3, 12, 12, 75} : std::vector<int>{});
        if (grad == DType::f32) {
          call.arguments.dq =
              packed ? call.make(grad, {140, 2, dim}) : call.make(grad, {3, 70, 2, dim});
        }
        call.problem.dtype_grad = grad;
        call.problem.accumulate = accumulate;
        call.problem.nonfinite_zero = counts;
        if (counts) call.arguments.nonfinite_count = call.integers({5});
        ASSERT_NO_FATAL_FAILURE(call.prepare(Pass::backward));
        const device::Arguments& a = call.device;
        auto* sums = reinterpret_cast<float*>(a.dq_sum.base);
        const std::int64_t count = call.plan.workspace.dq_sum.bytes / 4;
        for (std::int64_t n = 0; n < count; ++n) {
          sums[n] = static_cast<float>(n * 7919 % 10007) / 5000.0f - 1.0f;
        }
        if (counts) sums[3] = kInfinity;
        std::vector<float> old;
        const int batch = a.packed_q != 0 ? 1 : a.batch;
        const int rows = a.packed_q != 0 ? a.total_q : a.max_len_q;
        // Accumulators of 16 x 8: lane 4 (row % 8) + column / 2 has columns of two rows.
        const auto sum_of = [&](int b, int i, int head, int d) {
          if (a.packed_q != 0) {
            const auto begin = [&](int entry) {
              return a.cu_len_q.data[entry * a.cu_len_q.stride];
            };
            int entry = 0;
            while (entry < a.batch && !(begin(entry) <= i && i < begin(entry + 1))) ++entry;
            if (entry == a.batch) return 0.0f;
            i += (begin(entry) / 16 + entry) * 16 - begin(entry);
          }
          const char* rows16 = shared::RowAddress(a.dq_sum, b, i / 16 * 16, head);
          const int lane = i % 8 * 4 + d % 8 / 2;
          return reinterpret_cast<const float*>(
              rows16)[d / 8 * 128 + lane * 4 + i / 8 % 2 * 2 + d % 2];
        };
        const auto each = [&](auto visit) {
          for (int b = 0; b < batch; ++b)
            for (int i = 0; i < rows; ++i)
              for (int head = 0; head < 2; ++head)
                for (int d = 0; d < dim; ++d)
                  visit(shared::RowAddress(a.dq, b, i, head) + d * size_of(grad),
                        sum_of(b, i, head, d));
        };
        each([&](char* at, float) { old.push_back(accumulate ? load(at, grad) : 0.0f); });
        call.run("attn_finish");
        std::size_t n = 0;
        each([&](char* at, float sum) {
          float expected = std::fma(sum, a.scale, old[n++]);
          if (!std::isfinite(expected)) expected = 0.0f;
          char rounded[4];
          store(rounded, grad, expected);
          ASSERT_EQ(load(at, grad), load(rounded, grad)) << n;
        });
        if (counts) {
          EXPECT_EQ(*a.nonfinite_count, 6u);
        }
      }
    }
  }
}

// Of a packed tensor; sanitizers see the end behind the one number in cu_len_q.
TEST(CudaSmallKernels, FinishWithoutEntries) {
  const std::vector<int> begin{7};
  Call call = backward_call(DType::bf16, 64, begin);
  call.arguments.cu_len_q = TensorView::contiguous(begin.data(), DType::i32, {1});
  call.problem.batch = 0;
  ASSERT_NO_FATAL_FAILURE(call.prepare(Pass::backward));
  for (const char* kernel : {"attn_prepare", "attn_finish"}) call.run(kernel);
  const auto* dq = static_cast<const std::uint16_t*>(call.arguments.dq.address());
  EXPECT_TRUE(std::all_of(dq, dq + 140 * 2 * 64, [](std::uint16_t bits) { return bits == 0; }));
}

// Of one row, whose end is none of 16 bytes; of more than a block's keys; of rows that are no
// multiples of 16 bytes; and rows every other of which is somebody else's.
TEST(CudaSmallKernels, FinishOfTheBiasGradient) {
  struct Of {
    std::int64_t batch, heads, len_q, len_kv;
  };
  for (const Of of : {Of{1, 1, 1, 129}, {2, 1, 9, 1100}, {1, 1, 70, 90}, {2, 2, 16, 96}}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      for (const auto& [accumulate, counts, apart] :
           {std::array{false, false, false}, {true, false, false}, {false, true, true}}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " " + std::to_string(of.len_kv));
        Call call;
        attn::Arguments& a = call.arguments;
        for (TensorView* view : {&a.q, &a.o, &a.dout, &a.dq}) {
          *view = call.make(DType::bf16, {2, of.len_q, 2, 16});
        }
        for (TensorView* view : {&a.k, &a.v}) {
          *view = call.make(DType::bf16, {2, of.len_kv, 2, 16});
        }
        a.lse = call.make(DType::f32, {2, 2, of.len_q});
        a.bias = call.make(dtype, {of.batch, of.heads, of.len_q, of.len_kv});
        const TensorView all = call.make(dtype, {of.batch, of.heads, 2 * of.len_q, of.len_kv});
        a.dbias = all;
        a.dbias.shape[2] = of.len_q;
        if (apart) a.dbias.strides[2] *= 2;
        call.problem = describe(a);
        call.problem.bias.q = true;  // also of one query
        call.problem.accumulate = accumulate;
        call.problem.nonfinite_zero = counts;
        if (counts) a.nonfinite_count = call.integers({5});
        ASSERT_NO_FATAL_FAILURE(call.prepare(Pass::backward));
        auto* sums = reinterpret_cast<float*>(call.device.dbias_sum);
        const std::int64_t count = dbias_sum_elements(call.problem);
        ASSERT_EQ(call.plan.workspace.dbias_sum.bytes, count * 4);
        for (std::int64_t n = 0; n < count; ++n) {
          sums[n] = static_cast<float>(n * 7919 % 10007) / 5000.0f - 1.0f;
        }
        if (counts) sums[0] = kInfinity;
        // Accumulators of 16 keys x 8 queries: lane 4 (key % 8) + query / 2 has queries of two
        // keys.
        const auto sum_of = [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
          const std::int64_t eights = (of.len_q + 7) / 8;
          const std::int64_t sixteens = (of.len_kv + 15) / 16;
          const std::int64_t accumulator =
              ((b * of.heads + h) * eights + i / 8) * sixteens + j / 16;
          return sums[accumulator * 128 + j % 8 * 16 + i % 8 / 2 * 4 + j / 8 % 2 * 2 + i % 2];
        };
        const std::int64_t bytes = size_of(dtype);
        const std::int64_t rows = of.batch * of.heads * 2 * of.len_q;
        auto* const memory = static_cast<char*>(all.address());
        const std::string before(memory, static_cast<std::size_t>(rows * of.len_kv * bytes));
        call.run("attn_bias_gradient_finish");
        std::string expected = before;
        for (std::int64_t b = 0; b < of.batch; ++b)
          for (std::int64_t h = 0; h < of.heads; ++h)
            for (std::int64_t i = 0; i < of.len_q; ++i)
              for (std::int64_t j = 0; j < of.len_kv; ++j) {
                const std::int64_t at =
                    b * a.dbias.strides[0] + h * a.dbias.strides[1] + i * a.dbias.strides[2] + j;
                char* to = expected.data() + at * bytes;
                const float sum = sum_of(b, h, i, j) + (accumulate ? load(to, dtype) : 0.0f);
                store(to, dtype, std::isfinite(sum) ? sum : 0.0f);
              }
        EXPECT_EQ(std::memcmp(memory, expected.data(), expected.size()), 0);
        if (counts) {
          EXPECT_EQ(*call.device.nonfinite_count, 6u);
        }
      }
    }
  }
}

TEST(CudaSmallKernels, ThreadsThatWaitForEachOtherAreSaid) {
  const auto kernel = [](int) {
    if (threadIdx.x == 0) {
      __syncthreads();
    } else {
      (void)__reduce_min_sync(~0u, 0);
    }
  };
  EXPECT_THROW(emulated::run(kernel, 1, 32, 0), std::logic_error);
}

TEST(CudaSmallKernels, RowsOfNoEntry) {
  for (const std::int64_t dim : {64, 37}) {
    Call call;
    attn::Arguments& a = call.arguments;
    a.q = call.make(DType::bf16, {600, 3, dim});
    a.k = call.make(DType::bf16, {600, 3, dim});
    a.v = call.make(DType::bf16, {600, 3, dim});
    a.o = call.make(DType::f32, {600, 3, dim});
    a.lse = call.make(DType::f32, {3, 600});
    // Row 599 and others are of no entry: gaps, lengths cut at 150, one that ends before it begins.
    a.cu_len_q = call.integers({10, 100, 90, 260, 599});
    a.cu_len_kv = a.cu_len_q;
    call.problem = describe(a);
    call.problem.len_q = call.problem.len_kv = 150;
    const auto has_entry = [](int row) {
      return (row >= 10 && row < 100) || (row >= 90 && row < 240) || (row >= 260 && row < 410);
    };
    const auto before = [&](const TensorView& view) {
      const auto* begin = static_cast<const char*>(view.address());
      return std::vector<char>(begin, begin + 600 * 3 * dim * size_of(view.dtype));
    };
    const auto expect_zero = [&](const TensorView& view, const std::vector<char>& old) {
      const std::int64_t bytes = 3 * dim * size_of(view.dtype);
      for (int row = 0; row < 600; ++row) {
        const auto* at = static_cast<const char*>(view.address()) + row * bytes;
        const bool same = std::equal(at, at + bytes, old.data() + row * bytes);
        const bool zero = std::all_of(at, at + bytes, [](char byte) { return byte == 0; });
        EXPECT_TRUE(has_entry(row) ? same : zero) << row;
      }
    };
    ASSERT_NO_FATAL_FAILURE(call.prepare(Pass::forward));
    const std::vector<char> o = before(a.o);
    const auto* lse = static_cast<const float*>(a.lse.address());
    const std::vector<float> lse_before(lse, lse + 1800);
    call.run("attn_uncovered");
    expect_zero(a.o, o);
    for (int n = 0; n < 1800; ++n) {
      EXPECT_EQ(lse[n], has_entry(n % 600) ? lse_before[static_cast<std::size_t>(n)] : -kInfinity);
    }
    a.dout = call.make(DType::f32, {600, 3, dim});
    a.dk = call.make(DType::bf16, {600, 3, dim});
    a.dv = call.make(DType::bf16, {600, 3, dim});
    call.problem = describe(a);
    call.problem.len_q = call.problem.len_kv = 150;
    ASSERT_NO_FATAL_FAILURE(call.prepare(Pass::backward));
    const std::vector<char> dk = before(a.dk);
    const std::vector<char> dv = before(a.dv);
    call.run("attn_uncovered_gradients");
    expect_zero(a.dk, dk);
    expect_zero(a.dv, dv);
  }
}

}  // namespace
}  // namespace attn::cuda::test
