// Elements of tensors: see elements.hpp.
#include "reference/elements.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace attn::reference {

namespace {

// 2^exponent, a normal double: std::ldexp takes several times as long, and every element is
// decoded.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

}  // namespace

double decode_bits(std::uint32_t bits, const Format& format) {
  const int mantissa_bits = format.mantissa_bits;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int top_exponent = (1 << format.exponent_bits) - 1;
  const int top_mantissa = (1 << mantissa_bits) - 1;

  const bool negative = (bits >> (format.exponent_bits + mantissa_bits)) & 1u;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & top_exponent;
  const int mantissa = static_cast<int>(bits) & top_mantissa;

  double magnitude = 0.0;
  if (exponent == top_exponent && format.infinities) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == top_exponent && mantissa == top_mantissa) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {  // subnormal: no hidden one
    magnitude = mantissa * power_of_two(1 - bias - mantissa_bits);
  } else {
    magnitude = (mantissa + (1 << mantissa_bits)) * power_of_two(exponent - bias - mantissa_bits);
  }
  return negative ? -magnitude : magnitude;
}

std::uint32_t encode_bits(double value, const Format& format) {
  const int mantissa_bits = format.mantissa_bits;
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const std::uint32_t sign_bit = 1u << (format.exponent_bits + mantissa_bits);
  const std::uint32_t all_ones = sign_bit - 1;
  const std::uint32_t infinity = all_ones - ((1u << mantissa_bits) - 1);
  const std::uint32_t nan = format.infinities ? infinity | 1u << (mantissa_bits - 1) : all_ones;
  const std::uint32_t too_large = format.infinities ? infinity : nan;

  const std::uint32_t sign = std::signbit(value) ? sign_bit : 0u;
  const double magnitude = std::abs(value);
  if (std::isnan(magnitude)) return sign | nan;
  if (std::isinf(magnitude)) return sign | too_large;
  if (magnitude == 0.0) return sign;

  // The spacing of the format's numbers around the value is 2^spacing; the least one is that of the
  // subnormals. Both scalings below are exact, so the only rounding is that to an integer.
  const int spacing = std::max(std::ilogb(magnitude), 1 - bias) - mantissa_bits;
  const double units = std::ldexp(magnitude, -spacing);
  double whole = std::floor(units);
  const double rest = units - whole;
  if (rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2.0) == 1.0)) whole += 1.0;

  // Codes count on from one binade into the next, so a carry out of the mantissa needs no care; the
  // hidden one of a normal number adds the missing 1 to the exponent.
  const auto code =
      static_cast<std::uint32_t>(whole) +
      (static_cast<std::uint32_t>(spacing + mantissa_bits - (1 - bias)) << mantissa_bits);
  return sign | (code >= too_large ? too_large : code);
}

std::int64_t position_of(const TensorView& view, std::initializer_list<std::int64_t> index) {
  std::int64_t position = 0;
  std::size_t dim = 0;
  for (const std::int64_t i : index) position += i * view.strides[dim++];
  return position;
}

namespace {

template <class T>
T load(const TensorView& view, std::int64_t position) {
  T value;
  std::memcpy(
      &value,
      static_cast<const char*>(view.address()) + position * static_cast<std::int64_t>(sizeof(T)),
      sizeof(T));
  return value;
}

template <class T>
void store(const TensorView& view, std::int64_t position, T value) {
  std::memcpy(static_cast<char*>(view.address()) + position * static_cast<std::int64_t>(sizeof(T)),
              &value, sizeof(T));
}

}  // namespace

double read(const TensorView& view, std::int64_t position) {
  switch (view.dtype) {
    case DType::f64: return load<double>(view, position);
    case DType::f32: return load<float>(view, position);
    case DType::f16: return decode_bits(load<std::uint16_t>(view, position), kF16);
    case DType::bf16: return decode_bits(load<std::uint16_t>(view, position), kBf16);
    case DType::f8e4m3: return decode_bits(load<std::uint8_t>(view, position), kF8e4m3);
    case DType::f8e5m2: return decode_bits(load<std::uint8_t>(view, position), kF8e5m2);
    case DType::i32: return load<std::int32_t>(view, position);
    case DType::u8: return load<std::uint8_t>(view, position);
    case DType::i8: return load<std::int8_t>(view, position);
    case DType::none: break;
  }
  return std::numeric_limits<double>::quiet_NaN();
}

std::int64_t read_integer(const TensorView& view, std::int64_t position) {
  return view.dtype == DType::u8 ? load<std::uint8_t>(view, position)
                                 : load<std::int32_t>(view, position);
}

void write(const TensorView& view, std::int64_t position, double value) {
  switch (view.dtype) {
    case DType::f64: return store(view, position, value);
    case DType::f32: return store(view, position, static_cast<float>(value));
    case DType::f16:
      return store(view, position, static_cast<std::uint16_t>(encode_bits(value, kF16)));
    case DType::bf16:
      return store(view, position, static_cast<std::uint16_t>(encode_bits(value, kBf16)));
    case DType::f8e4m3:
      return store(view, position, static_cast<std::uint8_t>(encode_bits(value, kF8e4m3)));
    case DType::f8e5m2:
      return store(view, position, static_cast<std::uint8_t>(encode_bits(value, kF8e5m2)));
    case DType::i8: {
      const double rounded = std::nearbyint(std::clamp(value, -128.0, 127.0));
      return store(view, position, static_cast<std::int8_t>(std::isnan(value) ? 0.0 : rounded));
    }
    case DType::i32:
    case DType::u8:
    case DType::none: return;
  }
}

void add_to_counter(const TensorView& view, std::uint32_t count) {
  store(view, 0, load<std::uint32_t>(view, 0) + count);
}

void read_row(const TensorView& view, std::int64_t position, double* row, std::int64_t count) {
  for (std::int64_t c = 0; c < count; ++c) row[c] = read(view, position + c);
}

Row read_row(const TensorView& view, std::int64_t position, std::int64_t count) {
  Row row(static_cast<std::size_t>(count));
  read_row(view, position, row.data(), count);
  return row;
}

void fill(const TensorView& view, double value) {
  std::array<std::int64_t, kMaxRank> sizes{1, 1, 1, 1};
  for (std::size_t dim = 0; dim < static_cast<std::size_t>(view.rank); ++dim) {
    sizes[dim] = view.shape[dim];
  }
  for (std::int64_t a = 0; a < sizes[0]; ++a) {
    for (std::int64_t b = 0; b < sizes[1]; ++b) {
      for (std::int64_t c = 0; c < sizes[2]; ++c) {
        for (std::int64_t d = 0; d < sizes[3]; ++d) {
          write(view, position_of(view, {a, b, c, d}), value);
        }
      }
    }
  }
}

}  // namespace attn::reference
