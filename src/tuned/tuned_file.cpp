// Files of measured tiles; see tuned_file.hpp.
#include "tuned/tuned_file.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <sstream>

#include "platform/platform.hpp"

namespace attn::tuned {
namespace {

constexpr const char* kSeparator = " : ";
constexpr std::int64_t kMostBytes = 1 << 20;  // larger files are not from the tuner

}  // namespace

std::string cache_root() {
  if (const char* root = std::getenv("ATTN_CACHE_DIR"); root != nullptr && *root != '\0') {
    return root;
  }
  return platform::cache_folder("libattn");
}

TunedFile::TunedFile(Origin origin, bool (*readable)(const std::string& tiles))
    : origin_(std::move(origin)) {
  if (origin_.root.empty()) return;
  // "<root>/cuda/tuned-NVIDIA_H200.txt"
  std::string name = origin_.device;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  folder_ = origin_.root + "/" + origin_.backend;
  path_ = folder_ + "/tuned-" + name + ".txt";
  std::error_code error;
  if (!std::filesystem::exists(path_, error)) return;
  const std::optional<std::string> text = platform::read_file(path_, kMostBytes);
  if (!text) {
    problem_ = path_ + " is not used: it is not a readable file of at most " +
               std::to_string(kMostBytes) + " bytes";
    return;
  }
  if (const std::string wrong = read(*text, readable); !wrong.empty()) {
    problem_ = path_ + " is not used: " + wrong;
    tiles_.clear();
  }
}

std::string TunedFile::opening() const {
  return "attn-tuned " + std::to_string(origin_.version);
}

std::string TunedFile::read(const std::string& text, bool (*readable)(const std::string&)) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != opening()) {
    return "its first line is not '" + opening() + "'";
  }
  if (!std::getline(lines, line) || line != "device=" + origin_.device) {
    return "it is not of " + origin_.device;
  }
  while (std::getline(lines, line)) {
    const std::size_t at = line.find(kSeparator);
    const std::string tiles =
        at == std::string::npos ? "" : line.substr(at + std::strlen(kSeparator));
    if (tiles.empty() || !readable(tiles)) return "can't read '" + line + "'";
    tiles_[line.substr(0, at)] = tiles;
  }
  return {};
}

std::optional<std::string> TunedFile::find(const std::string& key) const {
  const std::shared_lock lock(mutex_);
  const auto found = tiles_.find(key);
  if (found == tiles_.end()) return std::nullopt;
  return found->second;
}

void TunedFile::use(const std::string& key, const std::string& tiles) {
  const std::unique_lock lock(mutex_);
  if (tiles.empty()) {
    tiles_.erase(key);
  } else {
    tiles_[key] = tiles;
  }
}

std::size_t TunedFile::size() const {
  const std::shared_lock lock(mutex_);
  return tiles_.size();
}

core::Status TunedFile::store() const {
  const auto refuse = [this](const std::string& why) {
    return core::Status::invalid(origin_.backend + ": tune_store: folder: found " + why +
                                 "; accepted one that can be written");
  };
  if (path_.empty()) return refuse("no folder is known: ATTN_CACHE_DIR and HOME are not set");
  const auto because = [](const std::string& path) { return path + ": " + std::strerror(errno); };
  if (!platform::make_private_folder(folder_)) return refuse(because(folder_));
  std::string text = opening() + "\ndevice=" + origin_.device + "\n";
  {
    const std::shared_lock lock(mutex_);
    for (const auto& [key, tiles] : tiles_) {
      text.append(key).append(kSeparator).append(tiles).append("\n");
    }
  }
  const std::string temporary = path_ + "." + std::to_string(platform::process_id());
  platform::remove_file(temporary);  // of a process that died and had this id
  if (!platform::write_new_file(temporary, text)) return refuse(because(temporary));
  if (platform::replace_file(temporary, path_)) return {};
  const core::Status refusal = refuse(because(path_));
  platform::remove_file(temporary);
  return refusal;
}

}  // namespace attn::tuned
