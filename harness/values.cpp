// Implements values.hpp.
#include "values.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

namespace attn::harness {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

struct Format {
  int bits;          // of the significand, including the hidden bit
  int min_exponent;  // exponent of the smallest normal value
  double largest;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return {11, -14, 65504.0};
    case DType::bf16: return {8, -126, 0x1.FEp127};
    case DType::f8e4m3: return {4, -6, 448.0};
    case DType::f8e5m2: return {3, -14, 57344.0};
    case DType::f32: return {24, -126, 0x1.FFFFFEp127};
    default: return {53, -1022, std::numeric_limits<double>::max()};
  }
}

template <class T>
T read(const void* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

// 2^exponent, a normal double. std::ldexp costs a call and several branches; a case converts
// hundreds of thousands of elements.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
}

// e with |x| in [2^(e-1), 2^e), as std::frexp has it; -1022 for subnormal doubles.
int exponent_of(double x) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(x) >> 52 & 2047) - 1022;
}

double decode_f16(std::uint16_t bits) {
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 31;
  const int fraction = bits & 1023;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * fraction * 0x1p-24;
  return sign * (1024 + fraction) * power_of_two(exponent - 25);
}

// x must be representable in the format.
std::uint16_t encode_f16(double x) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000u : 0u);
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | 0x7E00u);
  const double magnitude = std::fabs(x);
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x1p-14) {
    return static_cast<std::uint16_t>(sign | static_cast<unsigned>(magnitude * 0x1p24));
  }
  const int exponent = exponent_of(magnitude);
  const auto mantissa = static_cast<unsigned>(magnitude * power_of_two(11 - exponent)) & 1023u;
  return static_cast<std::uint16_t>(sign | static_cast<unsigned>(exponent + 14) << 10 | mantissa);
}

// The magnitude of a code without its sign bit. Codes are in ascending order.
double value_of_code(const Format& format, int code) {
  const int codes = 1 << (format.bits - 1);  // of one exponent
  const int exponent = std::max(code / codes, 1) - 1;
  const int units = code % codes + (code >= codes ? codes : 0);
  return units * power_of_two(format.min_exponent - (format.bits - 1) + exponent);
}

// e4m3fn: the last code is NaN. e5m2: the upper byte of an f16.
double decode_f8(DType dtype, std::uint8_t bits) {
  if (dtype == DType::f8e5m2) return decode_f16(static_cast<std::uint16_t>(bits << 8));
  const int code = bits & 127;
  const double value = code == 127 ? std::numeric_limits<double>::quiet_NaN()
                                   : value_of_code(format_of(dtype), code);
  return (bits & 128) != 0 ? -value : value;
}

// x must be representable in the format, or infinite if it was out of range.
std::uint8_t encode_f8(DType dtype, double x) {
  if (dtype == DType::f8e5m2) return static_cast<std::uint8_t>(encode_f16(x) >> 8);
  int code = 127;
  if (std::isfinite(x)) {
    const Format format = format_of(dtype);
    for (int low = 0; low < code;) {  // the first code that is not below |x|
      const int middle = (low + code) / 2;
      if (value_of_code(format, middle) < std::fabs(x)) {
        low = middle + 1;
      } else {
        code = middle;
      }
    }
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 128 : 0));
}

}  // namespace

bool is_f8(DType dtype) {
  return dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}

std::uint64_t hash(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return mix(mix(mix(seed) ^ stream) ^ index);
}

std::uint64_t stream_of(const std::string& name) {
  std::uint64_t value = 0xCBF29CE484222325u;  // FNV-1a
  for (const char letter : name)
    value = (value ^ static_cast<unsigned char>(letter)) * 0x100000001B3u;
  return value;
}

double hash_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return static_cast<double>(hash(seed, stream, index) >> 11) * 0x1p-53;
}

double hash_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const std::uint64_t bits = hash(seed, stream, index);
  const double radius = (static_cast<double>(bits >> 32) + 0.5) * 0x1p-32;
  const double angle = static_cast<double>(bits & 0xFFFFFFFFu) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(radius)) * std::cos(2.0 * std::numbers::pi * angle);
}

std::int64_t hash_range(std::uint64_t seed, std::uint64_t stream, std::uint64_t index,
                        std::int64_t low, std::int64_t high) {
  if (high <= low) return low;
  const auto span = static_cast<std::uint64_t>(high - low) + 1;
  return low + static_cast<std::int64_t>(hash(seed, stream, index) % span);
}

double round_to(DType dtype, double x) {
  if (dtype == DType::f64 || x == 0.0 || !std::isfinite(x)) return x;
  if (dtype == DType::f32) return static_cast<double>(static_cast<float>(x));
  if (dtype == DType::i8) return std::nearbyint(std::clamp(x, -128.0, 127.0));
  const Format format = format_of(dtype);
  if (std::fabs(x) >= 2.0 * format.largest) {
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  }
  const int quantum = std::max(exponent_of(x), format.min_exponent + 1) - format.bits;
  // At 1.5 * 2^52 quanta the unit in the last place of a double is one quantum.
  const double shift = 0x1.8p52 * power_of_two(quantum);
  const double rounded = std::copysign((x + shift) - shift, x);
  if (std::fabs(rounded) > format.largest) {
    return std::copysign(std::numeric_limits<double>::infinity(), x);
  }
  return rounded;
}

