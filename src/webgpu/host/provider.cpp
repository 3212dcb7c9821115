// The provider of webgpu.h; see provider.hpp.
#include "webgpu/host/provider.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

namespace attn::webgpu {
namespace {

namespace fs = std::filesystem;

// Names that libraries of wgpu-native (the wheel's, a release's) and of Dawn have.
constexpr const char* kFiles[] = {"libwgpu_native-release.so", "libwgpu_native.so",
                                  "libwebgpu_dawn.so"};

void add_files(std::vector<std::string>& list, const fs::path& folder) {
  for (const char* name : kFiles) {
    std::error_code error;
    if (fs::exists(folder / name, error)) list.push_back((folder / name).string());
  }
}

// The folder of the file that this code was loaded from.
fs::path own_folder() {
  static const char kHere = 0;
  Dl_info info{};
  if (dladdr(&kHere, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? fs::path() : file.parent_path();
}

void* loaded_function(const char* name) {
  return dlsym(RTLD_DEFAULT, name);
}

// Fills the table and tells the kind; the name of the first function that is missing, or null.
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

// Too old for our webgpu.h.
std::optional<std::string> refusal(const ProviderApi& api, std::uint32_t& version) {
  if (api.wgpuGetVersion == nullptr) return std::nullopt;
  version = api.wgpuGetVersion();
  if (version >> 24 >= kNeededWgpuMajor) return std::nullopt;
  return "is wgpu-native " + version_text(version) + ", " + std::to_string(kNeededWgpuMajor) +
         ".0 or later is needed";
}

std::string file_of(const void* function) {
  Dl_info info{};
  const bool known = dladdr(function, &info) != 0 && info.dli_fname != nullptr;
  return known ? info.dli_fname : "";
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
    if (list.empty()) list.push_back((fs::path(asked) / kFiles[0]).string());
    return list;
  }
  list.emplace_back();
  list.insert(list.end(), std::begin(kFiles), std::end(kFiles));
  const fs::path own = own_folder();
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
    // Stays loaded: its threads and drivers can't be unloaded safely.
    void* const handle =
        library.empty() ? RTLD_DEFAULT : dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library.empty() && handle == nullptr) {
      const char* error = dlerror();
      const bool is_path = library.find('/') != std::string::npos;
      if (is_path) pass_over(error != nullptr ? error : library);
      continue;
    }
    if (library.empty() && dlsym(handle, "wgpuCreateInstance") == nullptr) continue;
    const std::string name = library.empty() ? "what the process has loaded" : library;
    std::unique_ptr<Provider> provider(new Provider);
    const char* missing = load(provider->api_, provider->kind_,
                               [&](const char* symbol) { return dlsym(handle, symbol); });
    if (missing != nullptr) {
      pass_over(name + " has no " + missing);
      continue;
    }
    if (const auto reason = refusal(provider->api_, provider->version_)) {
      pass_over(name + " " + *reason);
      continue;
    }
    provider->path_ =
        file_of(reinterpret_cast<const void*>(provider->api_.wgpuCreateInstance));  // NOLINT
    return {std::move(provider), ""};
  }
  return {nullptr, "no WebGPU library" +
                       (passed_over.empty() ? std::string() : " (" + passed_over + ")") +
                       ": install the pip package wgpu, or name libwgpu_native.so in ATTN_WGPU"};
}

const Provider* Provider::get(std::string& reason) {
  static const Opened& opened = *new Opened(open(candidates()));  // never freed: used until the end
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
