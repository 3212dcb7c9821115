// Element types and TensorView: a typed, strided view of memory that lives on one device.
#pragma once

#include <attn/export.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace attn {

// Element types. `none` in a Problem means "the same as `dtype`".
enum class DType : std::int32_t {
  none = 0,
  f32 = 1,
  f16 = 2,   // IEEE binary16
  bf16 = 3,  // upper half of an f32
  f64 = 4,
  f8e4m3 = 5,  // e4m3fn: no infinities
  f8e5m2 = 6,
  i32 = 7,
  u8 = 8,
  i8 = 9,  // only k and v: value = descale * integer
};

// Bytes of one element; 0 for DType::none and for values outside the enum.
ATTN_API std::int64_t size_of(DType dtype);
// "f32", "bf16", ...; "?" for values outside the enum.
ATTN_API const char* to_string(DType dtype);

enum class Device : std::int32_t { host = 0, cuda = 1, webgpu = 2 };
ATTN_API const char* to_string(Device device);

inline constexpr int kMaxRank = 4;

// A view owns nothing. Strides are in elements, 64-bit, in the order of `shape`; they may be 0 (an
// expanded tensor) for inputs. A view of rank 0 means "not given".
struct TensorView {
  // Host or CUDA address of the first element, or the WGPUBuffer handle for Device::webgpu.
  void* data = nullptr;
  // Added to the address (or the position in the WebGPU buffer) of the first element.
  std::int64_t offset_bytes = 0;
  DType dtype = DType::f32;
  Device device = Device::host;
  // Which CUDA device; 0 elsewhere.
  std::int32_t ordinal = 0;
  std::int32_t rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  [[nodiscard]] bool given() const { return rank > 0; }
  [[nodiscard]] void* address() const { return static_cast<char*>(data) + offset_bytes; }

  // Contiguous (row-major) view of host memory. The pointer may be const; the caller
  // ensures that outputs are writable.
  ATTN_API static TensorView contiguous(const void* data, DType dtype,
                                        std::initializer_list<std::int64_t> shape);
  // The view with two dimensions exchanged: [b, h, n, d] memory seen as [b, n, h, d] is
  // contiguous(p, dtype, {b, h, n, d}).transposed(1, 2).
  [[nodiscard]] ATTN_API TensorView transposed(int dim_a, int dim_b) const;
};

// "f32[2, 128, 8, 64] strides [65536, 512, 64, 1] on host"
ATTN_API std::string to_string(const TensorView& view);

}  // namespace attn
