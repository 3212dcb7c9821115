// XXH3 (128 bits): names compiled kernels in the cache and checks that their files are complete.
#pragma once

#include <string>
#include <string_view>

namespace attn::cuda {

inline constexpr std::size_t kHashDigits = 32;

// The hash of `bytes`, as kHashDigits hexadecimal digits.
std::string hash(std::string_view bytes);

// Appends the length of a field and the field, so that ("ab", "c") and ("a", "bc") differ.
void append_field(std::string& bytes, std::string_view field);

}  // namespace attn::cuda
