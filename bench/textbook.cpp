// Two products for the output, four for the gradients, softmax between them.
#include "bench/textbook.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace attn::bench {
namespace {

// c = alpha op(a) op(b), row-major; the leading dimensions skip the other heads.
void product(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, std::size_t m, std::size_t n, std::size_t k,
             float alpha, const float* a, std::size_t lda, const float* b, std::size_t ldb,
             float* c, std::size_t ldc) {
  cblas_sgemm(CblasRowMajor, ta, tb, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
              alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb), 0.0f, c,
              static_cast<int>(ldc));
}

}  // namespace

// Row i sees keys 0..i; the other entries become 0.
void Textbook::softmax_rows(float* scores) const {
  const std::size_t len = p_.len;
#pragma omp parallel for schedule(dynamic, 64)
  for (std::size_t i = 0; i < len; ++i) {
    float* row = scores + i * len;
    const float largest = *std::max_element(row, row + i + 1);
    float sum = 0.0f;
    for (std::size_t j = 0; j <= i; ++j) {
      row[j] = std::exp(row[j] - largest);
      sum += row[j];
    }
    const float factor = 1.0f / sum;
    for (std::size_t j = 0; j <= i; ++j) row[j] *= factor;
    std::fill(row + i + 1, row + len, 0.0f);
  }
}

void Textbook::forward(const float* q, const float* k, const float* v, float* o) {
  const std::size_t len = p_.len, dim = p_.dim, step = p_.heads * p_.dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  probabilities_.resize(p_.heads);
  for (std::size_t h = 0; h < p_.heads; ++h) {
    probabilities_[h].resize(len * len);
    float* matrix = probabilities_[h].data();
    const std::size_t at = h * dim;
    product(CblasNoTrans, CblasTrans, len, len, dim, scale, q + at, step, k + at, step, matrix,
            len);
    softmax_rows(matrix);
    product(CblasNoTrans, CblasNoTrans, len, dim, len, 1.0f, matrix, len, v + at, step, o + at,
            step);
  }
}

void Textbook::backward(const float* q, const float* k, const float* v, const float* o,
                        const float* dout, float* dq, float* dk, float* dv) {
  const std::size_t len = p_.len, dim = p_.dim, step = p_.heads * p_.dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  std::vector<float> gradient(len * len);
  for (std::size_t h = 0; h < p_.heads; ++h) {
    const float* matrix = probabilities_[h].data();
    const std::size_t at = h * dim;
    product(CblasTrans, CblasNoTrans, len, dim, len, 1.0f, matrix, len, dout + at, step, dv + at,
            step);
    product(CblasNoTrans, CblasTrans, len, len, dim, 1.0f, dout + at, step, v + at, step,
            gradient.data(), len);
#pragma omp parallel for
    for (std::size_t i = 0; i < len; ++i) {
      float delta = 0.0f;
      for (std::size_t d = 0; d < dim; ++d) {
        delta += dout[i * step + at + d] * o[i * step + at + d];
      }
      float* row = gradient.data() + i * len;
      for (std::size_t j = 0; j < len; ++j) row[j] = matrix[i * len + j] * (row[j] - delta);
    }
    product(CblasNoTrans, CblasNoTrans, len, dim, len, scale, gradient.data(), len, k + at, step,
            dq + at, step);
    product(CblasTrans, CblasNoTrans, len, dim, len, scale, gradient.data(), len, q + at, step,
            dk + at, step);
  }
}

}  // namespace attn::bench
