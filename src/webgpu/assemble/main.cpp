// attn_assemble_kernels: a build step that writes the kernels as they are compiled.
//
// usage: attn_assemble_kernels KERNELS OUTPUT
// Reads KERNELS/*.wgsl and the parts in KERNELS/include; writes OUTPUT/NAME.wgsl with its parts,
// and OUTPUT/unrolled/NAME.wgsl with its marked loops written out, for kernels that have any.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "webgpu/assemble/include.hpp"
#include "webgpu/assemble/unroll.hpp"

namespace {

namespace fs = std::filesystem;

std::optional<std::string> read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

bool write(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) std::fprintf(stderr, "attn_assemble_kernels: cannot write %s\n", path.c_str());
  return file.good();
}

bool assemble(const fs::path& kernel, const fs::path& output) {
  const fs::path parts = kernel.parent_path() / "include";
  const auto read_part = [&](std::string_view name) {
    return read(parts / (std::string(name) + ".wgsl"));
  };
  const std::optional<std::string> source = read(kernel);
  if (!source) {
    std::fprintf(stderr, "attn_assemble_kernels: cannot read %s\n", kernel.c_str());
    return false;
  }
  std::string error;
  const std::string text =
      attn::webgpu::assembled(kernel.stem().string(), *source, read_part, error);
  if (!error.empty()) {
    std::fprintf(stderr, "attn_assemble_kernels: %s\n", error.c_str());
    return false;
  }
  if (!write(output / kernel.filename(), text)) return false;
  const std::string unrolled = attn::webgpu::unrolled(text);
  return unrolled == text || write(output / "unrolled" / kernel.filename(), unrolled);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: attn_assemble_kernels KERNELS OUTPUT\n");
    return 2;
  }
  const fs::path output(argv[2]);
  std::error_code failed;
  fs::remove_all(output, failed);
  fs::create_directories(output / "unrolled", failed);
  for (const fs::directory_entry& entry : fs::directory_iterator(argv[1], failed)) {
    if (entry.path().extension() == ".wgsl" && !assemble(entry.path(), output)) return 1;
  }
  if (failed) std::fprintf(stderr, "attn_assemble_kernels: %s\n", failed.message().c_str());
  return failed ? 1 : 0;
}
