// SHA-256 (FIPS 180-4): names and checks compiled kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace attn::cuda {

class Sha256 {
 public:
  // Adds bytes to the message.
  void add(std::string_view bytes);
  // Adds the length and then the bytes, so that two fields can't pass for one.
  void add_field(std::string_view bytes);
  // The digest of all that was added, as 64 hexadecimal digits. Once.
  [[nodiscard]] std::string hex();

 private:
  void block(const unsigned char* bytes);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> tail_{};
  std::uint64_t length_ = 0;
};

std::string sha256(std::string_view bytes);

}  // namespace attn::cuda
