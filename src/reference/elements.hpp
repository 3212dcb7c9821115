// Elements of tensors: number formats, addresses, reading as float64 and writing with one rounding
// (to nearest, ties to even).
#pragma once

#include <attn/tensor.hpp>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

namespace attn::reference {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A binary floating-point format of at most 16 bits: sign, exponent, mantissa.
struct Format {
  int exponent_bits;
  int mantissa_bits;
  // With infinities the largest exponent means infinity and NaN (IEEE 754). Without, only the code
  // of all ones is NaN, and what is too large becomes NaN (the "fn" of e4m3fn).
  bool infinities;
};
inline constexpr Format kF16{5, 10, true};
inline constexpr Format kBf16{8, 7, true};
inline constexpr Format kF8e4m3{4, 3, false};
inline constexpr Format kF8e5m2{5, 2, true};

double decode_bits(std::uint32_t bits, const Format& format);
std::uint32_t encode_bits(double value, const Format& format);

// Elements from the start of the view to the element at `index`.
std::int64_t position_of(const TensorView& view, std::initializer_list<std::int64_t> index);

// The element that lies `position` elements after the start of the view, as float64.
double read(const TensorView& view, std::int64_t position);
// The same for integer tensors.
std::int64_t read_integer(const TensorView& view, std::int64_t position);
// Floating-point tensors only.
void write(const TensorView& view, std::int64_t position, double value);
// Adds to the u32 that the view begins with.
void add_to_counter(const TensorView& view, std::uint32_t count);

using Row = std::vector<double>;
// `count` neighbouring elements.
void read_row(const TensorView& view, std::int64_t position, double* row, std::int64_t count);
Row read_row(const TensorView& view, std::int64_t position, std::int64_t count);

// Writes `value` to every element.
void fill(const TensorView& view, double value);

}  // namespace attn::reference
