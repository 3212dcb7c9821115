// Test values: hashed random numbers, and conversion of elements of every type to and from double.
// Written from the formats' definitions, independently of the library's own conversions.
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace attn::harness {

// A hash of three numbers (splitmix64's finalizer, chained).
std::uint64_t hash(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);
// The stream number for a name.
std::uint64_t stream_of(const std::string& name);
double hash_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);  // [0, 1)
double hash_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);
// An integer in [low, high].
std::int64_t hash_range(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                        std::int64_t low, std::int64_t high);

// The 8-bit float types: of q, k and v in a forward or decode, or of a cache with a 16-bit q.
bool is_f8(DType dtype);

// x rounded to the type (ties to even); infinity beyond its range.
double round_to(DType dtype, double x);
// Unit roundoff: 2^-24 for f32.
double unit_roundoff(DType dtype);
// The smallest positive value of the type.
double smallest(DType dtype);

double load(DType dtype, const void* address);
// Rounds x to the type first.
void store(DType dtype, void* address, double x);

double load(const TensorView& view, std::int64_t i0, std::int64_t i1 = 0, std::int64_t i2 = 0,
            std::int64_t i3 = 0);
void store(const TensorView& view, double x, std::int64_t i0, std::int64_t i1 = 0,
           std::int64_t i2 = 0, std::int64_t i3 = 0);

// Element offsets of a view in row-major order of its shape.
std::int64_t num_elements(const TensorView& view);
std::int64_t element_offset(const TensorView& view, std::int64_t linear);

// Calls visit(n, offset) for each element in row-major order. Offsets are divided out once per row,
// not once per element as by element_offset.
template <class Visit>
void for_each_element(const TensorView& view, Visit visit) {
  const std::int64_t count = num_elements(view);
  if (count == 0) return;
  const auto last = static_cast<std::size_t>(view.rank - 1);
  for (std::int64_t n = 0; n < count;) {
    const std::int64_t row = element_offset(view, n);
    for (std::int64_t d = 0; d < view.shape[last]; ++d) visit(n++, row + d * view.strides[last]);
  }
}

// Reads all elements in row-major order; the inverse writes value(n) to element n.
std::vector<double> read_all(const TensorView& view);
template <class Value>
void fill_all(const TensorView& view, Value value) {
  for_each_element(view, [&](std::int64_t n, std::int64_t offset) {
    store(view.dtype, static_cast<char*>(view.address()) + offset * size_of(view.dtype),
          value(static_cast<std::uint64_t>(n)));
  });
}

}  // namespace attn::harness
