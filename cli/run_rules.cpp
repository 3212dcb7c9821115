// What attn run refuses before it computes anything.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run.hpp"

namespace attn::cli {
namespace {

std::string flag_of(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

// The flag that makes a run read the tensors of a slot; "" if it reads them.
std::string lacking(const RunOptions& options, const Slot& slot) {
  const bool accumulates = parse_problem(options.problem.words()).accumulate;
  switch (slot.when) {
    case When::always: break;
    case When::decode: return options.decode ? "" : "--decode";
    case When::backward: return options.backward ? "" : "--backward";
    // With --check they are what the run should give.
    case When::saved_forward:
      return options.saved_forward || options.check ? "" : "--backward --saved-forward, or --check";
    case When::accumulate: return options.backward && accumulates ? "" : "--backward --accumulate";
  }
  return "";
}

// .npy files hold these types.
bool fits_npy(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::i8;
}

// Every tensor that is written, with its type.
std::vector<std::pair<std::string, DType>> written_tensors(const RunOptions& options,
                                                           const Problem& problem) {
  std::vector<std::pair<std::string, DType>> out;
  for (const Pass pass : passes_of(options)) {
    const attn::Outputs shapes = attn::output_shapes(pass, problem);
    for (const auto& [name, view] : {std::pair{"o", &shapes.o},
                                     {"lse", &shapes.lse},
                                     {"dq", &shapes.dq},
                                     {"dk", &shapes.dk},
                                     {"dv", &shapes.dv},
                                     {"dbias", &shapes.dbias},
                                     {"dsink", &shapes.dsink}}) {
      if (view->given()) out.emplace_back(name, view->dtype);
    }
  }
  if (problem.len_new > 0) {
    out.emplace_back("k", problem.kv_type());
    out.emplace_back("v", problem.kv_type());
  }
  return out;
}

}  // namespace

std::vector<Pass> passes_of(const RunOptions& options) {
  if (options.decode) return {Pass::decode};
  if (!options.backward) return {Pass::forward};
  if (options.saved_forward) return {Pass::backward};
  return {Pass::forward, Pass::backward};
}

void check_flags(const RunOptions& options) {
  for (const Slot& slot : slots()) {
    if (options.input.given.count(slot.names[0]) == 0) continue;
    const std::string needed = lacking(options, slot);
    if (needed.empty()) continue;
    throw BadInput(fmt::format("every tensor is read: found {0} without {1}; accepted {0} with {1}",
                               flag_of(slot.names[0]), needed));
  }
  const Problem problem = parse_problem(options.problem.words());
  for (const auto& [flag, given] : {std::pair{"--dbias", problem.dbias},
                                    {"--dsink", problem.dsink},
                                    {"--accumulate", problem.accumulate}}) {
    if (!given || options.backward) continue;
    throw BadInput(fmt::format(
        "gradients are of the backward: found {0} without --backward; accepted {0} with it", flag));
  }
  for (const auto& [flag, given] : {std::pair{"--name", !options.input.renames.empty()},
                                    {"--ignore", !options.input.ignored.empty()}}) {
    if (!given || !options.input.file.empty()) continue;
    throw BadInput(fmt::format(
        "{0} is about tensors of a file: found {0} without --input; accepted {0} with --input "
        "FILE.safetensors",
        flag));
  }
}

void check_starts(const RunOptions& options, const Problem& problem) {
  for (const auto& [name, written] : {std::pair{"dq", problem.dq},
                                      {"dk", problem.dk},
                                      {"dv", problem.dv},
                                      {"dbias", problem.dbias},
                                      {"dsink", problem.dsink}}) {
    if (written || options.input.given.count(name + std::string("0")) == 0) continue;
    throw BadInput(fmt::format(
        "every tensor is read: found --{0}0 in a run without {0}; accepted --{0}0 where {0} is "
        "written",
        name));
  }
}

void check_output(const RunOptions& options, const Problem& problem) {
  namespace fs = std::filesystem;
  const std::string& output = options.output;
  if (output.empty()) return;
  std::error_code error;
  const fs::file_status status = fs::status(output, error);
  if (fs::is_directory(status)) {
    for (const auto& [name, dtype] : written_tensors(options, problem)) {
      if (fits_npy(dtype)) continue;
      throw BadInput(
          fmt::format("--output: .npy has no type {}, the type of {}; accepted a name that ends in "
                      ".safetensors",
                      files::file_type(dtype), name));
    }
    return;
  }
  if (fs::exists(status) && !fs::is_regular_file(status)) return;  // a device or pipe
  if (!std::string_view(output).ends_with(".safetensors")) {
    throw BadInput(fmt::format(
        "--output: found {}, which is no folder; accepted a name that ends in .safetensors, or an "
        "existing folder for .npy files",
        files::printable(output)));
  }
  const fs::path folder = fs::path(output).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error)) {
    throw BadInput(
        fmt::format("--output: found {}, a file in a folder that does not exist; "
                    "accepted a file in an existing folder",
                    files::printable(output)));
  }
}

}  // namespace attn::cli
