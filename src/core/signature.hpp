// Signature: which tensors a call takes, with which type and shape, and which of them it writes.
// This is the only definition: validate checks calls against it, output_shapes derives from it.
#pragma once

#include <array>
#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace attn::core {

// Which sizes a dimension of a view may have.
enum class Fit : std::uint8_t {
  exact,     // the size
  any,       // any size
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

// The accepted shapes as text: "[2, 1|8, 128, >=4]".
std::string to_string(const Shape& shape);

// `absent`: refused if given. `ignored`: not checked.
enum class Use : std::uint8_t { ignored, absent, optional, needed };

struct Slot {
  const char* name = "";
  TensorView Arguments::* view = nullptr;
  Use use = Use::ignored;
  bool written = false;
  const char* because = "";  // the field of Problem that decides `use`; "" = always
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
// Types that may have descale factors.
inline bool is_8_bit(DType dtype) {
  return is_f8(dtype) || dtype == DType::i8;
}

}  // namespace attn::core
