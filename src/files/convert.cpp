// Conversions go through f64 (float types) or i64 (integer types), which hold every source value.
#include "files/convert.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace attn::files {
namespace {

// Number formats of 16 bits: IEEE layout with this many exponent and mantissa bits.
template <int kExponentBits, int kMantissaBits>
struct Float16 {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr unsigned kExponentMask = (1u << kExponentBits) - 1;
  static constexpr unsigned kInfinity = kExponentMask << kMantissaBits;

  static double to_double(std::uint16_t bits) {
    const unsigned exponent = (bits >> kMantissaBits) & kExponentMask;
    const unsigned mantissa = bits & ((1u << kMantissaBits) - 1);
    double value = 0.0;
    if (exponent == kExponentMask) {
      value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                            : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      value = std::ldexp(mantissa, 1 - kBias - kMantissaBits);
    } else {
      value = std::ldexp(mantissa + (1u << kMantissaBits),
                         static_cast<int>(exponent) - kBias - kMantissaBits);
    }
    return (bits & 0x8000u) != 0 ? -value : value;
  }

  static std::uint16_t from_double(double value) {
    const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
    unsigned bits = 0;
    if (std::isnan(value)) {
      bits = kInfinity | 1u << (kMantissaBits - 1);
    } else if (std::isinf(value)) {
      bits = kInfinity;
    } else if (value != 0.0) {
      // Units of the last place at this value's binade, or of the subnormals; nearbyint rounds to
      // even, and a carry into the next binade (up to infinity) comes out right by addition.
      const int exponent = std::max(std::ilogb(value), 1 - kBias);
      if (exponent > kBias) {
        bits = kInfinity;
      } else {
        const double units = std::nearbyint(std::ldexp(std::fabs(value), kMantissaBits - exponent));
        bits = static_cast<unsigned>(units) +
               (static_cast<unsigned>(exponent + kBias - 1) << kMantissaBits);
      }
    }
    return static_cast<std::uint16_t>(sign | bits);
  }
};
using Half = Float16<5, 10>;
using Bfloat = Float16<8, 7>;

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

bool is_float(std::string_view dtype) {
  return dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
}

bool is_integer(std::string_view dtype) {
  return element_bytes(dtype) > 0 && (dtype[0] == 'I' || dtype[0] == 'U' || dtype == "BOOL");
}

double load_float(std::string_view dtype, const std::byte* at) {
  if (dtype == "F64") return load<double>(at);
  if (dtype == "F32") return static_cast<double>(load<float>(at));
  const auto bits = load<std::uint16_t>(at);
  return dtype == "F16" ? Half::to_double(bits) : Bfloat::to_double(bits);
}

void store_float(std::string_view dtype, std::byte* at, double value) {
  if (dtype == "F64") {
    store(at, value);
  } else if (dtype == "F32") {
    store(at, static_cast<float>(value));
  } else {
    store(at, dtype == "F16" ? Half::from_double(value) : Bfloat::from_double(value));
  }
}

// False when the value is above 2^63 - 1.
bool load_integer(std::string_view dtype, const std::byte* at, std::int64_t& out) {
  if (dtype == "I64") out = load<std::int64_t>(at);
  if (dtype == "I32") out = load<std::int32_t>(at);
  if (dtype == "I16") out = load<std::int16_t>(at);
  if (dtype == "I8") out = load<std::int8_t>(at);
  if (dtype == "U32") out = load<std::uint32_t>(at);
  if (dtype == "U16") out = load<std::uint16_t>(at);
  if (dtype == "U8" || dtype == "BOOL") out = load<std::uint8_t>(at);
  if (dtype != "U64") return true;
  const auto value = load<std::uint64_t>(at);
  out = static_cast<std::int64_t>(value);
  return value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
}

template <class T>
bool store_as(std::byte* at, std::int64_t value) {
  if (!std::in_range<T>(value)) return false;
  store(at, static_cast<T>(value));
  return true;
}

bool store_integer(std::string_view dtype, std::byte* at, std::int64_t value) {
  if (dtype == "I64") return store_as<std::int64_t>(at, value);
  if (dtype == "I32") return store_as<std::int32_t>(at, value);
  if (dtype == "I16") return store_as<std::int16_t>(at, value);
  if (dtype == "I8") return store_as<std::int8_t>(at, value);
  if (dtype == "U64") return store_as<std::uint64_t>(at, value);
  if (dtype == "U32") return store_as<std::uint32_t>(at, value);
  if (dtype == "U16") return store_as<std::uint16_t>(at, value);
  if (dtype == "U8") return store_as<std::uint8_t>(at, value);
  store(at, static_cast<std::uint8_t>(value != 0));  // BOOL
  return true;
}

template <class T>
std::string limits() {
  return std::to_string(std::numeric_limits<T>::min()) + " to " +
         std::to_string(std::numeric_limits<T>::max());
}

// The values of an integer type.
std::string range_of(std::string_view dtype) {
  if (dtype == "I64") return limits<std::int64_t>();
  if (dtype == "I32") return limits<std::int32_t>();
  if (dtype == "I16") return limits<std::int16_t>();
  if (dtype == "I8") return limits<std::int8_t>();
  if (dtype == "U64") return limits<std::uint64_t>();
  if (dtype == "U32") return limits<std::uint32_t>();
  if (dtype == "U16") return limits<std::uint16_t>();
  return limits<std::uint8_t>();
}

}  // namespace

