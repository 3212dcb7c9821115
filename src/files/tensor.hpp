// FileTensor: a contiguous, row-major, little-endian tensor of a file, with its name and type.
#pragma once

#include <attn/tensor.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/result.hpp"

namespace attn::files {

struct FileTensor {
  std::string name;
  std::string dtype;  // as safetensors spells it: "F32", "BF16", "BOOL", "I64", ...
  std::vector<std::int64_t> shape;
  // The elements; 64-byte aligned when it comes from a reader. The file object owns it.
  std::span<const std::byte> data;
};

// Bytes of one element of a type in safetensors' spelling; 0 for a type that is not known.
std::int64_t element_bytes(std::string_view dtype);
// The library's type; DType::none when it has none (I64, U16, ...). BOOL is u8.
DType library_type(std::string_view dtype);
// safetensors' spelling; "" for DType::none.
const char* file_type(DType dtype);

// Bytes of a tensor; nothing when an extent is negative or the product reaches 2^63.
std::optional<std::uint64_t> tensor_bytes(const std::vector<std::int64_t>& shape,
                                          std::int64_t bytes_per_element);

// "F32[2, 12, 256, 32]"
std::string describe(const FileTensor& tensor);

// The tensor as the library sees it. Fails when the library has no such type, or for rank 0 and
// above kMaxRank. Valid as long as the memory of `tensor` is.
Result<TensorView> view(const FileTensor& tensor);

}  // namespace attn::files
