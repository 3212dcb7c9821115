// Threads: in deterministic mode the same bits for any number of threads and any executor; one
// Context used by many threads; calls inside a caller's own parallel region.
#include <gtest/gtest.h>

#include <atomic>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "harness/check.hpp"
#include "harness/values.hpp"
#include "layer.hpp"

namespace attn::properties {
namespace {

void run_in_reverse(void* calls, std::int32_t workers, void (*body)(void*, std::int32_t),
                    void* data) {
  ++*static_cast<int*>(calls);
  for (std::int32_t worker = workers; worker-- > 0;) body(data, worker);
}

struct Results {
  std::vector<TensorView> views;
};

enum class Options { none, dbias_of_keys, dbias_of_pairs };

Problem deterministic_problem(DType dtype, Options options) {
  Problem p;
  p.dtype = dtype;
  p.batch = 2;
  p.heads_q = 6;
  p.heads_kv = 2;
  p.len_q = 290;
  p.len_kv = 331;
  p.dim_qk = 24;
  p.dim_vo = 16;
  p.causal = true;
  p.deterministic = true;
  if (options != Options::none) {
    // dbias is summed over the batch, and over the queries or not.
    p.bias = {true, false, true, options == Options::dbias_of_pairs, true};
    p.dbias = true;
    p.sink = p.dsink = true;
    p.dropout = true;
    p.dlse = true;
  }
  return p;
}

Results results(Arena& arena, const Problem& p, const ContextOptions& options) {
  Context context(options);
  Arguments a = make_layer(arena, p);
  forward(context, p, a);
  for (const TensorView* gradient : {&a.dq, &a.dk, &a.dv}) {
    if (p.accumulate) set_zero(*gradient);
  }
  backward(context, p, a);
  Results r{{a.o, a.lse, a.dq, a.dk, a.dv}};
  if (p.dbias) r.views.push_back(a.dbias);
  if (p.dsink) r.views.push_back(a.dsink);
  return r;
}

// `what` names the calls in a failure.
void expect_same_bits(const Results& a, const Results& b, const std::string& what) {
  ASSERT_EQ(a.views.size(), b.views.size());
  for (std::size_t n = 0; n < a.views.size(); ++n) {
    EXPECT_TRUE(same_bits(a.views[n], b.views[n])) << what << ", output " << n;
  }
}

// Results with each of these numbers of threads have the bits of those with one.
void expect_same_bits_with(std::initializer_list<std::int32_t> several, Arena& arena,
                           const Problem& p) {
  const Results one = results(arena, p, threads_of(1));
  for (const std::int32_t threads : several) {
    expect_same_bits(one, results(arena, p, threads_of(threads)),
                     to_string(p) + ", " + std::to_string(threads) + " threads");
  }
}

TEST(Threads, AnyNumberGivesTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const Options options : {Options::none, Options::dbias_of_keys, Options::dbias_of_pairs}) {
      Arena arena;
      const Problem p = deterministic_problem(dtype, options);
      expect_same_bits_with({2, 3, 5}, arena, p);
    }
  }
}

// A task has several small problems, fewer with more threads.
TEST(Threads, SmallProblemsGiveTheSameBits) {
  Arena arena;
  Problem p = deterministic_problem(DType::f32, Options::none);
  p.batch = 70;
  p.len_q = p.len_kv = 33;
  p.dim_qk = 16;
  expect_same_bits_with({2, 3, 5}, arena, p);
}

// Fewer (batch, key head) than threads: tasks take turns at the sums of dq, which lie in dq for f32
// and f64, next to it for bf16 and where gradients are added to. Four sequences of few keys each
// take turns at slots of sums too, and sequences at those of dbias.
TEST(Threads, FewHeadsGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const bool accumulate : {false, true}) {
      for (const std::int64_t batch : {1, 4}) {
        Arena arena;
        Problem p =
            deterministic_problem(dtype, batch == 1 ? Options::none : Options::dbias_of_pairs);
        p.batch = batch;
        p.heads_q = p.heads_kv = batch == 1 ? 1 : 2;
        p.len_q = batch == 1 ? 613 : 130;
        p.len_kv = batch == 1 ? 700 : 190;
        p.accumulate = accumulate;
        expect_same_bits_with({3, 5, 8}, arena, p);
      }
    }
  }
}

// Query heads that share a key head have tasks of their own, which add to the same dk and dv. With
// one thread a task computes all blocks of keys, with more some or one.
TEST(Threads, QueryHeadsThatShareAKeyHeadGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const char* options :
         {"", "batch=2 accumulate dropout sink dsink rope=half", "heads_q=3 heads_kv=1 dq=off",
          "batch=3 mask=bhqk dv=off", "causal=off alibi dk=off"}) {
      Arena arena;
      Problem p = parse_problem(
          "heads_q=6 heads_kv=2 len_q=530 len_kv=613 dim_qk=24 dim_vo=16 causal deterministic " +
          std::string(options));
      p.dtype = dtype;
      Context context(threads_of(3));
      EXPECT_NE(plan(context, Pass::backward, p).config.find("dkv_terms=3"), std::string::npos);
      expect_same_bits_with({2, 3, 16}, arena, p);
    }
  }
}

