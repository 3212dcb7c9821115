// output_shapes: the written tensors of a call's signature as contiguous views without memory.
#include "core/outputs.hpp"

#include "core/signature.hpp"
#include "core/tensor.hpp"

namespace attn::core {

Outputs outputs_of(Pass pass, const Problem& problem) {
  struct Entry {
    TensorView Arguments::* argument;
    TensorView Outputs::* output;
  };
  constexpr Entry kEntries[] = {
      {&Arguments::o, &Outputs::o},        {&Arguments::lse, &Outputs::lse},
      {&Arguments::dq, &Outputs::dq},      {&Arguments::dk, &Outputs::dk},
      {&Arguments::dv, &Outputs::dv},      {&Arguments::dbias, &Outputs::dbias},
      {&Arguments::dsink, &Outputs::dsink}};
  Outputs outputs;
  for (const Slot& slot : slots_of(pass, problem)) {
    if (!slot.written || slot.use != Use::needed) continue;
    for (const Entry& entry : kEntries) {
      if (entry.argument != slot.view) continue;
      TensorView& view = outputs.*entry.output;
      view.dtype = slot.shape.dtype;
      view.rank = slot.shape.rank;
      for (std::size_t d = 0; d < view.shape.size(); ++d) view.shape[d] = slot.shape.dims[d].size;
      set_contiguous_strides(view);
    }
  }
  return outputs;
}

}  // namespace attn::core
