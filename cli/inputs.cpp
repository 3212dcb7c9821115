// Finds, converts and transposes the tensors of a run.
#include "cli/inputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "core/names.hpp"
#include "core/suggest.hpp"

namespace attn::cli {
namespace {

using files::FileTensor;
using files::OwnedTensor;
using files::printable;

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.npos, end) == 0;
}

template <class T>
OwnedTensor parse_list(const std::string& name, const std::string& text, const char* dtype) {
  std::vector<T> values;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    T value{};
    const auto result = std::from_chars(at, end, value);
    if (result.ec != std::errc{} || (result.ptr != end && *result.ptr != ',')) {
      throw BadInput(fmt::format("{} is neither a .npy file nor a list of numbers: {}", name,
                                 printable(text)));
    }
    values.push_back(value);
    if (result.ptr == end) break;
    at = result.ptr + 1;
  }
  OwnedTensor out =
      take(files::make_tensor(name, dtype, {static_cast<std::int64_t>(values.size())}));
  std::memcpy(out.memory.data(), values.data(), values.size() * sizeof(T));
  return out;
}

// The name of a type in safetensors: "BF16" for "bf16".
std::string float_type(const std::string& name) {
  const auto dtype = core::value_of<DType>(name);
  for (const DType accepted : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    if (dtype == accepted) return files::file_type(accepted);
  }
  throw BadInput("--dtype is one of f32, f16, bf16, f64, not " + printable(name));
}

}  // namespace

const char* to_string(FileLayout layout) {
  switch (layout) {
    case FileLayout::bshd: return "bshd";
    case FileLayout::bhsd: return "bhsd";
    case FileLayout::packed: return "packed";
  }
  return "?";
}

TensorView rows_view(const FileTensor& tensor, FileLayout layout) {
  const TensorView view = take(files::view(tensor));
  if (view.rank == 4) return layout == FileLayout::bhsd ? view.transposed(1, 2) : view;
  if (view.rank == 3 && layout == FileLayout::packed) return view;
  throw BadInput(
      fmt::format("tensor {} is {}; accepted are 4 dimensions, or 3 with --layout packed",
                  printable(tensor.name), files::describe(tensor)));
}

Inputs::Inputs(const InputOptions& options)
    : layout_(options.layout),
      dtype_(options.dtype.empty() ? "" : float_type(options.dtype)),
      dtype_out_(options.dtype_out == DType::none ? dtype_ : files::file_type(options.dtype_out)),
      decode_(options.wanted.count(When::decode) != 0),
      ignored_(options.ignored.begin(), options.ignored.end()) {
  read_renames(options.renames);
  if (!options.file.empty()) {
    if (ends_with(options.file, ".npy")) {
      throw BadInput("--input takes a .safetensors file; give .npy files tensor by tensor: --q " +
                     options.file);
    }
    file_ = take(files::SafetensorsFile::read(options.file));
    source_ = options.file;
  }
  read_given(options);
  for (const Slot& slot : slots()) {
    if (slot.when != When::accumulate && options.wanted.count(slot.when) != 0) fill(slot);
  }
  for (const auto& [slot, tensor] : renames_) {
    if (file_ && file_->find(tensor) == nullptr) {
      throw BadInput(
          fmt::format("{} has no tensor {} (--name {}=...)", source_, printable(tensor), slot));
    }
  }
}

void Inputs::read_renames(const std::vector<std::string>& renames) {
  std::set<std::string> known;
  for (const Slot& slot : slots()) known.insert(slot.names.begin(), slot.names.end());
  for (const OutputSlot& slot : output_slots()) known.insert(slot.name);
  for (const std::string& rename : renames) {
    const std::size_t equals = rename.find('=');
    const std::string name = rename.substr(0, equals);
    if (equals == rename.npos || equals + 1 == rename.size()) {
      throw BadInput("--name takes NAME=TENSOR, not " + printable(rename));
    }
    if (known.count(name) == 0) {
      throw BadInput(fmt::format("--name: found {}; accepted {}{}", printable(name),
                                 fmt::join(known, ", "),
                                 core::did_you_mean(name, {known.begin(), known.end()})));
    }
    renames_[name] = rename.substr(equals + 1);
  }
}

