// Measured tiles; see tuned.hpp.
#include "cuda/families/sm80/tuned.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <sstream>
#include <type_traits>

#include "cuda/host/cache.hpp"

namespace attn::cuda::sm80 {
namespace {

constexpr const char* kOpening = "attn-tuned 4";
constexpr const char* kSeparator = " : ";
constexpr std::uintmax_t kMostBytes = 1 << 20;  // a larger file is none of ours

// The fields in addition to the pass, in the order in which they are written.
template <class Visit>
void visit_shape(Visit visit) {
  visit("dim_qk", &Shape::dim_qk);
  visit("dim_vo", &Shape::dim_vo);
  visit("bias_bytes", &Shape::bias_bytes);
  visit("mask", &Shape::mask);
  visit("softcap", &Shape::softcap);
  visit("alibi", &Shape::alibi);
  visit("dropout", &Shape::dropout);
  visit("banded", &Shape::banded);
  visit("element_bytes", &Shape::element_bytes);
}

template <class Visit>
void visit_tiles(Visit visit) {
  visit("tile_q", &Tiles::tile_q);
  visit("tile_kv", &Tiles::tile_kv);
  visit("warps", &Tiles::warps);
  visit("stages", &Tiles::stages);
  visit("blocks", &Tiles::blocks);
  visit("q_in_registers", &Tiles::q_in_registers);
  visit("chunk", &Tiles::chunk);
  visit("p_ds_in_smem", &Tiles::p_ds_in_smem);
  visit("split_dk_dv", &Tiles::split_dk_dv);
  visit("split_s_dp", &Tiles::split_s_dp);
  visit("kv_in_registers", &Tiles::kv_in_registers);
}

// "<folder>/tuned-NVIDIA_H200.txt"
std::string path_of(const std::string& root, const std::string& device) {
  const std::string folder = Cache(root).folder();
  if (folder.empty()) return {};
  std::string name = device;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return folder + "/tuned-" + name + ".txt";
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = to_string(shape.pass);
  visit_shape([&](const char* name, auto field) {
    text.append(" ").append(name).append("=").append(std::to_string(int{shape.*field}));
  });
  return text;
}

std::string to_string(const Tiles& tiles) {
  std::string text;
  visit_tiles([&](const char* name, auto field) {
    text.append(text.empty() ? "" : " ").append(name).append("=");
    text.append(std::to_string(int{tiles.*field}));
  });
  return text;
}

std::optional<Tiles> parse_tiles(const std::string& text) {
  Tiles tiles;
  std::istringstream words(text);
  bool good = true;
  visit_tiles([&](const char* name, auto field) {
    std::string word;
    words >> word;
    const std::string start = std::string(name) + "=";
    int value = -1;
    const char* const end = word.data() + word.size();
    good = good && word.starts_with(start) &&
           std::from_chars(word.data() + start.size(), end, value).ptr == end;
    using Field = std::remove_reference_t<decltype(tiles.*field)>;
    good = good && value >= 0 && (!std::is_same_v<Field, bool> || value <= 1);
    tiles.*field = static_cast<Field>(value);
  });
  std::string rest;
  if (!good || words >> rest) return std::nullopt;
  return tiles;
}

Tuned::Tuned(const std::string& root, std::string device)
    : path_(path_of(root, device)), device_(std::move(device)) {
  std::error_code error;
  if (path_.empty() || !std::filesystem::exists(path_, error)) return;
  if (!std::filesystem::is_regular_file(path_, error) ||
      std::filesystem::file_size(path_, error) > kMostBytes) {
    problem_ = path_ + " is not used: it is no file of ours";
    return;
  }
  const std::ifstream file(path_);
  std::ostringstream text;
  text << file.rdbuf();
  if (const std::string wrong = read(text.str()); !wrong.empty()) {
    problem_ = path_ + " is not used: " + wrong;
    tiles_.clear();
  }
}

Tuned& Tuned::of(const std::string& device) {
  static std::mutex mutex;
  static auto& all = *new std::map<std::string, std::unique_ptr<Tuned>>;  // plans may be made late
  const std::lock_guard lock(mutex);
  std::unique_ptr<Tuned>& tuned = all[device];
  if (tuned == nullptr) tuned = std::make_unique<Tuned>(Cache::default_root(), device);
  return *tuned;
}

core::Status tuned_facts(const Driver& driver, int ordinal, DeviceFacts& facts) {
  const DeviceFacts* known = nullptr;
  core::Status status = device_facts(driver, ordinal, known);
  if (!status.ok()) return status;
  facts = *known;
  facts.tuned = &Tuned::of(facts.name);
  return {};
}

std::string Tuned::read(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kOpening) {
    return std::string("its first line is not '") + kOpening + "'";
  }
  if (!std::getline(lines, line) || line != "device=" + device_) {
    return "it is not of " + device_;
  }
  while (std::getline(lines, line)) {
    const std::size_t at = line.find(kSeparator);
    const auto tiles = at == std::string::npos
                           ? std::nullopt
                           : parse_tiles(line.substr(at + std::strlen(kSeparator)));
    if (!tiles) return "can't read '" + line + "'";
    tiles_[line.substr(0, at)] = *tiles;
  }
  return {};
}

std::optional<Tiles> Tuned::find(const Shape& shape) const {
  const std::shared_lock lock(mutex_);
  if (tiles_.empty()) return std::nullopt;
  const auto found = tiles_.find(to_string(shape));
  if (found == tiles_.end()) return std::nullopt;
  return found->second;
}

void Tuned::use(const Shape& shape, const std::optional<Tiles>& tiles) {
  const std::unique_lock lock(mutex_);
  if (tiles) {
    tiles_[to_string(shape)] = *tiles;
  } else {
    tiles_.erase(to_string(shape));
  }
}

std::size_t Tuned::size() const {
  const std::shared_lock lock(mutex_);
  return tiles_.size();
}

core::Status Tuned::store() const {
  const auto refuse = [](const std::string& why) {
    return core::Status::invalid("cuda: tune_store: folder: found " + why +
                                 "; accepted one that can be written");
  };
  const std::filesystem::path path(path_);
  if (const std::string why = Cache(path.parent_path().parent_path().string()).unwritable();
      !why.empty()) {
    return refuse(why);
  }
  std::string text = std::string(kOpening) + "\ndevice=" + device_ + "\n";
  {
    const std::shared_lock lock(mutex_);
    for (const auto& [shape, tiles] : tiles_) {
      text.append(shape).append(kSeparator).append(to_string(tiles)).append("\n");
    }
  }
  const std::string temporary = path_ + ".new";
  std::ofstream file(temporary, std::ios::trunc);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(temporary, path_, error);
  if (!file || error) return refuse(path_ + ": " + (error ? error.message() : "not written"));
  return {};
}

}  // namespace attn::cuda::sm80
