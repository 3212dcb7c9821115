// Causal attention with grouped heads, forward and backward. One gradient element is checked with a
// finite difference.
#include <attn/attn.hpp>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 2, kLen = 100, kHeadsQ = 8, kHeadsKv = 2, kDim = 64;

attn::TensorView rows(const std::vector<float>& data, std::int64_t heads) {
  return attn::TensorView::contiguous(data.data(), attn::DType::f32, {kBatch, kLen, heads, kDim});
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto tensor = [&](std::int64_t heads) {
    std::vector<float> data(kBatch * kLen * heads * kDim);
    for (float& x : data) x = normal(random);
    return data;
  };
  std::vector<float> q = tensor(kHeadsQ), k = tensor(kHeadsKv), v = tensor(kHeadsKv);
  const std::vector<float> dout = tensor(kHeadsQ);
  std::vector<float> o(q.size()), dq(q.size()), dk(k.size()), dv(v.size());
  std::vector<float> lse(kBatch * kHeadsQ * kLen);

  attn::Context context;  // threads and scratch memory; one serves many threads
  attn::Arguments a;
  a.q = rows(q, kHeadsQ);
  a.k = rows(k, kHeadsKv);
  a.v = rows(v, kHeadsKv);
  a.o = rows(o, kHeadsQ);
  a.lse = attn::TensorView::contiguous(lse.data(), attn::DType::f32, {kBatch, kHeadsQ, kLen});
  a.dout = rows(dout, kHeadsQ);
  a.dq = rows(dq, kHeadsQ);
  a.dk = rows(dk, kHeadsKv);
  a.dv = rows(dv, kHeadsKv);

  attn::Problem problem = attn::describe(a);  // types, sizes and options that the tensors state
  problem.causal = true;
  try {
    attn::forward(context, problem, a);
    attn::backward(context, problem, a);

    // The loss is sum(o * dout). Its derivative with respect to one element of k is computed in two
    // ways.
    const auto loss = [&] {
      attn::forward(context, problem, a);
      double sum = 0.0;
      for (std::size_t n = 0; n < o.size(); ++n) sum += static_cast<double>(o[n]) * dout[n];
      return sum;
    };
    const std::size_t at = 3 * kHeadsKv * kDim + 5;
    const float step = 0.02f, kept = k[at];
    k[at] = kept + step;
    const double above = loss();
    k[at] = kept - step;
    const double below = loss();
    const double measured = (above - below) / (2 * step);
    std::printf("dk[%zu] = %.5f, by finite difference %.5f\n", at, dk[at], measured);
    return std::fabs(dk[at] - measured) <= 5e-3 * (1.0 + std::fabs(measured)) ? 0 : 1;
  } catch (const attn::Error& error) {
    std::fprintf(stderr, "%s: %s\n", attn::to_string(error.code()), error.what());
    return 1;
  }
}
