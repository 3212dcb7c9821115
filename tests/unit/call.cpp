// Memory for calls: see call.hpp.
#include "call.hpp"

#include <algorithm>

#include "core/signature.hpp"
#include "core/tensor.hpp"

namespace attn::test {

namespace {

TensorView with_memory(CallMemory& call, TensorView view) {
  std::int64_t elements = 1;
  for (int d = 0; d < view.rank; ++d) elements *= view.shape[static_cast<std::size_t>(d)];
  const auto words = static_cast<std::size_t>(elements * size_of(view.dtype) / 8 + 1);
  call.memory.push_back(std::make_unique<double[]>(words));
  view.data = call.memory.back().get();
  core::set_contiguous_strides(view);
  return view;
}

}  // namespace

TensorView CallMemory::tensor(DType dtype, std::initializer_list<std::int64_t> shape) {
  return with_memory(*this, TensorView::contiguous(nullptr, dtype, shape));
}

CallMemory make_call(Pass pass, const Problem& problem) {
  CallMemory call;
  for (const core::Slot& slot : core::slots_of(pass, problem)) {
    if (slot.use != core::Use::needed) continue;
    TensorView view;
    view.dtype = slot.shape.dtype;
    view.rank = slot.shape.rank;
    for (std::size_t d = 0; d < view.shape.size(); ++d) {
      const core::Dim& dim = slot.shape.dims[d];
      view.shape[d] = dim.fit == core::Fit::any ? 5 : dim.fit == core::Fit::reduced ? 1 : dim.size;
    }
    call.arguments.*slot.view = with_memory(call, view);
  }
  if (problem.softcap) call.arguments.softcap = 10.0;
  return call;
}

CallMemory make_call(Pass pass, const std::string& problem) {
  return make_call(pass, parse_problem(problem));
}

}  // namespace attn::test
