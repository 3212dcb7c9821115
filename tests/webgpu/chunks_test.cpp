// A call that is cut into chunks, because a device binds or submits little at once, gives the same
// bits as the uncut call. Tilings fit the workgroup memory of devices of every size.
#include <cmath>

#include "support.hpp"
#include "webgpu/host/limits.hpp"
#include "webgpu/host/run.hpp"
#include "webgpu/passes/attention.hpp"
#include "webgpu/passes/tiling.hpp"

namespace attn::webgpu::test {
namespace {

// q, k, v, o, lse, dout, the bias that has heads, queries and keys, and the gradients of a problem
// in buffers of their own.
class Layer {
 public:
  Layer(Device& device, const Problem& problem) : device_(device) {
    const std::int64_t rows = problem.batch * problem.len_q;
    const std::int64_t keys = problem.batch * problem.len_kv;
    const auto q = rows * problem.heads_q;
    const auto k = keys * problem.heads_kv;
    const auto rows_of = [&](std::int64_t len, std::int64_t heads, std::int64_t dim) {
      return TensorView::contiguous(nullptr, DType::f32, {problem.batch, len, heads, dim});
    };
    arguments.q = take(rows_of(problem.len_q, problem.heads_q, problem.dim_qk), q * problem.dim_qk);
    arguments.k =
        take(rows_of(problem.len_kv, problem.heads_kv, problem.dim_qk), k * problem.dim_qk);
    arguments.v =
        take(rows_of(problem.len_kv, problem.heads_kv, problem.dim_vo), k * problem.dim_vo);
    arguments.o = take(rows_of(problem.len_q, problem.heads_q, problem.dim_vo), q * problem.dim_vo);
    arguments.dout =
        take(rows_of(problem.len_q, problem.heads_q, problem.dim_vo), q * problem.dim_vo);
    arguments.dq = take(arguments.q, q * problem.dim_qk);
    arguments.dk = take(arguments.k, k * problem.dim_qk);
    arguments.dv = take(arguments.v, k * problem.dim_vo);
    arguments.lse = take(TensorView::contiguous(nullptr, DType::f32,
                                                {problem.batch, problem.heads_q, problem.len_q}),
                         q);
    if (!problem.bias.given) return;
    const std::int64_t entries = problem.bias.entries(problem.batch);
    const auto pairs = TensorView::contiguous(
        nullptr, DType::f32, {entries, problem.heads_q, problem.len_q, problem.len_kv});
    const std::int64_t count = entries * problem.heads_q * problem.len_q * problem.len_kv;
    arguments.bias = take(pairs, count);
    arguments.dbias = take(pairs, count);
  }

  [[nodiscard]] std::vector<float> read(const TensorView& view) {
    std::vector<float> values(elements(view));
    EXPECT_TRUE(is_ok(download(device_, static_cast<WGPUBuffer>(view.data), 0,
                               std::as_writable_bytes(std::span(values)))));
    return values;
  }

  Arguments arguments;

 private:
  static std::size_t elements(const TensorView& view) {
    std::int64_t n = 1;
    for (int d = 0; d < view.rank; ++d) n *= view.shape[static_cast<std::size_t>(d)];
    return static_cast<std::size_t>(n);
  }

  TensorView take(TensorView view, std::int64_t count) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (std::size_t n = 0; n < values.size(); ++n) {
      values[n] =
          static_cast<float>((n * 2654435761u + buffers_.size() * 40503u) % 1000u) / 500.0f - 1.0f;
    }
    Buffer& buffer = buffers_.emplace_back();
    EXPECT_TRUE(is_ok(Buffer::create(device_, values.size() * 4, kStorageUsage, buffer)));
    EXPECT_TRUE(is_ok(upload(device_, buffer.handle(), 0, std::as_bytes(std::span(values)))));
    view.data = buffer.handle();
    view.device = attn::Device::webgpu;
    return view;
  }

