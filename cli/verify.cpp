// Implements --check of attn run.
#include <algorithm>
#include <string>

#include "cli/run.hpp"
#include "reference/reference.hpp"

namespace attn::cli {
namespace {

void require(const std::string& problem) {
  if (!problem.empty()) throw Error(ErrorCode::internal, "reference: " + problem);
}

// Computes the f64 results of the reference for the same inputs.
Outputs reference_outputs(const RunOptions& options, const Problem& problem, Inputs& inputs,
                          Arguments arguments) {
  const FileLayout layout = options.input.layout;
  Outputs out;
  std::int32_t nonfinite = 0;
  if (problem.nonfinite_zero) {
    arguments.nonfinite_count = TensorView::contiguous(&nonfinite, DType::i32, {1});
  }
  if (options.decode) {
    out.make(Pass::decode, problem, DType::f64, layout, inputs, arguments);
    require(reference::decode(problem, arguments));
    return out;
  }
  if (!options.saved_forward) {
    out.make(Pass::forward, problem, DType::f64, layout, inputs, arguments);
    require(reference::forward(problem, arguments));
  }
  if (options.backward) {
    out.make(Pass::backward, problem, DType::f64, layout, inputs, arguments);
    require(reference::backward(problem, arguments));
  }
  return out;
}

}  // namespace

std::vector<TensorComparison> verify(const RunOptions& options, const Problem& problem,
                                     Inputs& inputs, const Arguments& arguments,
                                     const Outputs& written) {
  const Progress progress(options.progress, "check against the float64 reference");
  // The inputs before the run: the file's caches, without the append. Outputs are new.
  Arguments fresh = arguments;
  fresh.k = inputs.arguments.k;
  fresh.v = inputs.arguments.v;
  const Outputs reference = reference_outputs(options, problem, inputs, fresh);

  std::vector<TensorComparison> checks;
  const auto add = [&](const files::FileTensor& tensor, const files::FileTensor* expected,
                       const std::string& against) {
    if (expected == nullptr) return;
    const DType type = files::library_type(tensor.dtype);
    const double tolerance = options.tolerance.value_or(
        std::max(tolerance_of(problem.dtype, type), tolerance_of(problem.kv_type(), type)));
    checks.push_back(compare(tensor, *expected, tolerance));
    checks.back().against = against;
  };
  for (const files::FileTensor& tensor : written.tensors()) {
    add(tensor, reference.find(tensor.name), "reference");
  }
  for (const files::FileTensor& tensor : written.tensors()) {
    add(tensor, inputs.find(tensor.name), "file");
  }
  return checks;
}

}  // namespace attn::cli
