// Implements hash.hpp with xxHash, inlined: the library does not depend on libxxhash at run time.
#include "cuda/host/hash.hpp"

#define XXH_INLINE_ALL
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#endif
#include <xxhash.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

namespace attn::cuda {

std::string hash(std::string_view bytes) {
  XXH128_canonical_t canonical;  // big-endian: the same digits on every machine
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  std::string digits;
  for (const unsigned char byte : canonical.digest) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

void append_field(std::string& bytes, std::string_view field) {
  bytes.append(std::to_string(field.size())).append(":").append(field);
}

}  // namespace attn::cuda
