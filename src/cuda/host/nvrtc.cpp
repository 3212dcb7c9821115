// The run-time compiler; see nvrtc.hpp.
#include "cuda/host/nvrtc.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "cuda/host/driver.hpp"
#include "platform/platform.hpp"

namespace attn::cuda {
namespace {

namespace fs = std::filesystem;

using Program = struct NvrtcProgramHandle*;
constexpr int kNvrtcSuccess = 0;
constexpr int kNvrtcOutOfMemory = 1;
constexpr int kNvrtcCompilation = 6;

#if defined(_WIN32)
const char* const kNames[] = {"nvrtc64_130_0.dll", "nvrtc64_120_0.dll"};
constexpr const char* kFolderInWheel = "bin";
#else
const char* const kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};
constexpr const char* kFolderInWheel = "lib";
#endif

// Appends the libraries that exist in the folders, later versions first.
void add_files(std::vector<std::string>& list, const std::vector<fs::path>& folders) {
  for (const char* name : kNames) {
    for (const fs::path& folder : folders) {
      std::error_code error;
      if (fs::exists(folder / name, error)) list.push_back((folder / name).string());
    }
  }
}

// Searches <site-packages>/nvidia/*/lib (or bin), the folders of NVIDIA's wheels.
void add_wheels(std::vector<std::string>& list, const fs::path& site_packages) {
  std::error_code error;
  std::vector<fs::path> folders;
  fs::directory_iterator entry(site_packages / "nvidia", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    folders.push_back(entry->path() / kFolderInWheel);
  }
  std::sort(folders.begin(), folders.end());
  add_files(list, folders);
}

}  // namespace

struct Nvrtc::Api {
  void* library = nullptr;
  const char* (*nvrtcGetErrorString)(int) = nullptr;
  int (*nvrtcVersion)(int*, int*) = nullptr;
  int (*nvrtcGetNumSupportedArchs)(int*) = nullptr;
  int (*nvrtcGetSupportedArchs)(int*) = nullptr;
  int (*nvrtcCreateProgram)(Program*, const char* source, const char* name, int num_headers,
                            const char* const* headers, const char* const* names) = nullptr;
  int (*nvrtcDestroyProgram)(Program*) = nullptr;
  int (*nvrtcCompileProgram)(Program, int num_options, const char* const* options) = nullptr;
  int (*nvrtcGetCUBINSize)(Program, std::size_t*) = nullptr;
  int (*nvrtcGetCUBIN)(Program, char*) = nullptr;
  int (*nvrtcGetProgramLogSize)(Program, std::size_t*) = nullptr;
  int (*nvrtcGetProgramLog)(Program, char*) = nullptr;

  // The name of the first function that is missing, or null.
  const char* load() {
    const char* missing = nullptr;
    const auto get = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(  // NOLINT
          platform::find_symbol(library, name));
      if (function == nullptr && missing == nullptr) missing = name;
    };
    get(nvrtcGetErrorString, "nvrtcGetErrorString");
    get(nvrtcVersion, "nvrtcVersion");
    get(nvrtcGetNumSupportedArchs, "nvrtcGetNumSupportedArchs");
    get(nvrtcGetSupportedArchs, "nvrtcGetSupportedArchs");
    get(nvrtcCreateProgram, "nvrtcCreateProgram");
    get(nvrtcDestroyProgram, "nvrtcDestroyProgram");
    get(nvrtcCompileProgram, "nvrtcCompileProgram");
    get(nvrtcGetCUBINSize, "nvrtcGetCUBINSize");
    get(nvrtcGetCUBIN, "nvrtcGetCUBIN");
    get(nvrtcGetProgramLogSize, "nvrtcGetProgramLogSize");
    get(nvrtcGetProgramLog, "nvrtcGetProgramLog");
    return missing;
  }

  std::string log_of(Program program) const {
    std::size_t size = 0;
    if (nvrtcGetProgramLogSize(program, &size) != kNvrtcSuccess || size <= 1) return {};
    std::string log(size, '\0');
    if (nvrtcGetProgramLog(program, log.data()) != kNvrtcSuccess) return {};
    log.resize(size - 1);
    return log;
  }
};

Nvrtc::Nvrtc() : api_(std::make_unique<Api>()) {}

Nvrtc::~Nvrtc() {
  if (api_->library != nullptr) platform::close_library(api_->library);
}

std::vector<std::string> Nvrtc::candidates() {
  std::vector<std::string> list;
  if (const char* asked = std::getenv("ATTN_NVRTC"); asked != nullptr && *asked != '\0') {
    std::error_code error;
    if (!fs::is_directory(asked, error)) return {asked};
    add_files(list, {asked});
    add_wheels(list, asked);
    return list;
  }
  list.assign(std::begin(kNames), std::end(kNames));
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* root = std::getenv(name);
    if (root == nullptr || *root == '\0') continue;
    add_files(list, {fs::path(root) / "lib64", fs::path(root) / "lib"});
  }
  add_files(list, {"/usr/local/cuda/lib64"});
  const fs::path own = platform::own_folder();
  if (!own.empty()) add_wheels(list, own.parent_path());
  return list;
}

Nvrtc::Opened Nvrtc::open(int driver_version) {
  return open(candidates(), driver_version);
}

