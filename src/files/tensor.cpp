// Types and sizes of file tensors.
#include "files/tensor.hpp"

#include <bit>
#include <limits>

#include "files/buffer.hpp"

static_assert(std::endian::native == std::endian::little,
              "files hold little-endian data that is used in place");

namespace attn::files {
namespace {

struct TypeRow {
  const char* name;
  std::int64_t bytes;
  DType type;
};

constexpr TypeRow kTypes[] = {
    {"F32", 4, DType::f32},  {"F16", 2, DType::f16},        {"BF16", 2, DType::bf16},
    {"F64", 8, DType::f64},  {"F8_E4M3", 1, DType::f8e4m3}, {"F8_E5M2", 1, DType::f8e5m2},
    {"I32", 4, DType::i32},  {"U8", 1, DType::u8},          {"BOOL", 1, DType::u8},
    {"I64", 8, DType::none}, {"U64", 8, DType::none},       {"U32", 4, DType::none},
    {"I16", 2, DType::none}, {"U16", 2, DType::none},       {"I8", 1, DType::i8},
    {"C64", 8, DType::none}, {"F8_E8M0", 1, DType::none},
};

const TypeRow* find(std::string_view dtype) {
  for (const TypeRow& row : kTypes) {
    if (dtype == row.name) return &row;
  }
  return nullptr;
}

}  // namespace

std::int64_t element_bytes(std::string_view dtype) {
  const TypeRow* row = find(dtype);
  return row == nullptr ? 0 : row->bytes;
}

DType library_type(std::string_view dtype) {
  const TypeRow* row = find(dtype);
  return row == nullptr ? DType::none : row->type;
}

const char* file_type(DType dtype) {
  if (dtype == DType::none) return "";
  for (const TypeRow& row : kTypes) {
    if (dtype == row.type) return row.name;
  }
  return "";
}

std::optional<std::uint64_t> tensor_bytes(const std::vector<std::int64_t>& shape,
                                          std::int64_t bytes_per_element) {
  constexpr std::uint64_t kLimit = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bytes = static_cast<std::uint64_t>(bytes_per_element);
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) {
      empty = true;
      continue;
    }
    // Strides of an empty tensor are products too, so they may not overflow either.
    if (bytes > kLimit / static_cast<std::uint64_t>(extent)) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(extent);
  }
  return empty ? 0 : bytes;
}

std::string describe(const FileTensor& tensor) {
  std::string text = tensor.dtype + "[";
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(tensor.shape[d]);
  }
  return text + "]";
}

Result<TensorView> view(const FileTensor& tensor) {
  const auto rank = tensor.shape.size();
  TensorView out;
  out.dtype = library_type(tensor.dtype);
  if (out.dtype == DType::none) {
    return Result<TensorView>::failure("tensor " + printable(tensor.name) + " has type " +
                                       tensor.dtype + ", which the library does not take");
  }
  if (rank < 1 || rank > static_cast<std::size_t>(kMaxRank)) {
    return Result<TensorView>::failure("tensor " + printable(tensor.name) + " has " +
                                       std::to_string(rank) + " dimensions; 1 to " +
                                       std::to_string(kMaxRank) + " are accepted");
  }
  out.data = const_cast<std::byte*>(tensor.data.data());
  out.rank = static_cast<std::int32_t>(rank);
  std::int64_t stride = 1;
  for (std::size_t d = rank; d-- > 0;) {
    out.shape[d] = tensor.shape[d];
    out.strides[d] = stride;
    if (tensor.shape[d] > 0) stride *= tensor.shape[d];
  }
  return out;
}

}  // namespace attn::files
