// Allocates and writes the outputs.
#include "cli/outputs.hpp"

#include <cstring>
#include <filesystem>
#include <utility>

#include "cli/slots.hpp"

namespace attn::cli {

using files::FileTensor;
using files::OwnedTensor;

void Outputs::make(Pass pass, const Problem& problem, DType dtype, FileLayout layout,
                   Inputs& inputs, Arguments& arguments) {
  const attn::Outputs shapes = attn::output_shapes(pass, problem);
  const std::pair<const char*, const TensorView*> wanted[] = {
      {"o", &shapes.o},   {"lse", &shapes.lse},     {"dq", &shapes.dq},      {"dk", &shapes.dk},
      {"dv", &shapes.dv}, {"dbias", &shapes.dbias}, {"dsink", &shapes.dsink}};
  for (const OutputSlot& slot : output_slots()) {
    for (const auto& [name, view] : wanted) {
      if (std::string(slot.name) != name || !view->given() || find(name) != nullptr) continue;
      std::vector<std::int64_t> shape(view->shape.begin(), view->shape.begin() + view->rank);
      if (slot.rows && layout == FileLayout::bhsd) std::swap(shape[1], shape[2]);
      OwnedTensor made = take(files::make_tensor(
          name, files::file_type(dtype == DType::none ? view->dtype : dtype), std::move(shape)));
      const FileTensor* start =
          problem.accumulate && name[0] == 'd' ? inputs.find(std::string(name) + "0") : nullptr;
      if (start != nullptr) {
        const OwnedTensor values = take(files::convert(*start, made.tensor.dtype));
        if (values.tensor.shape != made.tensor.shape) {
          throw BadInput("tensor " + files::printable(start->name) + " is " +
                         files::describe(*start) + "; " + name + " is " +
                         files::describe(made.tensor));
        }
        std::memcpy(made.memory.data(), values.memory.data(), values.tensor.data.size());
      }
      arguments.*slot.member =
          slot.rows ? rows_view(made.tensor, layout) : take(files::view(made.tensor));
      tensors_.push_back(std::move(made));
    }
  }
}

const FileTensor* Outputs::find(const std::string& name) const {
  for (const OwnedTensor& owned : tensors_) {
    if (owned.tensor.name == name) return &owned.tensor;
  }
  return nullptr;
}

std::vector<FileTensor> Outputs::tensors() const {
  std::vector<FileTensor> out;
  for (const OwnedTensor& owned : tensors_) out.push_back(owned.tensor);
  return out;
}

void write_outputs(const std::string& target, const std::vector<FileTensor>& tensors,
                   const files::Metadata& metadata) {
  std::string problem;
  if (std::filesystem::is_directory(target)) {
    for (const FileTensor& tensor : tensors) {
      const auto path = std::filesystem::path(target) / (tensor.name + ".npy");
      if (problem.empty()) problem = files::write_npy(path.string(), tensor);
    }
  } else {
    problem = files::write_safetensors(target, tensors, metadata);
  }
  if (!problem.empty()) throw BadInput(problem);
}

}  // namespace attn::cli