Result<OwnedTensor> make_tensor(std::string name, const std::string& dtype,
                                std::vector<std::int64_t> shape) {
  using Failure = Result<OwnedTensor>;
  const auto bytes = tensor_bytes(shape, element_bytes(dtype));
  if (!bytes) return Failure::failure("tensor " + printable(name) + " has a size that overflows");
  auto memory = Buffer::allocate(*bytes);
  if (!memory) return Failure::failure("tensor " + printable(name) + ": " + memory.error());
  std::memset(memory->data(), 0, *bytes);
  OwnedTensor out;
  out.tensor = {std::move(name), dtype, std::move(shape), {memory->data(), *bytes}};
  out.memory = std::move(*memory);
  return out;
}

Result<OwnedTensor> convert(const FileTensor& tensor, const std::string& dtype) {
  using Failure = Result<OwnedTensor>;
  const bool from_float = is_float(tensor.dtype);
  const bool to_float = is_float(dtype);
  if (!(from_float ? to_float : is_integer(tensor.dtype) && (to_float || is_integer(dtype)))) {
    return Failure::failure(
        "tensor " + printable(tensor.name) + " of type " + tensor.dtype +
        " can't be converted to " + dtype + "; accepted " +
        (to_float ? "floats, integers and BOOL" : "BOOL, and integers from " + range_of(dtype)));
  }
  auto out = make_tensor(tensor.name, dtype, tensor.shape);
  if (!out) return out;
  const auto step_in = static_cast<std::size_t>(element_bytes(tensor.dtype));
  const auto step_out = static_cast<std::size_t>(element_bytes(dtype));
  const std::size_t count = tensor.data.size() / step_in;
  for (std::size_t n = 0; n < count; ++n) {
    const std::byte* from = tensor.data.data() + n * step_in;
    std::byte* to = out->memory.data() + n * step_out;
    if (from_float) {
      store_float(dtype, to, load_float(tensor.dtype, from));
      continue;
    }
    std::int64_t value = 0;
    const bool loaded = load_integer(tensor.dtype, from, value);
    if (loaded && to_float) {
      store_float(dtype, to, static_cast<double>(value));
    } else if (!loaded || !store_integer(dtype, to, value)) {
      return Failure::failure("element " + std::to_string(n) + " of tensor " +
                              printable(tensor.name) + " doesn't fit " + dtype + ": found " +
                              (loaded ? std::to_string(value) : "2^63 or more") + "; accepted " +
                              range_of(dtype));
    }
  }
  return out;
}

}  // namespace attn::files
