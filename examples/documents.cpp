// Several documents in one row: kv_begin prevents attention across documents, and tiles of keys
// that no query sees cost nothing. The result equals that of one call per document.
#include <algorithm>
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kHeads = 4, kDim = 32;

attn::TensorView rows(const float* data, std::int64_t len) {
  return attn::TensorView::contiguous(data, attn::DType::f32, {1, len, kHeads, kDim});
}

}  // namespace

int main() {
  const std::vector<std::int64_t> lengths = {70, 5, 200, 125};
  std::int64_t len = 0;
  std::vector<std::int32_t> begin;  // for each row: the row at which its document starts
  for (const std::int64_t length : lengths) {
    begin.insert(begin.end(), static_cast<std::size_t>(length), static_cast<std::int32_t>(len));
    len += length;
  }
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> q(static_cast<std::size_t>(len * kHeads * kDim));
  std::vector<float> k(q.size()), v(q.size()), o(q.size()), alone(q.size());
  for (auto* x : {&q, &k, &v}) {
    for (float& value : *x) value = normal(random);
  }

  attn::Context context;
  attn::Arguments a;
  a.q = rows(q.data(), len);
  a.k = rows(k.data(), len);
  a.v = rows(v.data(), len);
  a.o = rows(o.data(), len);
  a.kv_begin = attn::TensorView::contiguous(begin.data(), attn::DType::i32, {1, len});
  attn::Problem problem = attn::describe(a);
  problem.causal = true;
  attn::forward(context, problem, a);

  std::int64_t start = 0;
  for (const std::int64_t length : lengths) {
    const std::int64_t at = start * kHeads * kDim;
    attn::Arguments one;
    one.q = rows(q.data() + at, length);
    one.k = rows(k.data() + at, length);
    one.v = rows(v.data() + at, length);
    one.o = rows(alone.data() + at, length);
    attn::Problem document = attn::describe(one);
    document.causal = true;
    attn::forward(context, document, one);
    start += length;
  }
  float worst = 0.0f;
  for (std::size_t n = 0; n < o.size(); ++n) {
    const float difference = std::fabs(o[n] - alone[n]);
    if (!(difference <= worst)) worst = difference;
  }
  std::printf("%zu documents in one row of %lld: largest difference from one by one %.2g\n",
              lengths.size(), static_cast<long long>(len), worst);
  return worst <= 1e-5f ? 0 : 1;
}