// With few threads a task computes several small (batch, key head) pairs, and in the backward their
// row sums too. The last task has fewer pairs.
TEST(Threads, SeveralSmallPairsInOneTaskGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const bool options : {false, true}) {
      Arena arena;
      Problem p = deterministic_problem(dtype, Options::none);
      p.batch = 19;
      p.len_q = 17;
      p.len_kv = 32;
      p.causal = options;
      if (options) {
        p.sink = p.dsink = p.dropout = p.dlse = p.accumulate = true;
        p.rope = Rope::half;
      }
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        Context few(threads_of(1));
        Context many(threads_of(5));
        const PlanSummary one = plan(few, pass, p);
        const bool small = one.kernel.ends_with("_small");  // a task of these has more pairs
        EXPECT_NE(one.config.find(small ? "pairs_of_task=9" : "pairs_of_task=4"),
                  std::string::npos);
        EXPECT_EQ(plan(many, pass, p).config.find("pairs_of_task"), std::string::npos);
      }
      expect_same_bits_with({5}, arena, p);
    }
  }
}

// Blocks of keys that see only some of the rows, and strips whose rows see two blocks.
TEST(Threads, WindowsGiveTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
    for (const bool accumulate : {false, true}) {
      Arena arena;
      Problem p = deterministic_problem(dtype, Options::none);
      p.batch = 1;
      p.len_q = p.len_kv = 613;
      p.causal = false;
      p.window_left = 70;
      p.window_right = 30;
      p.accumulate = accumulate;
      expect_same_bits_with({3, 5, 8}, arena, p);
    }
  }
}

TEST(Threads, ACallersParallelForMayRunInReverseOneByOne) {
  for (const Options options : {Options::none, Options::dbias_of_keys, Options::dbias_of_pairs}) {
    Arena arena;
    const Problem p = deterministic_problem(DType::f32, options);
    const Results one = results(arena, p, threads_of(1));
    int calls = 0;
    ContextOptions custom = threads_of(4);
    custom.parallel_for = run_in_reverse;
    custom.parallel_for_user = &calls;
    const Results reverse = results(arena, p, custom);
    EXPECT_GT(calls, 0);
    expect_same_bits(one, reverse, "tasks in reverse");
  }
}

TEST(Threads, DecodeGivesTheSameBits) {
  Arena arena;
  Problem p = deterministic_problem(DType::f32, Options::none);
  p.len_q = 1;
  p.len_kv = 900;
  p.split_keys = 100;
  const Arguments a = make_layer(arena, p);
  Context single(threads_of(1));
  decode(single, p, a);
  for (const std::int32_t threads : {2, 3, 5}) {
    Arguments b = a;
    b.o = arena.copy(a.o);
    set_zero(b.o);
    Context context(threads_of(threads));
    decode(context, p, b);
    EXPECT_TRUE(same_bits(a.o, b.o)) << threads;
  }
}

// With few threads a task has all key heads, which take turns. Rows of whole vectors are multiplied
// from where they lie, others are converted before. Heads see keys from different ones on. In f32
// AMD processors without AVX-512 visit all heads at a few keys at a time.
void expect_same_bits_of_all_heads(DType dtype) {
  for (const bool softcap : {false, true}) {
    Arena arena;
    Problem p =
        parse_problem("batch=2 heads_q=6 heads_kv=3 len_q=2 len_kv=300 dim_qk=40 dim_vo=24 causal");
    p.dtype = dtype;
    p.window_left = 200;
    p.split_keys = 110;
    p.softcap = softcap;
    if (softcap) {
      p.dim_qk = 64;
      p.dim_vo = 32;
      p.mask = {true, true, true, true, true};
    }
    const Arguments a = make_layer(arena, p);
    for (std::int64_t n = 0; p.mask.given && n < 2 * 6 * 2; ++n) {
      auto* row = static_cast<std::uint8_t*>(a.mask.address()) + n * p.len_kv;
      std::fill_n(row, 100 + n % 12 / 2 * 33, std::uint8_t{0});
    }
    Context single(threads_of(1));
    EXPECT_NE(plan(single, Pass::decode, p).config.find("heads_of_task=3"), std::string::npos);
    decode(single, p, a);
    Arguments b = a;
    b.o = arena.copy(a.o);
    set_zero(b.o);
    Context context(threads_of(8));
    EXPECT_EQ(plan(context, Pass::decode, p).config.find("heads_of_task"), std::string::npos);
    decode(context, p, b);
    EXPECT_TRUE(same_bits(a.o, b.o));
    EXPECT_TRUE(same_bits(a.lse, b.lse));
  }
}
TEST(Threads, DecodeOfAllHeadsInOneTaskGivesTheSameBits) {
  expect_same_bits_of_all_heads(DType::bf16);
  expect_same_bits_of_all_heads(DType::f32);
}

TEST(Threads, OneContextServesMany) {
  Context context(threads_of(2));
  harness::Filter filter;
  filter.limit = 60;
  const std::vector<harness::Case> list = harness::case_list(filter);
  std::atomic<std::size_t> next{0};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < list.size(); at = next++) {
        if (!harness::run_case(context, list[at]).passed) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
}

}  // namespace
}  // namespace attn::properties
