// Decode: paged against contiguous caches, append, rope in the cache, f8 caches.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "compare.hpp"
#include "memory.hpp"
#include "reference/reference.hpp"
#include "sample.hpp"

namespace attn::reference::test {
namespace {

constexpr std::int64_t kCacheBatch = 2, kCacheHeads = 2, kGroups = 1, kCapacity = 10, kCacheDim = 4;

// Random tensors of a decode step with 3 queries; caches [2, 10, 1, 4].
struct Step {
  Memory memory;
  Problem problem;
  Arguments arguments;
  std::mt19937_64 random{11};

  Numbers numbers(std::int64_t count) {
    Numbers values;
    for (std::int64_t n = 0; n < count; ++n) values.push_back(uniform(random, -1.0, 1.0));
    return values;
  }
  Step() {
    Problem& p = problem;
    p.dtype = DType::f64;
    p.batch = kCacheBatch;
    p.heads_q = kCacheHeads;
    p.heads_kv = kGroups;
    p.len_q = 3;
    p.len_kv = kCapacity;
    p.dim_qk = p.dim_vo = kCacheDim;
    p.causal = true;
    p.lengths_kv = true;
    Arguments& a = arguments;
    a.q = memory.f64({kCacheBatch, 3, kCacheHeads, kCacheDim},
                     numbers(kCacheBatch * 3 * kCacheHeads * kCacheDim));
    a.k = memory.f64({kCacheBatch, kCapacity, 1, kCacheDim},
                     numbers(kCacheBatch * kCapacity * kCacheDim));
    a.v = memory.f64({kCacheBatch, kCapacity, 1, kCacheDim},
                     numbers(kCacheBatch * kCapacity * kCacheDim));
    a.o = memory.filled({kCacheBatch, 3, kCacheHeads, kCacheDim}, 777.0);
    a.lse = memory.filled({kCacheBatch, kCacheHeads, 3}, 777.0);
    a.len_kv = memory.integers({kCacheBatch}, {6, 9});
  }
  [[nodiscard]] Numbers o() const { return values_of(arguments.o); }
  [[nodiscard]] Numbers lse() const { return values_of(arguments.lse); }

