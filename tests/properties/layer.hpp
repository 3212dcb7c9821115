// Layer: one attention call's tensors, all contiguous, filled by hash, for tests that slice,
// permute and shift them.
#pragma once

#include <attn/attn.hpp>
#include <cstddef>
#include <deque>
#include <initializer_list>
#include <string>
#include <vector>

namespace attn::properties {

ContextOptions threads_of(std::int32_t threads);

class Arena {
 public:
  // Elements hold NaN.
  TensorView empty(DType dtype, std::initializer_list<std::int64_t> shape);
  TensorView normal(DType dtype, std::initializer_list<std::int64_t> shape,
                    const std::string& name);
  TensorView numbers(DType dtype, const std::vector<double>& values);
  // Contiguous, the same values; `dtype` none keeps the type.
  TensorView copy(const TensorView& from);

 private:
  std::deque<std::vector<std::byte>> memory_;
};

// Arguments that the problem asks for, from hashed values; outputs hold NaN. Bias and mask are full
// in the dimensions of their extents.
Arguments make_layer(Arena& arena, const Problem& problem);

TensorView slice(TensorView view, int dim, std::int64_t first, std::int64_t count);
// max |a - b| over max |b|; infinite where one is not finite and the other is not the same.
double difference(const TensorView& a, const TensorView& b);
bool same_bits(const TensorView& a, const TensorView& b);
// to += from.
void add(const TensorView& to, const TensorView& from);
void set_zero(const TensorView& view);

// 1e-12 for f64, 4e-6 for f32: sums in another order.
double close(DType dtype);

}  // namespace attn::properties
