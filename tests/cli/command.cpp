// The command in a child process, and tensors for it.
#include "command.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

namespace attn::cli::test {
namespace {

std::string read(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::filesystem::path unique_path() {
  static int count = 0;
  return std::filesystem::temp_directory_path() /
         ("attn_cli_test_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
}

}  // namespace

Result run(const std::string& arguments) {
  const auto stem = unique_path().string();
  const std::string line = std::string(ATTN_COMMAND) + " " + arguments + " >" + stem + ".out 2>" +
                           stem + ".err </dev/null";
  const int status = std::system(line.c_str());
  Result result{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(stem + ".out"),
                read(stem + ".err")};
  std::filesystem::remove(stem + ".out");
  std::filesystem::remove(stem + ".err");
  return result;
}

Cli::Cli() : folder_(unique_path()) {
  std::filesystem::create_directories(folder_);
}

Cli::~Cli() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string Cli::path(const std::string& name) const {
  return (folder_ / name).string();
}

void Cli::write(const std::string& name, const std::string& content) const {
  std::ofstream(path(name), std::ios::binary) << content;
}

nlohmann::json Cli::run_json(const std::string& arguments) {
  const Result result = run(arguments + " --json");
  EXPECT_EQ(result.code, 0) << arguments << "\n" << result.out << result.err;
  EXPECT_EQ(result.err, "");
  return nlohmann::json::parse(result.out, nullptr, false);
}

void Cli::expect_refused(int code, const std::string& arguments, const std::string& what) {
  const Result result = run(arguments);
  EXPECT_EQ(result.code, code) << arguments << "\n" << result.out << result.err;
  EXPECT_EQ(result.out, "") << arguments;
  EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << arguments << "\n" << result.err;
  EXPECT_NE(result.err.find(what), std::string::npos) << arguments << "\n" << result.err;
}

nlohmann::json Cli::expect_checked(const std::string& arguments) {
  nlohmann::json report = run_json(arguments + " --check");
  EXPECT_TRUE(report.contains("checks") && !report["checks"].empty()) << arguments;
  EXPECT_EQ(report["passed"], true) << arguments << report.dump(1);
  return report;
}

TensorFile& TensorFile::random(const std::string& name, std::vector<std::int64_t> shape) {
  std::uint64_t state = 0x9E3779B97F4A7C15u + std::hash<std::string>{}(name);
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) count *= extent;
  std::vector<double> values;
  for (std::int64_t n = 0; n < count; ++n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    values.push_back(static_cast<double>(state >> 33) / 0x1p30 - 1.0);
  }
  return add(name, std::move(shape), values, "F32");
}

TensorFile& TensorFile::add(const std::string& name, std::vector<std::int64_t> shape,
                            const std::vector<double>& values, const std::string& dtype) {
  const bool integer = dtype[0] == 'I' || dtype[0] == 'U' || dtype == "BOOL";
  auto wide = files::make_tensor(name, integer ? "I64" : "F64", std::move(shape));
  if (!wide || wide->tensor.data.size() != values.size() * 8) std::abort();
  std::vector<std::int64_t> integers;
  if (integer) integers.assign(values.begin(), values.end());
  std::memcpy(wide->memory.data(),
              integer ? static_cast<const void*>(integers.data()) : values.data(),
              values.size() * 8);
  auto made = files::convert(wide->tensor, dtype);
  if (!made) std::abort();
  tensors_.push_back(std::move(*made));
  return *this;
}

TensorFile& TensorFile::attention(std::int64_t batch, std::int64_t len_q, std::int64_t len_kv,
                                  std::int64_t heads_q, std::int64_t heads_kv, std::int64_t dim) {
  return random("q", {batch, len_q, heads_q, dim})
      .random("k", {batch, len_kv, heads_kv, dim})
      .random("v", {batch, len_kv, heads_kv, dim})
      .random("do", {batch, len_q, heads_q, dim});
}

std::string TensorFile::save(const std::string& path) const {
  std::vector<files::FileTensor> tensors;
  for (const auto& owned : tensors_) tensors.push_back(owned.tensor);
  EXPECT_EQ(files::write_safetensors(path, tensors), "");
  return path;
}

const files::FileTensor& TensorFile::operator[](const std::string& name) const {
  for (const auto& owned : tensors_) {
    if (owned.tensor.name == name) return owned.tensor;
  }
  std::abort();
}

std::vector<double> values_of(const files::FileTensor& tensor) {
  const auto wide = files::convert(tensor, "F64");
  if (!wide) std::abort();
  std::vector<double> values(wide->tensor.data.size() / sizeof(double));
  std::memcpy(values.data(), wide->tensor.data.data(), wide->tensor.data.size());
  return values;
}

std::vector<double> values_of(const std::string& file, const std::string& name) {
  const auto content = files::SafetensorsFile::read(file);
  EXPECT_TRUE(content) << content.error();
  const files::FileTensor* tensor = content ? content->find(name) : nullptr;
  EXPECT_NE(tensor, nullptr) << name;
  return tensor == nullptr ? std::vector<double>{} : values_of(*tensor);
}

}  // namespace attn::cli::test
