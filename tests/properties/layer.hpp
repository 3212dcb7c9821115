// Layer: the tensors of one attention call, contiguous, with hashed values, for tests that slice,
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
  // A contiguous copy; `dtype` none keeps the type.
  TensorView copy(const TensorView& from, DType dtype = DType::none);

 private:
  std::deque<std::vector<std::byte>> memory_;
};

// The arguments that the problem needs, with hashed values; outputs hold NaN. Bias and mask are
// full in the dimensions of their extents.
Arguments make_layer(Arena& arena, const Problem& problem);

TensorView slice(TensorView view, int dim, std::int64_t first, std::int64_t count);
// max |a - b| / max |b|; infinite if non-finite elements differ.
double difference(const TensorView& a, const TensorView& b);
bool same_bits(const TensorView& a, const TensorView& b);
// to += from.
void add(const TensorView& to, const TensorView& from);
void set_zero(const TensorView& view);

// 1e-12 for f64, 4e-6 for f32: the sums are in another order.
double close(DType dtype);

}  // namespace attn::properties
