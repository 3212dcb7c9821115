// The record of compiled kernels; see resource_record.hpp.
#include "resource_record.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cuda/host/binaries.hpp"
#include "cuda/host/hash.hpp"

namespace attn::cuda::test {
namespace {

bool parse(const std::string& line, ResourceReport& report) {
  std::istringstream words(line);
  for (Resources one; words >> one.entry;) {
    if (!(words >> one.registers >> one.stack_bytes >> one.spill_stores >> one.spill_loads >>
          one.shared_bytes)) {
      return false;
    }
    report.kernels.push_back(one);
  }
  return !report.kernels.empty();
}

std::string text_of(const ResourceReport& report) {
  std::ostringstream text;
  for (const Resources& one : report.kernels) {
    text << ' ' << one.entry << ' ' << one.registers << ' ' << one.stack_bytes << ' '
         << one.spill_stores << ' ' << one.spill_loads << ' ' << one.shared_bytes;
  }
  return text.str();
}

}  // namespace

core::Status record_key(const Nvrtc& nvrtc, const Config& config, int capability,
                        std::string& key) {
  BinaryKey whole;
  const core::Status status =
      binary_key(config, choose_architecture(capability, nvrtc.capabilities()), whole);
  if (status.ok()) key = hash(whole.text() + std::to_string(nvrtc.version()));
  return status;
}

bool ResourceRecord::read(const std::string& path) {
  if (!std::filesystem::exists(path)) return true;
  std::ifstream file(path);
  for (std::string key, rest; file >> key && std::getline(file, rest);) {
    ResourceReport report;
    if (!parse(rest, report)) return false;
    lines_[key] = rest;
  }
  return file.eof();
}

bool ResourceRecord::write(const std::string& path) const {
  std::ofstream file(path);
  for (const auto& [key, rest] : lines_) file << key << rest << '\n';
  return file.good();
}

std::optional<ResourceReport> ResourceRecord::find(const std::string& key) const {
  const auto line = lines_.find(key);
  if (line == lines_.end()) return std::nullopt;
  ResourceReport report;
  parse(line->second, report);
  return report;
}

void ResourceRecord::add(const std::string& key, const ResourceReport& report) {
  if (report.notes.empty()) lines_[key] = text_of(report);
}

}  // namespace attn::cuda::test
