// The output tensors of a run: memory in the file's layout, passed to the library as views.
#pragma once

#include <attn/attn.hpp>
#include <deque>
#include <string>
#include <vector>

#include "cli/inputs.hpp"

namespace attn::cli {

class Outputs {
 public:
  // Allocates the outputs of `pass` for `problem` and puts their views into `arguments`. `dtype`
  // none: the problem's own types, else this type for all. With accumulate, gradients start with
  // the values in `inputs`. Existing tensors of the same name are kept (o and lse for a backward).
  void make(Pass pass, const Problem& problem, DType dtype, FileLayout layout, Inputs& inputs,
            Arguments& arguments);

  [[nodiscard]] const files::FileTensor* find(const std::string& name) const;
  [[nodiscard]] std::vector<files::FileTensor> tensors() const;

 private:
  std::deque<files::OwnedTensor> tensors_;
};

// Writes one file (.safetensors), or one .npy per tensor into an existing folder. Throws BadInput.
void write_outputs(const std::string& target, const std::vector<files::FileTensor>& tensors,
                   const files::Metadata& metadata);

}  // namespace attn::cli