  // Moves the cache into pages of this size, in scattered order; unused slots hold NaN.
  void make_paged(std::int64_t page_size) {
    const std::int64_t pages = (kCapacity + page_size - 1) / page_size;
    const Shape shape{kCacheBatch * pages + 1, page_size, 1, kCacheDim};
    const TensorView k = memory.filled(shape, kNaN);
    const TensorView v = memory.filled(shape, kNaN);
    std::vector<std::int32_t> table;
    for (std::int64_t b = 0; b < kCacheBatch; ++b) {
      for (std::int64_t n = 0; n < pages; ++n) {
        const std::int64_t page = kCacheBatch * pages - (n * kCacheBatch + b);
        table.push_back(static_cast<std::int32_t>(page));
        for (std::int64_t j = n * page_size; j < std::min((n + 1) * page_size, kCapacity); ++j) {
          for (std::int64_t c = 0; c < kCacheDim; ++c) {
            const std::int64_t from = (b * kCapacity + j) * kCacheDim + c;
            const std::int64_t to = (page * page_size + j % page_size) * kCacheDim + c;
            write(k, to, read(arguments.k, from));
            write(v, to, read(arguments.v, from));
          }
        }
      }
    }
    arguments.k = k;
    arguments.v = v;
    arguments.block_table = memory.integers({kCacheBatch, pages}, table);
    problem.page_size = page_size;
  }
  void add_new_rows(std::int64_t count) {
    problem.len_new = count;
    arguments.k_new =
        memory.f64({kCacheBatch, count, 1, kCacheDim}, numbers(kCacheBatch * count * kCacheDim));
    arguments.v_new =
        memory.f64({kCacheBatch, count, 1, kCacheDim}, numbers(kCacheBatch * count * kCacheDim));
  }
};

TEST(Cache, PagedEqualsContiguous) {
  Step contiguous;
  ASSERT_EQ(decode(contiguous.problem, contiguous.arguments), "");
  for (const std::int64_t page_size : {1, 3, 4, 16}) {
    Step paged;
    paged.make_paged(page_size);
    ASSERT_EQ(decode(paged.problem, paged.arguments), "");
    EXPECT_TRUE(same(paged.o(), contiguous.o())) << page_size;
    EXPECT_TRUE(same(paged.lse(), contiguous.lse())) << page_size;
  }
}

TEST(Cache, AppendEqualsRowsAlreadyThere) {
  for (const std::int64_t page_size : {0, 3}) {
    Step appended;
    if (page_size > 0) appended.make_paged(page_size);
    appended.add_new_rows(3);  // sequence 0: rows 6 to 8; sequence 1: row 9, two are dropped
    Step there;
    const TensorView k_new = appended.arguments.k_new;
    const TensorView v_new = appended.arguments.v_new;
    for (std::int64_t b = 0; b < kCacheBatch; ++b) {
      const std::int64_t start = b == 0 ? 6 : 9;
      for (std::int64_t t = 0; t < (b == 0 ? 3 : 1); ++t) {
        for (std::int64_t c = 0; c < kCacheDim; ++c) {
          const std::int64_t at = (b * kCapacity + start + t) * kCacheDim + c;
          write(there.arguments.k, at, read(k_new, (b * 3 + t) * kCacheDim + c));
          write(there.arguments.v, at, read(v_new, (b * 3 + t) * kCacheDim + c));
        }
      }
    }
    there.arguments.len_kv = there.memory.integers({kCacheBatch}, {9, 10});
    if (page_size > 0) there.make_paged(page_size);
    ASSERT_EQ(decode(appended.problem, appended.arguments), "");
    ASSERT_EQ(decode(there.problem, there.arguments), "");
    EXPECT_TRUE(same(appended.o(), there.o()));
    EXPECT_TRUE(same(appended.lse(), there.lse()));
    EXPECT_TRUE(same(values_of(appended.arguments.k), values_of(there.arguments.k)));
    EXPECT_TRUE(same(values_of(appended.arguments.v), values_of(there.arguments.v)));
  }
}

TEST(Cache, AppendToMissingPageIsDropped) {
  Step s;
  s.make_paged(4);
  s.add_new_rows(1);
  s.arguments.len_kv = s.memory.integers({kCacheBatch}, {8, 3});
  std::int32_t* table = static_cast<std::int32_t*>(s.arguments.block_table.data);
  table[2] = -1;  // sequence 0: keys 8 to 11
  const Numbers before = values_of(s.arguments.k);
  ASSERT_EQ(decode(s.problem, s.arguments), "");
  const Numbers after = values_of(s.arguments.k);
  std::size_t changed = 0;
  for (std::size_t e = 0; e < after.size(); ++e) {
    changed += !(after[e] == before[e]) && !std::isnan(after[e]);
  }
  EXPECT_EQ(changed, 4u);  // one row of sequence 1
}

// Rotating the complete cache first and then decoding equals the forward with rope on raw keys.
TEST(Cache, RopeInDecode) {
  Step raw;
  raw.arguments.len_kv = raw.memory.integers({kCacheBatch}, {8, 9});
  raw.problem.rope = Rope::half;
  raw.arguments.rope_pos_offset = 3;
  ASSERT_EQ(forward(raw.problem, raw.arguments), "");

  Step cached;
  cached.problem.rope = Rope::half;
  cached.arguments.rope_pos_offset = 3;
  // The last 2 rows of each sequence are appended; the others are rotated in place.
  cached.problem.len_new = 2;
  cached.arguments.len_kv = cached.memory.integers({kCacheBatch}, {6, 7});
  Numbers k_new, v_new;
  for (std::int64_t b = 0; b < kCacheBatch; ++b) {
    for (std::int64_t e = 0; e < 2 * kCacheDim; ++e) {
      const std::int64_t at = (b * kCapacity + (b == 0 ? 6 : 7)) * kCacheDim + e;
      k_new.push_back(read(cached.arguments.k, at));
      v_new.push_back(read(cached.arguments.v, at));
      write(cached.arguments.k, at, kNaN);
      write(cached.arguments.v, at, kNaN);
    }
  }
  cached.arguments.k_new = cached.memory.f64({kCacheBatch, 2, 1, kCacheDim}, k_new);
  cached.arguments.v_new = cached.memory.f64({kCacheBatch, 2, 1, kCacheDim}, v_new);
  RopeArguments r;
  r.x = r.out = cached.arguments.k;
  r.pos_offset = 3;
  ASSERT_EQ(rope(r), "");
  ASSERT_EQ(decode(cached.problem, cached.arguments), "");
  EXPECT_TRUE(near(cached.o(), raw.o(), 1e-14));
  EXPECT_TRUE(near(cached.lse(), raw.lse(), 1e-14));

  // Explicit positions give the same result.
  Step positions;
  positions.problem.rope = Rope::half;
  positions.problem.rope_positions = true;
  positions.problem.len_new = 2;
  Arguments& a = positions.arguments;
  a.len_kv = cached.arguments.len_kv;
  a.k = cached.arguments.k;  // appended rows are written a second time
  a.v = cached.arguments.v;
  a.k_new = cached.arguments.k_new;
  a.v_new = cached.arguments.v_new;
  a.rope_pos_q = positions.memory.integers({kCacheBatch, 3}, {8, 9, 10, 9, 10, 11});
  a.rope_pos_k = positions.memory.integers({kCacheBatch, 2}, {9, 10, 10, 11});
  ASSERT_EQ(decode(positions.problem, a), "");
  EXPECT_TRUE(near(positions.o(), raw.o(), 1e-14));
}

// One query and key of sequence 1, four heads on two: descales are [batch, heads_kv], also for q.
TEST(Cache, F8WithDescales) {
  for (const DType f8 : {DType::f8e4m3, DType::f8e5m2}) {
    Memory m;
    Problem p;
    p.dtype = f8;
    p.dtype_out = DType::f32;
    p.batch = 2;
    p.heads_q = 4;
    p.heads_kv = 2;
    p.len_q = p.len_kv = 1;
    p.dim_qk = p.dim_vo = 1;
    Arguments a;
    a.scale = 1.0;
    a.q = m.filled({2, 1, 4, 1}, 1.5, f8);
    a.k = m.filled({2, 1, 2, 1}, 0.5, f8);
    a.v = m.filled({2, 1, 2, 1}, -3.0, f8);
    a.o = m.filled({2, 1, 4, 1}, kNaN);
    a.lse = m.filled({2, 4, 1}, kNaN);
    a.descale_q = m.tensor(DType::f32, {2, 2}, {1.0, 2.0, 3.0, 4.0});
    a.descale_k = m.tensor(DType::f32, {2, 2}, {10.0, 20.0, 30.0, 40.0});
    a.descale_v = m.tensor(DType::f32, {2, 2}, {0.5, 0.25, 2.0, 4.0});
    ASSERT_EQ(forward(p, a), "");
    EXPECT_TRUE(same(values_of(a.o), Numbers{-1.5, -1.5, -0.75, -0.75, -6, -6, -12, -12}));
    EXPECT_TRUE(same(values_of(a.lse), Numbers{7.5, 7.5, 30.0, 30.0, 67.5, 67.5, 120.0, 120.0}));
    EXPECT_NE(backward(p, a), "");

    p.dtype = DType::f32;  // an f8 cache with q of another type
    p.dtype_kv = f8;
    a.q = m.filled({2, 1, 4, 1}, 1.5, DType::f32);
    a.descale_q = TensorView{};
    ASSERT_EQ(decode(p, a), "");
    EXPECT_TRUE(same(values_of(a.lse), Numbers{7.5, 7.5, 15.0, 15.0, 22.5, 22.5, 30.0, 30.0}));
  }
}

}  // namespace
}  // namespace attn::reference::test
