// Flags for the fields of Problem that tensors do not determine, generated from the core's list of
// fields, so that a new field can't be forgotten here. Only parse_problem reads the values.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace attn::cli {

class ProblemFlags {
 public:
  // Keeps a reference to this object in the app.
  void add_to(CLI::App& app);
  // Says "name" or "name=value", as if the flag had been given.
  void set(const std::string& word);
  // What was given, as words for parse_problem.
  [[nodiscard]] const std::string& words() const { return words_; }

 private:
  std::string words_;
};

}  // namespace attn::cli
