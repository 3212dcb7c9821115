// Implements provider.hpp.
#include "webgpu/host/provider.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "platform/platform.hpp"

namespace attn::webgpu {
namespace {

namespace fs = std::filesystem;

// File names of wgpu-native (from the wheel, from a release) and of Dawn.
std::vector<std::string> files() {
  std::vector<std::string> list;
  for (const char* name : {"wgpu_native-release", "wgpu_native", "webgpu_dawn"}) {
    list.push_back(platform::library_file(name));
  }
  return list;
}

void add_files(std::vector<std::string>& list, const fs::path& folder) {
  for (const std::string& name : files()) {
    std::error_code error;
    if (fs::exists(folder / name, error)) list.push_back((folder / name).string());
  }
}

void* loaded_function(const char* name) {
  return platform::find_symbol(nullptr, name);
}

// Fills the table and sets the kind. Returns the name of the first missing function, or null.
template <class Find>
const char* load(ProviderApi& api, ProviderKind& kind, Find&& find) {
  const char* missing = nullptr;
  const auto get = [&](auto& function, const char* name, bool needed) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(find(name));  // NOLINT
    if (function == nullptr && needed && missing == nullptr) missing = name;
  };
  get(api.wgpuDevicePoll, "wgpuDevicePoll", false);
  kind = api.wgpuDevicePoll != nullptr ? ProviderKind::wgpu_native : ProviderKind::dawn;
  const bool native = kind == ProviderKind::wgpu_native;
#define ATTN_WEBGPU_GET(function) get(api.function, #function, true);
  ATTN_WEBGPU_FUNCTIONS(ATTN_WEBGPU_GET)
  if (native) {
    ATTN_WEBGPU_NATIVE_FUNCTIONS(ATTN_WEBGPU_GET)
  } else {
    ATTN_WEBGPU_DAWN_FUNCTIONS(ATTN_WEBGPU_GET)
  }
#undef ATTN_WEBGPU_GET
  return missing;
}

std::string version_text(std::uint32_t version) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) {
    text.append(text.empty() ? "" : ".").append(std::to_string(version >> shift & 0xff));
  }
  return text;
}

// Returns a reason if the library is too old for our webgpu.h.
std::optional<std::string> refusal(const ProviderApi& api, std::uint32_t& version) {
  if (api.wgpuGetVersion == nullptr) return std::nullopt;
  version = api.wgpuGetVersion();
  if (version >> 24 >= kNeededWgpuMajor) return std::nullopt;
  return "is wgpu-native " + version_text(version) + ", " + std::to_string(kNeededWgpuMajor) +
         ".0 or later is needed";
}

}  // namespace

std::string to_string(const Provider& provider) {
  return provider.native() ? "wgpu-native " + version_text(provider.version()) : "Dawn";
}

std::vector<std::string> Provider::candidates() {
  std::vector<std::string> list;
  if (const char* asked = std::getenv("ATTN_WGPU"); asked != nullptr && *asked != '\0') {
    std::error_code error;
    if (!fs::is_directory(asked, error)) return {asked};
    add_files(list, asked);
    add_files(list, fs::path(asked) / "wgpu" / "resources");
    if (list.empty()) list.push_back((fs::path(asked) / files().front()).string());
    return list;
  }
  list.emplace_back();
  for (std::string& name : files()) list.push_back(std::move(name));
  const fs::path own = platform::own_folder();
  if (!own.empty()) add_files(list, own.parent_path() / "wgpu" / "resources");
#ifdef ATTN_WEBGPU_WHEEL
  add_files(list, ATTN_WEBGPU_WHEEL);
#endif
  return list;
}

Provider::Opened Provider::open(std::span<const std::string> libraries) {
  std::string passed_over;
  const auto pass_over = [&](const std::string& text) {
    passed_over.append(passed_over.empty() ? "" : "; ").append(text);
  };
  for (const std::string& library : libraries) {
    // Never unloaded: its threads and drivers can't be unloaded safely.
    std::string error;
    void* const handle = library.empty() ? nullptr : platform::open_library(library.c_str(), error);
    if (!library.empty() && handle == nullptr) {
      if (fs::path(library).has_parent_path()) pass_over(error);
      continue;
    }
    if (library.empty() && platform::find_symbol(nullptr, "wgpuCreateInstance") == nullptr)
      continue;
    const std::string name = library.empty() ? "what the process has loaded" : library;
    std::unique_ptr<Provider> provider(new Provider);
    const char* missing = load(provider->api_, provider->kind_, [&](const char* symbol) {
      return platform::find_symbol(handle, symbol);
    });
    if (missing != nullptr) {
      pass_over(name + " has no " + missing);
      continue;
    }
    if (const auto reason = refusal(provider->api_, provider->version_)) {
      pass_over(name + " " + *reason);
      continue;
    }
    provider->path_ = platform::file_of(
        reinterpret_cast<const void*>(provider->api_.wgpuCreateInstance));  // NOLINT
    return {std::move(provider), ""};
  }
  return {nullptr, "no WebGPU library" +
                       (passed_over.empty() ? std::string() : " (" + passed_over + ")") +
                       ": install the pip package wgpu, or name libwgpu_native.so in ATTN_WGPU"};
}

const Provider* Provider::get(std::string& reason) {
  static const Opened& opened = *new Opened(open(candidates()));  // never freed: used until exit
  if (opened.provider == nullptr) reason = opened.reason;
  return opened.provider.get();
}

Provider::Opened Provider::from(Lookup lookup) {
  std::unique_ptr<Provider> provider(new Provider);
  const char* missing = load(provider->api_, provider->kind_, lookup);
  if (missing != nullptr) {
    const bool given = lookup != loaded_function;
    return {nullptr, std::string(given ? "the caller's lookup finds no "
                                       : "no lookup was given, and the process has loaded no ") +
                         missing};
  }
  if (const auto reason = refusal(provider->api_, provider->version_)) {
    return {nullptr, "the library of the caller's lookup " + *reason};
  }
  return {std::move(provider), ""};
}

Provider::Opened Provider::from(const ProviderApi& api, ProviderKind kind) {
  std::unique_ptr<Provider> provider(new Provider);
  provider->api_ = api;
  provider->kind_ = kind;
  if (api.wgpuGetVersion != nullptr) provider->version_ = api.wgpuGetVersion();
  return {std::move(provider), ""};
}

const Provider* Provider::of(Lookup lookup, std::string& reason) {
  if (lookup == nullptr) lookup = loaded_function;
  static std::mutex mutex;
  static auto& all = *new std::map<Lookup, Opened>;  // never freed
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = all.find(lookup);
  if (found == all.end()) found = all.emplace(lookup, from(lookup)).first;
  if (found->second.provider == nullptr) reason = found->second.reason;
  return found->second.provider.get();
}

}  // namespace attn::webgpu
