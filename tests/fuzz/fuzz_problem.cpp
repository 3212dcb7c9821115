// parse_problem on arbitrary text: either an attn::Error in one line, or a problem whose printed
// form reads back as itself.
#include <attn/context.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const attn::Problem problem = attn::parse_problem(text);
    if (!(attn::parse_problem(attn::to_string(problem)) == problem)) std::abort();
  } catch (const attn::Error& error) {
    if (error.code() != attn::ErrorCode::invalid_argument) std::abort();
  }
  return 0;
}
