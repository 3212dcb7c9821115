// Calls for tests of the rules: memory and views for every tensor that a problem needs.
#pragma once

#include <attn/attn.hpp>
#include <memory>
#include <string>
#include <vector>

namespace attn::test {

struct CallMemory {
  Arguments arguments;
  std::vector<std::unique_ptr<double[]>> memory;

  // Contiguous zeros.
  TensorView tensor(DType dtype, std::initializer_list<std::int64_t> shape);
};

// A valid call: all needed tensors, contiguous and zero; softcap where it is on.
CallMemory make_call(Pass pass, const Problem& problem);
CallMemory make_call(Pass pass, const std::string& problem);

}  // namespace attn::test
