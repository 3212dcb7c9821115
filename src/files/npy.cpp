// .npy: sizes are checked before memory is allocated.
#include "files/npy.hpp"

#include <algorithm>
#include <array>
#include <exception>

#include "files/npy_header.hpp"

namespace attn::files {
namespace {

constexpr std::array<unsigned char, 6> kMagic = {0x93, 'N', 'U', 'M', 'P', 'Y'};
constexpr std::uint64_t kFixedBytes = 8;  // magic and version
constexpr std::size_t kPadding = 64;      // the data starts at a multiple of it

std::string check_magic(std::span<const unsigned char> start) {
  if (std::equal(kMagic.begin(), kMagic.end(), start.begin())) return "";
  if (start[0] == 'P' && start[1] == 'K') {
    return "an .npz archive; save each array with numpy.save";
  }
  if (start[0] == 0x80) return "a pickle, which is never loaded; save with numpy.save";
  return "not a .npy file";
}

}  // namespace

template <class Source>
Result<NpyFile> NpyFile::load(std::uint64_t size, Source& source) {
  using Failure = Result<NpyFile>;
  constexpr const char* kShrunk = "the file ended early or can't be read";
  const auto truncated = [&](const std::string& what, std::uint64_t wanted, std::uint64_t found) {
    return Failure::failure("truncated: " + what + " needs " + std::to_string(wanted) + " bytes, " +
                            std::to_string(found) + " are there");
  };
  std::array<unsigned char, kFixedBytes> start{};
  if (size < kFixedBytes) return truncated("magic and version", kFixedBytes, size);
  if (!source.read(std::as_writable_bytes(std::span(start)))) return Failure::failure(kShrunk);
  std::string problem = check_magic(start);
  if (!problem.empty()) return Failure::failure(std::move(problem));
  const unsigned major = start[6];
  if (major < 1 || major > 3 || start[7] != 0) {
    return Failure::failure("format version " + std::to_string(major) + "." +
                            std::to_string(start[7]) + "; 1.0, 2.0 and 3.0 are accepted");
  }

  std::uint64_t rest = size - kFixedBytes;
  std::uint32_t header_bytes = 0;
  const std::size_t length_bytes = major == 1 ? 2 : 4;
  if (rest < length_bytes) return truncated("the header's length", length_bytes, rest);
  if (!source.read(std::as_writable_bytes(std::span(&header_bytes, 1)).first(length_bytes))) {
    return Failure::failure(kShrunk);
  }
  rest -= length_bytes;
  if (header_bytes > kMaxNpyHeader) {
    return Failure::failure("the header is to have " + std::to_string(header_bytes) +
                            " bytes; at most " + std::to_string(kMaxNpyHeader) + " are accepted");
  }
  if (header_bytes > rest) return truncated("the header", header_bytes, rest);
  std::string text(header_bytes, '\0');
  if (!source.read(std::as_writable_bytes(std::span(text)))) return Failure::failure(kShrunk);
  rest -= header_bytes;

  auto header = parse_npy_header(text);
  if (!header) return Failure::failure(header.error());
  const auto bytes = tensor_bytes(header->shape, element_bytes(header->dtype));
  if (!bytes) return Failure::failure("a shape whose size in bytes overflows");
  if (*bytes > rest) return truncated("the data", *bytes, rest);
  if (*bytes < rest) {
    return Failure::failure(std::to_string(rest - *bytes) + " bytes follow the " +
                            std::to_string(*bytes) + " bytes of the array");
  }
  auto memory = Buffer::allocate(*bytes);
  if (!memory) return Failure::failure(memory.error());
  NpyFile file;
  file.memory_ = std::move(*memory);
  const std::span<std::byte> data(file.memory_.data(), *bytes);
  if (!source.read(data)) return Failure::failure(kShrunk);
  file.tensor_ = {"", std::move(header->dtype), std::move(header->shape), data};
  return file;
}

Result<NpyFile> NpyFile::read(const std::string& path) {
  using Failure = Result<NpyFile>;
  try {
    auto input = InputFile::open(path);
    if (!input) return Failure::failure(path + ": " + input.error());
    auto file = load(input->size(), *input);
    return file ? std::move(file) : Failure::failure(path + ": " + file.error());
  } catch (const std::exception&) {  // std::bad_alloc
    return Failure::failure(path + ": out of memory");
  }
}

Result<NpyFile> NpyFile::parse(std::span<const std::byte> content) {
  try {
    InputMemory source(content);
    return load(content.size(), source);
  } catch (const std::exception&) {  // std::bad_alloc
    return Result<NpyFile>::failure("out of memory");
  }
}

std::string write_npy(const std::string& path, const FileTensor& tensor) {
  const auto bytes = tensor_bytes(tensor.shape, element_bytes(tensor.dtype));
  std::string text = npy_header_text({tensor.dtype, tensor.shape});
  if (text.empty()) return path + ": .npy has no type " + tensor.dtype + "; use .safetensors";
  if (!bytes || *bytes != tensor.data.size()) {
    return path + ": " + describe(tensor) + " has " + std::to_string(tensor.data.size()) +
           " bytes, which don't fit its type and shape";
  }
  const std::size_t prefix = kFixedBytes + 2;
  const std::size_t padded = (prefix + text.size() + 1 + kPadding - 1) / kPadding * kPadding;
  text.resize(padded - prefix - 1, ' ');
  text += '\n';
  const std::array<unsigned char, 10> start = {0x93,
                                               'N',
                                               'U',
                                               'M',
                                               'P',
                                               'Y',
                                               1,
                                               0,
                                               static_cast<unsigned char>(text.size() & 255),
                                               static_cast<unsigned char>(text.size() >> 8)};
  const std::array<std::span<const std::byte>, 3> pieces = {
      std::as_bytes(std::span(start)), std::as_bytes(std::span(text)), tensor.data};
  return write_file(path, pieces);
}

}  // namespace attn::files
