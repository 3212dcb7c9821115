// The subcommands: each adds its flags to an app and returns the function to run after parsing.
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>

#include "core/backend.hpp"

namespace attn::cli {

// Returns the exit code. Throws BadInput, attn::Error.
using Command = std::function<int()>;

// A range, without the note that CLI11 adds to the help text. NaN is outside, unlike in CLI::Range.
template <class T>
CLI::Validator from_to(T low, T high) {
  return {[range = CLI::Range(low, high)](std::string& text) {
            const bool is_nan = std::isnan(std::strtod(text.c_str(), nullptr));
            return is_nan ? "Value " + text + " is not a number" : range(text);
          },
          ""};
}

// The values that Context accepts; 0: its default.
inline CLI::Validator thread_count() {
  return from_to(0, core::kMaxThreads);
}

Command add_run(CLI::App& app);
Command add_check(CLI::App& app);
Command add_bench(CLI::App& app);
Command add_info(CLI::App& app);
Command add_cache(CLI::App& app);
Command add_tune(CLI::App& app);

}  // namespace attn::cli