  Device& device_;
  std::vector<Buffer> buffers_;
};

class Chunks : public OnDevice {};

Problem problem_of() {
  Problem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.len_q = 150;
  problem.len_kv = 130;
  problem.dim_qk = 32;
  problem.dim_vo = 32;
  problem.causal = true;
  return problem;
}

std::vector<float> all_results(Device& device, const DeviceFacts& facts, std::size_t& dispatches,
                               const Problem& problem = problem_of()) {
  Layer layer(device, problem);
  dispatches = 0;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    Work work;
    EXPECT_TRUE(is_ok(make_work(WebGpuPlan(pass, problem, facts), layer.arguments, work)));
    EXPECT_TRUE(is_ok(run(device, work)));
    dispatches += work.dispatches.size();
  }
  std::vector<float> all;
  for (const TensorView* view :
       {&layer.arguments.o, &layer.arguments.lse, &layer.arguments.dq, &layer.arguments.dk,
        &layer.arguments.dv, &layer.arguments.dbias}) {
    if (!view->given()) continue;
    const std::vector<float> values = layer.read(*view);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_F(Chunks, SmallBindingsGiveTheSameBits) {
  std::size_t whole_dispatches = 0;
  const std::vector<float> whole = all_results(device(), device().facts(), whole_dispatches);
  DeviceFacts small = device().facts();
  small.max_storage_binding_bytes = 90000;  // of one entry, not of two
  std::size_t dispatches = 0;
  const std::vector<float> chunks = all_results(device(), small, dispatches);
  EXPECT_GT(dispatches, whole_dispatches);
  EXPECT_EQ(whole, chunks);
}

TEST_F(Chunks, SmallGridsGiveTheSameBits) {
  std::size_t whole_dispatches = 0;
  const std::vector<float> whole = all_results(device(), device().facts(), whole_dispatches);
  DeviceFacts small = device().facts();
  small.max_grid = 2;
  std::size_t dispatches = 0;
  const std::vector<float> chunks = all_results(device(), small, dispatches);
  EXPECT_GT(dispatches, whole_dispatches);
  EXPECT_EQ(whole, chunks);
}

TEST_F(Chunks, SmallSubmissionsGiveTheSameBits) {
  Problem problem = problem_of();
  problem.heads_q = 16;  // 24 tiles of queries that a tile of keys looks at: its loop is cut, too
  std::size_t whole_dispatches = 0;
  const std::vector<float> whole =
      all_results(device(), device().facts(), whole_dispatches, problem);
  for (const double flops : {1e6, 1e4}) {
    DeviceFacts small = device().facts();
    small.submission_flops = flops;
    std::size_t dispatches = 0;
    const std::vector<float> chunks = all_results(device(), small, dispatches, problem);
    EXPECT_GT(dispatches, whole_dispatches);
    EXPECT_EQ(whole, chunks);
  }
}

TEST_F(Chunks, GiveTheSameBitsOfABiasGradient) {
  for (const bool of_entries : {false, true}) {
    Problem problem = problem_of();
    problem.len_kv = 131;
    problem.bias = {true, of_entries, true, true, true};
    problem.dq = problem.dk = problem.dv = problem.dbias = true;
    DeviceFacts facts = device().facts();
    facts.type =
        AdapterType::cpu;  // which adds entries up in dq's kernel, however few tiles they have
    std::size_t whole_dispatches = 0;
    const std::vector<float> whole = all_results(device(), facts, whole_dispatches, problem);
    facts.submission_flops = 1e6;
    std::size_t dispatches = 0;
    const std::vector<float> chunks = all_results(device(), facts, dispatches, problem);
    EXPECT_GT(dispatches, whole_dispatches);
    EXPECT_EQ(whole, chunks);
  }
}

TEST(Submissions, FollowTheMeasuredRateFromTheSlowestOfAKindOn) {
  EXPECT_EQ(flops_of_submission(AdapterType::cpu, 0.0), 2e8);
  EXPECT_EQ(flops_of_submission(AdapterType::integrated, 0.0), 1e10);
  EXPECT_EQ(flops_of_submission(AdapterType::discrete, 0.0), 2e11);
  EXPECT_EQ(flops_of_submission(AdapterType::discrete, 1e12), 2e11);
  const double fast = flops_of_submission(AdapterType::discrete, 60e12);
  EXPECT_GT(fast, 5e11);
  EXPECT_LT(fast, 2e12);
}

std::int64_t count_of(const Extents& x) {
  return x.batches * x.heads * x.tiles * x.visits;
}

TEST(NumChunks, AreFewAndEvenAndCostNoMoreThanASubmission) {
  for (const std::int64_t batches : {1, 3, 4, 64}) {
    for (const std::int64_t heads : {1, 7, 8}) {
      for (const std::int64_t tiles : {1, 10, 256}) {
        for (const std::int64_t visits : {1, 15, 512}) {
          for (const double submissions : {0.5, 1.0, 2.5, 5.0, 100.0}) {
            const Extents whole{batches, heads, tiles, visits};
            const Extents chunks = num_chunks(whole, submissions, 1.0);
            const auto longest = [](std::int64_t n, std::int64_t of) {
              return static_cast<double>(begin_of_chunk(1, n, of)) / static_cast<double>(n);
            };
            const double share = longest(batches, chunks.batches) * longest(heads, chunks.heads) *
                                 longest(tiles, chunks.tiles);
            const bool smallest =
                chunks.batches == batches && chunks.heads == heads && chunks.tiles == tiles;
            EXPECT_TRUE(smallest ||
                        submissions * share / static_cast<double>(chunks.visits) <= 1.0001);
            EXPECT_LE(chunks.visits, std::max<std::int64_t>(visits / 8, 1));
            if (submissions <= 1.0) {
              EXPECT_EQ(chunks, Extents());
            }
            if (visits == 512 && submissions <= 5.0) {
              EXPECT_EQ(static_cast<double>(count_of(chunks)), std::ceil(submissions));
            }
            if (tiles == 256 && visits == 1 && submissions <= 5.0) {
              EXPECT_LE(static_cast<double>(count_of(chunks)), std::ceil(submissions) + 1.0);
            }
          }
        }
      }
    }
  }
}

TEST(NumChunks, FollowEachOtherWithoutGaps) {
  for (const std::int64_t whole : {1, 10, 257}) {
    for (std::int64_t chunks = 1; chunks <= whole; ++chunks) {
      EXPECT_EQ(begin_of_chunk(0, whole, chunks), 0);
      EXPECT_EQ(begin_of_chunk(chunks, whole, chunks), whole);
      const std::int64_t longest = begin_of_chunk(1, whole, chunks);
      for (std::int64_t n = 0; n < chunks; ++n) {
        const std::int64_t size =
            begin_of_chunk(n + 1, whole, chunks) - begin_of_chunk(n, whole, chunks);
        EXPECT_LE(size, longest);
        EXPECT_GE(size, longest - 1);
      }
    }
  }
}

TEST(Tilings, FitEverySizeOfWorkgroupMemory) {
  for (const std::uint32_t bytes : {16384u, 32768u, 49152u}) {
    DeviceFacts facts;
    facts.workgroup_bytes = bytes;
    facts.type = AdapterType::discrete;
    for (const std::int64_t dim : {1, 8, 40, 64, 72, 128, 136, 200, 256, 257, 400, 512}) {
      for (const bool dropout : {false, true}) {
        Problem problem;
        problem.dim_qk = dim;
        problem.dim_vo = dim <= 256 ? 257 - dim : 769 - dim;
        problem.len_q = 4;
        problem.dropout = dropout;
        EXPECT_LE(forward_bytes(forward_tiling(problem, facts), problem), bytes) << dim;
        EXPECT_LE(decode_bytes(decode_tiling(problem, facts), dropout), bytes) << dim;
        for (const BackwardKernel kernel :
             {BackwardKernel::q, BackwardKernel::kv, BackwardKernel::bias}) {
          const BackwardTiling tiling = backward_tiling(kernel, problem, facts);
          EXPECT_LE(backward_bytes(kernel, tiling, problem), bytes) << dim << " " << dropout;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attn::webgpu::test
