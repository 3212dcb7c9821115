// Signature: which tensors a call takes, with which type and shape, and which of them it writes.
// The one place that knows: validate checks calls against it, output_shapes is read from it.
#pragma once

#include <array>
#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace attn::core {

// What a dimension of a given view may be.
enum class Fit : std::uint8_t {
  exact,     // the size
  any,       // whatever is there
  at_least,  // the size or more
  one_or,    // 1 or the size
  full,      // the size, and not expanded: stride 0 only where the size is 1
  reduced,   // 1, or the size expanded with stride 0
};

struct Dim {
  std::int64_t size = 0;
  Fit fit = Fit::exact;
};

struct Shape {
  DType dtype = DType::none;
  std::int32_t rank = 0;
  std::array<Dim, kMaxRank> dims{};
  bool first_optional = false;  // the first dimension may be left out
  Shape() = default;
  Shape(DType type, std::initializer_list<Dim> list) : dtype(type) {
    for (const Dim& dim : list) dims[static_cast<std::size_t>(rank++)] = dim;
  }
};

// "[2, 1|8, 128, >=4]": what is accepted.
std::string to_string(const Shape& shape);

// `absent` is refused when given; `ignored` is not looked at.
enum class Use : std::uint8_t { ignored, absent, optional, needed };

struct Slot {
  const char* name = "";
  TensorView Arguments::* view = nullptr;
  Use use = Use::ignored;
  bool written = false;
  const char* because = "";  // the field of Problem that decides on use; "" for always
  Shape shape;
};

inline constexpr std::size_t kMaxSlots = 40;

struct Slots {
  std::array<Slot, kMaxSlots> items{};
  int count = 0;
  [[nodiscard]] const Slot* begin() const { return items.data(); }
  [[nodiscard]] const Slot* end() const { return items.data() + count; }
};

// For problems that validate_problem() accepted. Allocates nothing.
Slots slots_of(Pass pass, const Problem& problem);

inline bool is_half(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16;
}
// f64, f32, f16, bf16
inline bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || is_half(dtype);
}
inline bool is_f8(DType dtype) {
  return dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}
// Types with descales.
inline bool is_8_bit(DType dtype) {
  return is_f8(dtype) || dtype == DType::i8;
}

}  // namespace attn::core
