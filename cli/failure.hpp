// Exit codes of the command, and the exception for errors that the user has to fix.
#pragma once

#include <stdexcept>
#include <string>

namespace attn::cli {

// Documented in `attn --help`.
enum Exit : int {
  kOk = 0,
  kCheckFailed = 1,
  kBadInput = 2,     // bad file, bad tensor, bad flag
  kUnsupported = 3,  // valid, but no usable backend supports it
  kInternal = 4,     // out of memory, device error, bug
};

// One line for the user; ends the command with kBadInput.
class BadInput : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace attn::cli
