// Views that span more than 2^31 elements: large strides over reserved memory.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "harness/values.hpp"
#include "layer.hpp"

namespace attn::properties {
namespace {

class Reserved {
 public:
  explicit Reserved(std::size_t bytes)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserved() {
    if (ok()) munmap(memory_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  [[nodiscard]] bool ok() const { return memory_ != MAP_FAILED; }
  [[nodiscard]] void* data() const { return memory_; }

 private:
  std::size_t bytes_;
  void* memory_;
};

// The rows of `like`, with strides that extend past 2^32 elements.
TensorView spread(const Reserved& memory, const TensorView& like, std::int64_t skip) {
  TensorView view = like;
  view.data = memory.data();
  view.offset_bytes = skip * size_of(like.dtype);
  view.strides = {(std::int64_t{1} << 31) + 64, (std::int64_t{1} << 24) + 32,
                  (std::int64_t{1} << 12) + 16, 1};
  return view;
}

TEST(LargeView, PastTwoToThe31Elements) {
  Problem p;
  p.batch = 2;
  p.heads_q = 4;
  p.heads_kv = 2;
  p.len_q = p.len_kv = 140;
  p.dim_qk = p.dim_vo = 16;
  p.causal = true;
  constexpr std::size_t kBytes = std::size_t{20} << 30;
  const Reserved memory(kBytes);
  if (!memory.ok()) GTEST_SKIP() << "20 GiB of addresses can't be reserved here";
  Context context(threads_of(2));
  Arena arena;
  const Arguments a = make_layer(arena, p);
  forward(context, p, a);
  backward(context, p, a);
  Arguments b = a;
  std::int64_t skip = 0;
  for (const auto member : {&Arguments::q, &Arguments::k, &Arguments::v, &Arguments::dout,
                            &Arguments::o, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
    b.*member = spread(memory, a.*member, skip);
    skip += 128;
    const std::vector<double> values = harness::read_all(a.*member);
    if (skip <= 4 * 128) {
      harness::fill_all(b.*member, [&](std::uint64_t n) { return values[n]; });
    }
  }
  b.lse = arena.copy(a.lse);
  forward(context, p, b);
  backward(context, p, b);
  for (const auto member : {&Arguments::o, &Arguments::dq, &Arguments::dk, &Arguments::dv}) {
    EXPECT_EQ(difference(b.*member, a.*member), 0.0);
  }
  EXPECT_GT(harness::element_offset(b.q, harness::num_elements(b.q) - 1), std::int64_t{1} << 32);
}

}  // namespace
}  // namespace attn::properties
