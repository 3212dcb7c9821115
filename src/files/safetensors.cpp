// .safetensors: sizes are checked before memory is allocated.
#include "files/safetensors.hpp"

#include <algorithm>
#include <exception>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "files/safetensors_header.hpp"

namespace attn::files {
namespace {

constexpr std::uint64_t kPrefixBytes = 8;

}  // namespace

template <class Source>
Result<SafetensorsFile> SafetensorsFile::load(std::uint64_t size, Source& source) {
  using Failure = Result<SafetensorsFile>;
  constexpr const char* kShrunk = "the file ended early or can't be read";
  std::uint64_t header_bytes = 0;
  if (size < kPrefixBytes) {
    return Failure::failure("truncated: " + std::to_string(size) +
                            " bytes; a safetensors file has at least 10");
  }
  if (!source.read(std::as_writable_bytes(std::span(&header_bytes, 1)))) {
    return Failure::failure(kShrunk);
  }
  if (header_bytes > size - kPrefixBytes) {
    return Failure::failure("truncated, or not a safetensors file: the header is to have " +
                            std::to_string(header_bytes) + " bytes, " +
                            std::to_string(size - kPrefixBytes) + " follow");
  }
  if (header_bytes > kMaxSafetensorsHeader) {
    return Failure::failure("the header is to have " + std::to_string(header_bytes) +
                            " bytes; at most " + std::to_string(kMaxSafetensorsHeader) +
                            " are accepted");
  }
  std::vector<char> text(header_bytes);
  if (!source.read(std::as_writable_bytes(std::span(text)))) return Failure::failure(kShrunk);
  auto header = parse_safetensors_header(text, size - kPrefixBytes - header_bytes);
  if (!header) return Failure::failure(header.error());

  std::uint64_t total = 0;
  for (const auto& entry : header->entries) total += align_up(entry.end - entry.begin);
  auto memory = Buffer::allocate(total);
  if (!memory) return Failure::failure(memory.error());
  SafetensorsFile file;
  file.metadata_ = std::move(header->metadata);
  file.tensors_.reserve(header->entries.size());
  std::byte* at = memory->data();
  for (auto& entry : header->entries) {
    const std::span<std::byte> data(at, entry.end - entry.begin);
    if (!source.read(data)) return Failure::failure(kShrunk);
    at += align_up(data.size());
    file.tensors_.push_back(
        {std::move(entry.name), std::move(entry.dtype), std::move(entry.shape), data});
  }
  file.memory_ = std::move(*memory);
  return file;
}

Result<SafetensorsFile> SafetensorsFile::read(const std::string& path) {
  using Failure = Result<SafetensorsFile>;
  try {
    auto input = InputFile::open(path);
    if (!input) return Failure::failure(path + ": " + input.error());
    auto file = load(input->size(), *input);
    return file ? std::move(file) : Failure::failure(path + ": " + file.error());
  } catch (const std::exception&) {  // std::bad_alloc
    return Failure::failure(path + ": out of memory");
  }
}

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> content) {
  try {
    InputMemory source(content);
    return load(content.size(), source);
  } catch (const std::exception&) {  // std::bad_alloc
    return Result<SafetensorsFile>::failure("out of memory");
  }
}

const FileTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const FileTensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

std::string write_safetensors(const std::string& path, std::span<const FileTensor> tensors,
                              const Metadata& metadata) {
  // Larger elements first keeps every tensor aligned to its element, as the format's own writer
  // does.
  std::vector<const FileTensor*> order;
  for (const FileTensor& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const FileTensor* a, const FileTensor* b) {
    return std::pair(element_bytes(b->dtype), std::string_view(a->name)) <
           std::pair(element_bytes(a->dtype), std::string_view(b->name));
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<std::span<const std::byte>> pieces(2);
  std::uint64_t at = 0;
  std::unordered_set<std::string> names;
  for (const FileTensor* tensor : order) {
    const auto bytes = tensor_bytes(tensor->shape, element_bytes(tensor->dtype));
    if (element_bytes(tensor->dtype) == 0 || !bytes || *bytes != tensor->data.size()) {
      return path + ": tensor " + printable(tensor->name) + " " + describe(*tensor) + " has " +
             std::to_string(tensor->data.size()) + " bytes, which don't fit its type and shape";
    }
    if (tensor->name == "__metadata__" || !names.insert(tensor->name).second) {
      return path + ": the name " + printable(tensor->name) + " is taken";
    }
    header[tensor->name] = {
        {"dtype", tensor->dtype}, {"shape", tensor->shape}, {"data_offsets", {at, at + *bytes}}};
    at += *bytes;
    pieces.push_back(tensor->data);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception&) {
    return path + ": a tensor name or metadata is not valid UTF-8";
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t header_bytes = text.size();
  pieces[0] = std::as_bytes(std::span(&header_bytes, 1));
  pieces[1] = std::as_bytes(std::span(text));
  return write_file(path, pieces);
}

}  // namespace attn::files
