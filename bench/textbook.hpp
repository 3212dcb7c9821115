// Textbook attention, written from the formula: matrix products by BLAS, all probabilities stored.
// The demo compares libattn with it.
#pragma once

#include <cstddef>
#include <vector>

namespace attn::bench {

// One sequence, causal: q, k, v, o and their gradients are [len, heads, dim], contiguous f32.
struct TextbookProblem {
  std::size_t len = 0;
  std::size_t heads = 0;
  std::size_t dim = 0;
};

class Textbook {
 public:
  explicit Textbook(const TextbookProblem& problem) : p_(problem) {}

  void forward(const float* q, const float* k, const float* v, float* o);
  // After forward, with the same q, k, v, o.
  void backward(const float* q, const float* k, const float* v, const float* o, const float* dout,
                float* dq, float* dk, float* dv);

 private:
  void softmax_rows(float* scores) const;
  TextbookProblem p_;
  std::vector<std::vector<float>> probabilities_;  // per head, [len, len]
};

}  // namespace attn::bench
