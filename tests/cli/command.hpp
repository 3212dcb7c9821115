// Runs the attn command and makes the files that it reads.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "files/convert.hpp"
#include "files/safetensors.hpp"

namespace attn::cli::test {

struct Result {
  int code = -1;
  std::string out;
  std::string err;
};

// Arguments as one shell line.
Result run(const std::string& arguments);

// A folder of its own for each test, removed at the end.
class Cli : public ::testing::Test {
 protected:
  Cli();
  ~Cli() override;

  [[nodiscard]] std::string path(const std::string& name) const;
  void write(const std::string& name, const std::string& content) const;

  // Runs it with --json and expects exit code 0 (2: what() of the JSON is null).
  static nlohmann::json run_json(const std::string& arguments);
  // Expects the code, one line on stderr that contains `what`, and nothing on stdout.
  static void expect_refused(int code, const std::string& arguments, const std::string& what);
  // Runs with --check --json: exit code 0, and every comparison passed.
  static nlohmann::json expect_checked(const std::string& arguments);

 private:
  std::filesystem::path folder_;
};

// Tensors by name, to be written as one file.
class TensorFile {
 public:
  // Values in [-1, 1] that differ from name to name, as F32.
  TensorFile& random(const std::string& name, std::vector<std::int64_t> shape);
  TensorFile& add(const std::string& name, std::vector<std::int64_t> shape,
                  const std::vector<double>& values, const std::string& dtype);
  // q, k, v and do of one shape each, [batch, len, heads, dim].
  TensorFile& attention(std::int64_t batch, std::int64_t len_q, std::int64_t len_kv,
                        std::int64_t heads_q, std::int64_t heads_kv, std::int64_t dim);
  [[nodiscard]] std::string save(const std::string& path) const;
  [[nodiscard]] const files::FileTensor& operator[](const std::string& name) const;

 private:
  std::vector<files::OwnedTensor> tensors_;
};

// As f64, whatever the type.
std::vector<double> values_of(const files::FileTensor& tensor);
std::vector<double> values_of(const std::string& file, const std::string& name);

}  // namespace attn::cli::test