double unit_roundoff(DType dtype) {
  return std::ldexp(1.0, -format_of(dtype).bits);
}

double smallest(DType dtype) {
  const Format format = format_of(dtype);
  return std::ldexp(1.0, format.min_exponent + 1 - format.bits);
}

double load(DType dtype, const void* address) {
  switch (dtype) {
    case DType::f64: return read<double>(address);
    case DType::f32: return static_cast<double>(read<float>(address));
    case DType::f16: return decode_f16(read<std::uint16_t>(address));
    case DType::bf16: {
      const std::uint32_t bits = std::uint32_t{read<std::uint16_t>(address)} << 16;
      return static_cast<double>(read<float>(&bits));
    }
    case DType::f8e4m3:
    case DType::f8e5m2: return decode_f8(dtype, read<std::uint8_t>(address));
    case DType::i32: return static_cast<double>(read<std::int32_t>(address));
    case DType::u8: return static_cast<double>(read<std::uint8_t>(address));
    case DType::i8: return static_cast<double>(read<std::int8_t>(address));
    default: return std::numeric_limits<double>::quiet_NaN();
  }
}

void store(DType dtype, void* address, double x) {
  const double rounded = round_to(dtype, x);
  switch (dtype) {
    case DType::f64: std::memcpy(address, &rounded, sizeof rounded); break;
    case DType::f32: {
      const auto value = static_cast<float>(rounded);
      std::memcpy(address, &value, sizeof value);
      break;
    }
    case DType::f16: {
      const std::uint16_t value = encode_f16(rounded);
      std::memcpy(address, &value, sizeof value);
      break;
    }
    case DType::bf16: {
      const auto single = static_cast<float>(rounded);
      const auto bits = read<std::uint32_t>(&single);
      const auto value = static_cast<std::uint16_t>(std::isnan(x) ? 0x7FC0u : bits >> 16);
      std::memcpy(address, &value, sizeof value);
      break;
    }
    case DType::f8e4m3:
    case DType::f8e5m2: {
      const std::uint8_t value = encode_f8(dtype, rounded);
      std::memcpy(address, &value, sizeof value);
      break;
    }
    case DType::i32: {
      const auto value = static_cast<std::int32_t>(x);
      std::memcpy(address, &value, sizeof value);
      break;
    }
    case DType::i8: {
      const auto value = static_cast<std::int8_t>(std::isfinite(rounded) ? rounded : 0.0);
      std::memcpy(address, &value, sizeof value);
      break;
    }
    case DType::u8: {
      const auto value = static_cast<std::uint8_t>(x);
      std::memcpy(address, &value, sizeof value);
      break;
    }
    default: break;
  }
}

namespace {

std::int64_t offset_of(const TensorView& view, std::int64_t i0, std::int64_t i1, std::int64_t i2,
                       std::int64_t i3) {
  return i0 * view.strides[0] + i1 * view.strides[1] + i2 * view.strides[2] + i3 * view.strides[3];
}

char* address_of(const TensorView& view, std::int64_t offset) {
  return static_cast<char*>(view.address()) + offset * size_of(view.dtype);
}

}  // namespace

double load(const TensorView& view, std::int64_t i0, std::int64_t i1, std::int64_t i2,
            std::int64_t i3) {
  return load(view.dtype, address_of(view, offset_of(view, i0, i1, i2, i3)));
}

void store(const TensorView& view, double x, std::int64_t i0, std::int64_t i1, std::int64_t i2,
           std::int64_t i3) {
  store(view.dtype, address_of(view, offset_of(view, i0, i1, i2, i3)), x);
}

std::int64_t num_elements(const TensorView& view) {
  std::int64_t count = view.rank > 0 ? 1 : 0;
  for (int dim = 0; dim < view.rank; ++dim) count *= view.shape[static_cast<std::size_t>(dim)];
  return count;
}

std::int64_t element_offset(const TensorView& view, std::int64_t linear) {
  std::int64_t offset = 0;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    const auto at = static_cast<std::size_t>(dim);
    offset += linear % view.shape[at] * view.strides[at];
    linear /= view.shape[at];
  }
  return offset;
}

std::vector<double> read_all(const TensorView& view) {
  std::vector<double> values(static_cast<std::size_t>(num_elements(view)));
  for_each_element(view, [&](std::int64_t n, std::int64_t offset) {
    values[static_cast<std::size_t>(n)] = load(view.dtype, address_of(view, offset));
  });
  return values;
}

}  // namespace attn::harness