Nvrtc::Opened Nvrtc::open(std::span<const std::string> libraries, int driver_version) {
  std::string passed_over;
  const auto pass_over = [&](const std::string& text) {
    passed_over.append(passed_over.empty() ? "" : "; ").append(text);
  };
  for (const std::string& library : libraries) {
    std::unique_ptr<Nvrtc> nvrtc(new Nvrtc);
    Api& api = *nvrtc->api_;
    std::string error;
    api.library = platform::open_library(library.c_str(), error);
    if (api.library == nullptr) {
      if (fs::path(library).has_parent_path()) pass_over(error);
      continue;
    }
    if (const char* missing = api.load()) {
      pass_over(library + " has no " + missing);
      continue;
    }
    int major = 0;
    int minor = 0;
    int count = 0;
    if (api.nvrtcVersion(&major, &minor) != kNvrtcSuccess ||
        api.nvrtcGetNumSupportedArchs(&count) != kNvrtcSuccess || count <= 0) {
      pass_over(library + " does not tell its version");
      continue;
    }
    nvrtc->version_ = 1000 * major + 10 * minor;
    const std::string found = library + " is version " + version_text(nvrtc->version_);
    if (major < kNeededNvrtcMajor) {
      pass_over(found + ", " + std::to_string(kNeededNvrtcMajor) + ".0 or later is needed");
      continue;
    }
    if (driver_version > 0 && major > driver_version / 1000) {
      pass_over(found + ", the driver (CUDA " + version_text(driver_version) +
                ") loads binaries of " + std::to_string(driver_version / 1000) + ".x at most");
      continue;
    }
    nvrtc->capabilities_.resize(static_cast<std::size_t>(count));
    if (api.nvrtcGetSupportedArchs(nvrtc->capabilities_.data()) != kNvrtcSuccess) {
      pass_over(library + " does not tell its architectures");
      continue;
    }
    nvrtc->path_ = platform::file_of(reinterpret_cast<void*>(api.nvrtcVersion));  // NOLINT
    if (nvrtc->path_.empty()) nvrtc->path_ = library;
    return {std::move(nvrtc), ""};
  }
  return {nullptr,
          "no NVRTC, the compiler of CUDA kernels" +
              (passed_over.empty() ? std::string() : " (" + passed_over + ")") +
              ": install a CUDA toolkit or the pip package nvidia-cuda-nvrtc, or name libnvrtc.so "
              "in ATTN_NVRTC"};
}

const Nvrtc* Nvrtc::get(int driver_version, std::string& reason) {
  static std::mutex mutex;
  // By the driver's major version. Never freed: threads may compile until the process ends.
  static auto& opened = *new std::map<int, Opened>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto found = opened.find(driver_version / 1000);
  if (found == opened.end()) {
    found = opened.emplace(driver_version / 1000, open(driver_version)).first;
  }
  if (found->second.nvrtc == nullptr) reason = found->second.reason;
  return found->second.nvrtc.get();
}

Compiled Nvrtc::compile(const Unit& unit, std::string_view config_header,
                        std::span<const std::string> options,
                        const std::string& architecture) const {
  const Api& api = *api_;
  Compiled compiled;
  const std::string config(config_header);
  const std::string config_name(kConfigHeader);
  const std::string source_name(unit.source.name);
  std::vector<std::string> names{config_name};
  std::vector<const char*> texts{config.c_str()};
  for (const Source& header : unit.headers) {
    names.emplace_back(header.name);
    texts.push_back(header.text.data());
  }
  std::vector<const char*> name_pointers;
  for (const std::string& name : names) name_pointers.push_back(name.c_str());
  const std::string architecture_option = "--gpu-architecture=" + architecture;
  std::vector<const char*> option_pointers{architecture_option.c_str()};
  for (const std::string& option : options) option_pointers.push_back(option.c_str());

  Program program = nullptr;
  const char* call = "nvrtcCreateProgram";
  int result =
      api.nvrtcCreateProgram(&program, unit.source.text.data(), source_name.c_str(),
                             static_cast<int>(texts.size()), texts.data(), name_pointers.data());
  if (result == kNvrtcSuccess) {
    call = "nvrtcCompileProgram";
    result = api.nvrtcCompileProgram(program, static_cast<int>(option_pointers.size()),
                                     option_pointers.data());
    compiled.log = api.log_of(program);
  }
  std::size_t size = 0;
  if (result == kNvrtcSuccess) {
    call = "nvrtcGetCUBINSize";
    result = api.nvrtcGetCUBINSize(program, &size);
  }
  if (result == kNvrtcSuccess) {
    call = "nvrtcGetCUBIN";
    compiled.cubin.resize(size);
    result = api.nvrtcGetCUBIN(program, compiled.cubin.data());
  }
  if (program != nullptr) api.nvrtcDestroyProgram(&program);
  if (result == kNvrtcSuccess) return compiled;
  compiled.cubin.clear();
  const ErrorCode code = result == kNvrtcOutOfMemory   ? ErrorCode::out_of_memory
                         : result == kNvrtcCompilation ? ErrorCode::internal
                                                       : ErrorCode::device_error;
  compiled.status = {code, std::string("cuda: ") + call + ": " + api.nvrtcGetErrorString(result) +
                               ", while compiling " + source_name + " for " + architecture +
                               " with NVRTC " + version_text(version_) +
                               (compiled.log.empty() ? "" : ":\n" + compiled.log)};
  return compiled;
}

std::string choose_architecture(int capability, std::span<const int> known) {
  int best = 0;
  for (const int one : known) {
    if (one / 10 == capability / 10 && one <= capability) best = std::max(best, one);
  }
  if (best == 0) return {};
  return "sm_" + std::to_string(best) + (best == 90 ? "a" : "");
}

}  // namespace attn::cuda
