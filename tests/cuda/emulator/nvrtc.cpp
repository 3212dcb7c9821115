// The emulator's libnvrtc: translate.py compiles a kernel for the host, once for each text of its
// sources. The image of a program is 8 bytes and the path of the host library.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#define NVRTC extern "C" __attribute__((visibility("default")))

namespace fs = std::filesystem;

namespace {

constexpr int kCompilationError = 6;
constexpr char kImageHead[8] = {'\x7f', 'E', 'L', 'F', 0, 0, 0, 0};

struct Program {
  std::string name;
  std::vector<std::pair<std::string, std::string>> files;
  std::string image;
};

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// __CUDA_ARCH__ of the options.
std::string architecture(int count, const char* const* options) {
  for (int i = 0; i < count; ++i) {
    const char* found = std::strstr(options[i], "sm_");
    if (found != nullptr) return std::string(found + 3, 2) + "0";
  }
  return "900";
}

// Everything that the library depends on.
std::string key(const Program& program, const std::string& arch) {
  std::string all = arch;
  for (const auto& [name, text] : program.files) all += name + '\0' + text + '\0';
  for (const char* name : {"device.hpp", "ptx.hpp", "translate.py", "instructions.py"}) {
    all += read(fs::path(ATTN_EMULATOR_SOURCE) / name);
  }
  char hash[40];
  std::snprintf(hash, sizeof hash, "%016zx", std::hash<std::string>()(all));
  return hash;
}

bool translate(const Program& program, const std::string& arch, const fs::path& folder) {
  for (const auto& [name, text] : program.files) {
    const fs::path path = folder / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  const std::string command = "python3 " ATTN_EMULATOR_SOURCE "/translate.py '" + folder.string() +
                              "' '" + program.name + "' '" + (folder / "module.so").string() +
                              "' " + arch + " > '" + (folder / "log").string() + "' 2>&1";
  if (std::system(command.c_str()) == 0) return true;
  std::fprintf(stderr, "emulator: compiling %s failed:\n%.3000s\n", program.name.c_str(),
               read(folder / "log").c_str());
  return false;
}

}  // namespace

NVRTC const char* nvrtcGetErrorString(int) {
  return "emulator's compiler failed";
}
NVRTC int nvrtcVersion(int* major, int* minor) {
  *major = 12;
  *minor = 8;
  return 0;
}
NVRTC int nvrtcGetNumSupportedArchs(int* count) {
  *count = 2;
  return 0;
}
NVRTC int nvrtcGetSupportedArchs(int* architectures) {
  architectures[0] = 80;
  architectures[1] = 90;
  return 0;
}
NVRTC int nvrtcCreateProgram(Program** program, const char* source, const char* name, int count,
                             const char* const* headers, const char* const* names) {
  *program = new Program;
  (*program)->name = name;
  (*program)->files.emplace_back(name, source);
  for (int i = 0; i < count; ++i) (*program)->files.emplace_back(names[i], headers[i]);
  return 0;
}
NVRTC int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
NVRTC int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  const std::string arch = architecture(count, options);
  const fs::path folder = fs::path(ATTN_EMULATOR_CACHE) / key(*program, arch);
  const fs::path library = folder / "module.so";
  program->image = std::string(kImageHead, sizeof kImageHead) + library.string() + '\0';
  if (fs::exists(library)) return 0;
  // Another process may compile the same: each has a folder, and the last rename stays.
  const fs::path own = folder / std::to_string(getpid());
  if (!translate(*program, arch, own)) return kCompilationError;
  fs::rename(own / "module.so", library);
  return 0;
}
NVRTC int nvrtcGetCUBINSize(const Program* program, std::size_t* bytes) {
  *bytes = program->image.size();
  return 0;
}
NVRTC int nvrtcGetCUBIN(const Program* program, char* image) {
  std::memcpy(image, program->image.data(), program->image.size());
  return 0;
}
NVRTC int nvrtcGetProgramLogSize(const Program*, std::size_t* bytes) {
  *bytes = 1;
  return 0;
}
NVRTC int nvrtcGetProgramLog(const Program*, char* log) {
  *log = 0;
  return 0;
}
