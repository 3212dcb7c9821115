// Reads the tensors of a run from files and passes them to the library as Arguments.
#pragma once

#include <attn/arguments.hpp>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/failure.hpp"
#include "cli/slots.hpp"
#include "files/convert.hpp"
#include "files/npy.hpp"
#include "files/safetensors.hpp"

namespace attn::cli {

// Order of the dimensions of q, k, v, o and their gradients in the files.
enum class FileLayout { bshd, bhsd, packed };
const char* to_string(FileLayout layout);

struct InputOptions {
  std::string file;                          // .safetensors; empty = none
  std::map<std::string, std::string> given;  // by slot name: a .npy file, or a list "1,2,3"
  std::vector<std::string> renames;          // "q=blk.0.q": slot or expected output = tensor
  std::vector<std::string> ignored;          // tensors of the file that are not used
  FileLayout layout = FileLayout::bshd;
  bool layout_given = false;
  std::string dtype;  // "f32", ...: type for q, k, v, do and bias; empty = as in the file
  DType dtype_out = DType::none;  // type for o and do; none = like q
  std::set<When> wanted;          // slots that are filled if their tensor exists
};

class Inputs {
 public:
  // Throws BadInput.
  explicit Inputs(const InputOptions& options);

  Arguments arguments;

  // A tensor as it is in the file, by its name in the run (after --name); null if there is none.
  const files::FileTensor* find(const std::string& name);
  // The same arguments with copies of k and v, so that an append does not change the file's
  // tensors.
  Arguments with_own_cache();
  // "q F32[2, 12, 256, 32]", one for each tensor that the library receives.
  [[nodiscard]] const std::vector<std::string>& used() const { return used_; }
  // The value of this key in the file's metadata; empty if there is none, or no file.
  [[nodiscard]] std::string metadata(const std::string& key) const;
  // Tensors of the file that neither find() nor a slot used.
  [[nodiscard]] std::vector<std::string> unused() const;

 private:
  void read_renames(const std::vector<std::string>& renames);
  void read_given(const InputOptions& options);
  const files::FileTensor* find_slot(const Slot& slot);
  files::FileTensor fit(const files::FileTensor& tensor, const Slot& slot);
  files::FileTensor converted(const files::FileTensor& tensor, const std::string& dtype);
  void fill(const Slot& slot);

  std::string source_;
  FileLayout layout_;
  std::string dtype_;
  std::string dtype_out_;
  bool decode_;
  std::set<std::string> ignored_;
  std::map<std::string, std::string> renames_;
  std::optional<files::SafetensorsFile> file_;
  std::map<std::string, files::FileTensor> given_;
  std::deque<files::NpyFile> npy_;
  std::deque<files::OwnedTensor> owned_;
  std::vector<std::string> used_;
  std::set<std::string> seen_;
};

// The library's view of rows [b, n, h, d] of a tensor in this layout. Throws BadInput if the rank
// does not fit the layout.
TensorView rows_view(const files::FileTensor& tensor, FileLayout layout);

// Returns the value, or throws BadInput with the error.
template <class T>
T take(files::Result<T> result) {
  if (!result) throw BadInput(result.error());
  return std::move(*result);
}

}  // namespace attn::cli
