// The tensors that a run writes: memory in the layout of the files, given to the library as views.
#pragma once

#include <attn/attn.hpp>
#include <deque>
#include <string>
#include <vector>

#include "cli/inputs.hpp"

namespace attn::cli {

class Outputs {
 public:
  // Makes what `pass` writes for `problem` and puts the views into `arguments`; `dtype` none = the
  // problem's own types, else that type for all. With accumulate the gradients start as `inputs`
  // say. Tensors of the same name that exist are kept (a backward's o and lse).
  void make(Pass pass, const Problem& problem, DType dtype, FileLayout layout, Inputs& inputs,
            Arguments& arguments);

  [[nodiscard]] const files::FileTensor* find(const std::string& name) const;
  [[nodiscard]] std::vector<files::FileTensor> tensors() const;

 private:
  std::deque<files::OwnedTensor> tensors_;
};

// One file (.safetensors), or one .npy for each tensor in a folder that must exist. Throws
// BadInput.
void write_outputs(const std::string& target, const std::vector<files::FileTensor>& tensors,
                   const files::Metadata& metadata);

}  // namespace attn::cli
