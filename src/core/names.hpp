// Names of enum values, spelled once: printing and parsing both read these tables.
#pragma once

#include <array>
#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <attn/tensor.hpp>
#include <optional>
#include <string_view>

namespace attn::core {

template <class Enum>
struct Named {
  Enum value;
  const char* name;
};

inline constexpr std::array<Named<DType>, 10> kDTypeNames{{{DType::none, "none"},
                                                           {DType::f32, "f32"},
                                                           {DType::f16, "f16"},
                                                           {DType::bf16, "bf16"},
                                                           {DType::f64, "f64"},
                                                           {DType::f8e4m3, "f8e4m3"},
                                                           {DType::f8e5m2, "f8e5m2"},
                                                           {DType::i32, "i32"},
                                                           {DType::u8, "u8"},
                                                           {DType::i8, "i8"}}};
inline constexpr std::array<Named<Device>, 3> kDeviceNames{
    {{Device::host, "host"}, {Device::cuda, "cuda"}, {Device::webgpu, "webgpu"}}};
inline constexpr std::array<Named<Pass>, 3> kPassNames{
    {{Pass::forward, "forward"}, {Pass::backward, "backward"}, {Pass::decode, "decode"}}};
inline constexpr std::array<Named<Layout>, 2> kLayoutNames{
    {{Layout::padded, "padded"}, {Layout::packed, "packed"}}};
inline constexpr std::array<Named<Diagonal>, 3> kDiagonalNames{
    {{Diagonal::bottom_right, "bottom_right"},
     {Diagonal::top_left, "top_left"},
     {Diagonal::explicit_value, "explicit"}}};
inline constexpr std::array<Named<Precision>, 3> kPrecisionNames{
    {{Precision::tf32x3, "tf32x3"}, {Precision::tf32, "tf32"}, {Precision::ieee, "ieee"}}};
inline constexpr std::array<Named<Rope>, 3> kRopeNames{
    {{Rope::none, "none"}, {Rope::interleaved, "interleaved"}, {Rope::half, "half"}}};
inline constexpr std::array<Named<ErrorCode>, 7> kErrorCodeNames{
    {{ErrorCode::ok, "ok"},
     {ErrorCode::invalid_argument, "invalid_argument"},
     {ErrorCode::unsupported, "unsupported"},
     {ErrorCode::out_of_memory, "out_of_memory"},
     {ErrorCode::device_error, "device_error"},
     {ErrorCode::internal, "internal"},
     {ErrorCode::interrupted, "interrupted"}}};

constexpr const auto& names_of(DType) {
  return kDTypeNames;
}
constexpr const auto& names_of(Device) {
  return kDeviceNames;
}
constexpr const auto& names_of(Pass) {
  return kPassNames;
}
constexpr const auto& names_of(Layout) {
  return kLayoutNames;
}
constexpr const auto& names_of(Diagonal) {
  return kDiagonalNames;
}
constexpr const auto& names_of(Precision) {
  return kPrecisionNames;
}
constexpr const auto& names_of(Rope) {
  return kRopeNames;
}
constexpr const auto& names_of(ErrorCode) {
  return kErrorCodeNames;
}

// "?" for values outside the enum.
template <class Enum>
constexpr const char* name_of(Enum value) {
  for (const auto& entry : names_of(value)) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

template <class Enum>
constexpr bool is_known(Enum value) {
  for (const auto& entry : names_of(value)) {
    if (entry.value == value) return true;
  }
  return false;
}

template <class Enum>
constexpr std::optional<Enum> value_of(std::string_view name) {
  for (const auto& entry : names_of(Enum{})) {
    if (name == entry.name) return entry.value;
  }
  return std::nullopt;
}

}  // namespace attn::core