void Inputs::read_given(const InputOptions& options) {
  for (const auto& [name, value] : options.given) {
    const auto slot = std::find_if(slots().begin(), slots().end(),
                                   [&](const Slot& s) { return s.names[0] == name; });
    if (ends_with(value, ".npy")) {
      npy_.push_back(take(files::NpyFile::read(value)));
      given_[name] = npy_.back().tensor();
      given_[name].name = name;
    } else if (slot != slots().end() && slot->listed) {
      owned_.push_back(slot->kind == Kind::indices ? parse_list<std::int64_t>(name, value, "I64")
                                                   : parse_list<double>(name, value, "F64"));
      given_[name] = owned_.back().tensor;
    } else {
      throw BadInput(fmt::format("{} takes a .npy file, not {}; a .safetensors file is for --input",
                                 name, printable(value)));
    }
  }
}

const FileTensor* Inputs::find(const std::string& name) {
  const auto given = given_.find(name);
  if (given != given_.end()) return &given->second;
  if (!file_) return nullptr;
  const auto renamed = renames_.find(name);
  const std::string& stored = renamed == renames_.end() ? name : renamed->second;
  if (ignored_.count(stored) != 0) return nullptr;
  const FileTensor* tensor = file_->find(stored);
  if (tensor != nullptr) seen_.insert(stored);
  return tensor;
}

const FileTensor* Inputs::find_slot(const Slot& slot) {
  for (const std::string& name : slot.names) {
    // In a decode, "lengths" means how much of the cache is filled: len_kv, not len_q.
    if (decode_ && name == "lengths" && slot.names[0] == "len_q") continue;
    if (const FileTensor* tensor = find(name)) return tensor;
  }
  return nullptr;
}

FileTensor Inputs::converted(const FileTensor& tensor, const std::string& dtype) {
  if (tensor.dtype == dtype) return tensor;
  owned_.push_back(take(files::convert(tensor, dtype)));
  return owned_.back().tensor;
}

FileTensor Inputs::fit(const FileTensor& tensor, const Slot& slot) {
  switch (slot.kind) {
    case Kind::out_rows: return dtype_out_.empty() ? tensor : converted(tensor, dtype_out_);
    case Kind::rows:
    case Kind::values: return dtype_.empty() ? tensor : converted(tensor, dtype_);
    case Kind::statistics:
      return converted(tensor, arguments.q.dtype == DType::f64 ? "F64" : "F32");
    case Kind::bytes: return tensor.dtype == "BOOL" ? tensor : converted(tensor, "U8");
    case Kind::indices: return converted(tensor, "I32");
  }
  return tensor;
}

void Inputs::fill(const Slot& slot) {
  const FileTensor* found = find_slot(slot);
  if (found == nullptr) {
    const std::string& name = slot.names[0];
    if (name != "q" && name != "k" && name != "v") return;
    if (!file_)
      throw BadInput(fmt::format("no {0}: give --input FILE.safetensors or --{0} FILE.npy", name));
    std::vector<std::string> names;
    for (const FileTensor& tensor : file_->tensors()) names.push_back(printable(tensor.name));
    if (names.size() > 12) names.resize(12);
    throw BadInput(fmt::format("{} has no tensor '{}'; give --name {}=NAME, it has {}", source_,
                               name, name,
                               names.empty() ? "none" : fmt::format("{}", fmt::join(names, " "))));
  }
  const FileTensor tensor = fit(*found, slot);
  arguments.*slot.member = slot.kind == Kind::rows || slot.kind == Kind::out_rows
                               ? rows_view(tensor, layout_)
                               : take(files::view(tensor));
  used_.push_back(slot.names[0] + " " + files::describe(tensor));
}

Arguments Inputs::with_own_cache() {
  Arguments out = arguments;
  for (TensorView* view : {&out.k, &out.v}) {
    // A cache is always a complete file tensor: contiguous, in whatever order of dimensions.
    std::int64_t elements = 1;
    for (std::int32_t d = 0; d < view->rank; ++d)
      elements *= view->shape[static_cast<std::size_t>(d)];
    OwnedTensor copy = take(files::make_tensor("cache", files::file_type(view->dtype), {elements}));
    std::memcpy(copy.memory.data(), view->address(), copy.tensor.data.size());
    view->data = copy.memory.data();
    owned_.push_back(std::move(copy));
  }
  return out;
}

std::string Inputs::metadata(const std::string& key) const {
  if (!file_) return "";
  const auto found = file_->metadata().find(key);
  return found == file_->metadata().end() ? "" : found->second;
}

std::vector<std::string> Inputs::unused() const {
  std::vector<std::string> names;
  if (!file_) return names;
  for (const FileTensor& tensor : file_->tensors()) {
    if (seen_.count(tensor.name) == 0 && ignored_.count(tensor.name) == 0) {
      names.push_back(tensor.name);
    }
  }
  return names;
}

}  // namespace attn::cli
