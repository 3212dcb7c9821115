// Flags for the fields of Problem that tensors do not determine. They are generated from the core's
// list of fields, so that no new field can be forgotten here. Only parse_problem reads the values.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace attn::cli {

class ProblemFlags {
 public:
  // The app keeps a reference to this object.
  void add_to(CLI::App& app);
  // Adds "name" or "name=value", as if the flag had been given.
  void set(const std::string& word);
  // The given flags, as words for parse_problem.
  [[nodiscard]] const std::string& words() const { return words_; }

 private:
  std::string words_;
};

}  // namespace attn::cli
