// Converts tensors between types, element by element, rounding to nearest even.
#pragma once

#include <string>

#include "files/buffer.hpp"
#include "files/result.hpp"
#include "files/tensor.hpp"

namespace attn::files {

// A tensor with the memory it owns.
struct OwnedTensor {
  FileTensor tensor;
  Buffer memory;
};

// Zero-filled. Fails when there is not enough memory, or the size overflows.
Result<OwnedTensor> make_tensor(std::string name, const std::string& dtype,
                                std::vector<std::int64_t> shape);

// Any of F64 F32 F16 BF16 into any other of them; any integer type or BOOL into any other integer
// type that holds each of its values, or into a float type. Refused in one line: other pairs, a
// value that doesn't fit.
Result<OwnedTensor> convert(const FileTensor& tensor, const std::string& dtype);

}  // namespace attn::files
