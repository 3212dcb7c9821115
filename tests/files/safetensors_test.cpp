// .safetensors: what is written is read back; every way to lie about content is refused in one
// line.
#include "files/safetensors.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "content.hpp"

namespace attn::files {
namespace {

using test::bytes;
using test::safetensors;
using test::TemporaryFile;

std::string safetensors_error_of(const std::string& content) {
  const auto file = SafetensorsFile::parse(bytes(content));
  return file ? "(accepted)" : file.error();
}

// One F32 tensor 'a' of two elements with this in place of one of its fields.
std::string with(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
  const std::string content = safetensors(
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
      R"("a":{"data_offsets":[0,8],"dtype":"F32","shape":[2,1]},)"
      R"("none":{"dtype":"F64","shape":[0,4],"data_offsets":[11,11]},)"
      R"("one":{"dtype":"BF16","shape":[],"data_offsets":[11,13]}}    )",
      13);
  const auto file = SafetensorsFile::parse(bytes(content));
  ASSERT_TRUE(file) << file.error();
  ASSERT_EQ(file->tensors().size(), 4u);
  EXPECT_EQ(file->metadata(), (Metadata{{"k", "v"}}));
  EXPECT_EQ(file->tensors()[0].name, "a");
  const FileTensor* b = file->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(describe(*b), "U8[3]");
  EXPECT_EQ(b->data.size(), 3u);
  EXPECT_EQ(file->find("none")->data.size(), 0u);
  EXPECT_EQ(file->find("one")->data.size(), 2u);
  EXPECT_EQ(file->find("c"), nullptr);
  for (const FileTensor& tensor : file->tensors()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data.data()) % kAlignment, 0u) << tensor.name;
  }
}

TEST(Safetensors, AcceptsAnEmptyFileOfTensors) {
  const auto file = SafetensorsFile::parse(bytes(safetensors("{}", 0)));
  ASSERT_TRUE(file) << file.error();
  EXPECT_TRUE(file->tensors().empty());
}

struct Refused {
  std::string content;
  std::string error;
};

void expect_refused(std::span<const Refused> rows) {
  for (const Refused& row : rows) {
    const std::string error = safetensors_error_of(row.content);
    EXPECT_EQ(error, row.error);
    EXPECT_EQ(error.find('\n'), error.npos) << "one line";
  }
}

TEST(Safetensors, RefusesBadHeaders) {
  const std::string good = with(R"("F32")", "[2]", "[0,8]");
  std::string deep(5000, '[');
  const Refused rows[] = {
      {"", "truncated: 0 bytes; a safetensors file has at least 10"},
      {std::string(7, '\0'), "truncated: 7 bytes; a safetensors file has at least 10"},
      {safetensors(good, 8).substr(0, 20),
       "truncated, or not a safetensors file: the header is to have " +
           std::to_string(good.size()) + " bytes, 12 follow"},
      {test::little_endian(~std::uint64_t{0}, 8) + "{}",
       "truncated, or not a safetensors file: the header is to have 18446744073709551615 bytes, 2 "
       "follow"},
      // A length in the wrong byte order.
      {std::string("\0\0\0\0\0\0\0\2{}", 10),
       "truncated, or not a safetensors file: the header is to have 144115188075855872 bytes, 2 "
       "follow"},
      {safetensors("", 0) + "{}", "the header does not start with '{'; not a safetensors file"},
      {safetensors("[]", 0), "the header does not start with '{'; not a safetensors file"},
      {safetensors("{", 0), "the header is not valid JSON at byte 2"},
      {safetensors("{}x", 0), "the header is not valid JSON at byte 3"},
      {safetensors(std::string("{}\0", 3), 0), "the header is not valid JSON at byte 3"},
      {safetensors("{\"\xff\":1}", 0), "the header is not valid JSON at byte 3"},
      {safetensors(R"({"a":)" + deep, 0),
       "the header's entry 'a' holds an array where the format has none"},
      {safetensors(R"({"a":{"dtype":{"dtype":{}}}})", 0),
       "tensor 'a' holds an object where the format has none"},
      {safetensors(R"({"a":null})", 0),
       "the header's entry 'a' holds null where the format has none"},
      {safetensors(R"({"a":true})", 0),
       "the header's entry 'a' holds a boolean where the format has none"},
      {safetensors(R"({"a":"x"})", 0),
       "the header's entry 'a' holds a string where the format has none"},
      {safetensors(R"({"a":{}})", 0), "tensor 'a' lacks dtype"},
      {safetensors(R"({"a":{"dtype":"F32"}})", 0), "tensor 'a' lacks shape"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[]}})", 0), "tensor 'a' lacks data_offsets"},
      {safetensors(R"({"a":{"dtype":"F32","dtype":"F32"}})", 0), "tensor 'a' has dtype twice"},
      {safetensors(R"({"a":{"strides":[]}})", 0), "tensor 'a' has the unknown field 'strides'"},
      {safetensors(R"({"__metadata__":{"x":1}})", 0),
       "the metadata key 'x' holds a number where the format has none"},
      {safetensors(R"({"__metadata__":{"x":"1","x":"2"}})", 0),
       "the metadata key 'x' appears twice"},
      {safetensors(R"({"\n\u00e9":null})", 0),
       "the header's entry '\\x0a\\xc3\\xa9' holds null where the format has none"},
  };
  expect_refused(rows);
}

TEST(Safetensors, RefusesBadTensors) {
  const std::string good = with(R"("F32")", "[2]", "[0,8]");
  const Refused rows[] = {
      {safetensors(with(R"("F31")", "[2]", "[0,8]"), 8), "tensor 'a' has unknown type 'F31'"},
      {safetensors(with("4", "[2]", "[0,8]"), 8),
       "tensor 'a' holds a number where the format has none"},
      {safetensors(with(R"("F32")", R"(["2"])", "[0,8]"), 8),
       "tensor 'a' holds a string where the format has none"},
      {safetensors(with(R"("F32")", "[-2]", "[0,8]"), 8),
       "tensor 'a' holds a negative number where the format has none"},
      {safetensors(with(R"("F32")", "[2.0]", "[0,8]"), 8),
       "tensor 'a' holds a number that is not an integer below 2^64 where the format has none"},
      {safetensors(with(R"("F32")", "[18446744073709551616]", "[0,8]"), 8),
       "tensor 'a' holds a number that is not an integer below 2^64 where the format has none"},
      {safetensors(with(R"("F32")", "[9223372036854775808]", "[0,8]"), 8),
       "a dimension of tensor 'a' is above 2^63 - 1"},
      {safetensors(with(R"("F32")", "[4294967296,4294967296]", "[0,8]"), 8),
       "tensor 'a' has a shape whose size in bytes overflows"},
      {safetensors(with(R"("F32")", "[4611686018427387904,2]", "[0,0]"), 0),
       "tensor 'a' has a shape whose size in bytes overflows"},
      {safetensors(with(R"("F32")", "[9223372036854775807,9223372036854775807,0]", "[0,0]"), 0),
       "tensor 'a' has a shape whose size in bytes overflows"},
      {safetensors(
           with(R"("F32")", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
                "[0,4]"),
           4),
       "tensor 'a' has more than 32 dimensions"},
      {safetensors(with(R"("F32")", "[2]", "[0]"), 8), "tensor 'a' needs two data_offsets"},
      {safetensors(with(R"("F32")", "[2]", "[0,8,9]"), 8),
       "tensor 'a' holds a number where the format has none"},
      {safetensors(with(R"("F32")", "[2]", "[8,0]"), 8),
       "tensor 'a' has data_offsets [8, 0] in reverse"},
      {safetensors(with(R"("F32")", "[2]", "[0,8]"), 7),
       "tensor 'a' has data_offsets [0, 8] but the file holds 7 bytes of data"},
      {safetensors(with(R"("F32")", "[2]", "[0,18446744073709551615]"), 8),
       "tensor 'a' has data_offsets [0, 18446744073709551615] but the file holds 8 bytes of data"},
      {safetensors(with(R"("F64")", "[2]", "[0,8]"), 8),
       "tensor 'a' needs 16 bytes by type and shape, data_offsets [0, 8] span 8"},
      {safetensors(good, 9), "bytes 8 to 9 of the data belong to no tensor"},
      {safetensors(with(R"("F32")", "[2]", "[4,12]"), 12),
       "bytes 0 to 4 of the data belong to no tensor"},
      {safetensors(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                   R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                   6),
       "tensors 'a' and 'b' overlap"},
      {safetensors(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                   R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
                   0),
       "the name 'a' appears twice"},
  };
  expect_refused(rows);
}

TEST(Safetensors, RefusesLongHeadersBeforeReadingThem) {
  const std::string header = "{" + std::string(100'000'000, ' ');
  EXPECT_EQ(safetensors_error_of(safetensors(header, 0)),
            "the header is to have 100000001 bytes; at most 100000000 are accepted");
}

TEST(Safetensors, NamesTheFileThatCantBeRead) {
  EXPECT_EQ(SafetensorsFile::read("/nowhere/x.safetensors").error(),
            "/nowhere/x.safetensors: no such file");
  EXPECT_EQ(SafetensorsFile::read("/dev/zero").error(), "/dev/zero: not a regular file");
  EXPECT_EQ(SafetensorsFile::read("/tmp").error(), "/tmp: not a regular file");
  const TemporaryFile file("short.safetensors");
  file.write("abc");
  EXPECT_EQ(SafetensorsFile::read(file.path()).error(),
            file.path() + ": truncated: 3 bytes; a safetensors file has at least 10");
}

TEST(Safetensors, EveryPrefixOfAFileIsRefused) {
  const std::string content = safetensors(with(R"("F32")", "[2]", "[0,8]"), 8);
  for (std::size_t n = 0; n < content.size(); ++n) {
    EXPECT_NE(safetensors_error_of(content.substr(0, n)), "(accepted)") << n;
  }
  EXPECT_EQ(safetensors_error_of(content), "(accepted)");
}

TEST(Safetensors, WritesWhatItReads) {
  const std::vector<float> a = {1.5f, -2.0f, 3.0f, 0.0f, 1e-30f, 7.0f};
  const std::vector<double> b = {1.0 / 3.0};
  const std::vector<unsigned char> c = {1, 0, 255};
  const std::vector<FileTensor> tensors = {
      {"c", "U8", {3}, std::as_bytes(std::span(c))},
      {"a", "F32", {2, 3}, std::as_bytes(std::span(a))},
      {"b", "F64", {}, std::as_bytes(std::span(b))},
      {"empty", "F32", {0, 3}, {}},
  };
  const TemporaryFile target("written.safetensors");
  ASSERT_EQ(write_safetensors(target.path(), tensors, {{"source", "a \"test\"\n"}}), "");
  const auto file = SafetensorsFile::read(target.path());
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(file->metadata().at("source"), "a \"test\"\n");
  ASSERT_EQ(file->tensors().size(), tensors.size());
  EXPECT_EQ(file->tensors()[0].name, "b");
  for (const FileTensor& wanted : tensors) {
    const FileTensor* found = file->find(wanted.name);
    ASSERT_NE(found, nullptr) << wanted.name;
    EXPECT_EQ(describe(*found), describe(wanted));
    ASSERT_EQ(found->data.size(), wanted.data.size());
    EXPECT_TRUE(std::equal(found->data.begin(), found->data.end(), wanted.data.begin()));
  }
}

TEST(Safetensors, WriterRefuses) {
  const std::vector<float> a = {1.0f};
  const auto data = std::as_bytes(std::span(a));
  const TemporaryFile target("refused.safetensors");
  const auto write = [&](const std::vector<FileTensor>& tensors) {
    return write_safetensors(target.path(), tensors);
  };
  EXPECT_EQ(write({{"a", "F32", {2}, data}}),
            target.path() + ": tensor 'a' F32[2] has 4 bytes, which don't fit its type and shape");
  EXPECT_EQ(write({{"a", "F32", {1}, data}, {"a", "F32", {1}, data}}),
            target.path() + ": the name 'a' is taken");
  EXPECT_EQ(write({{"\xff", "F32", {1}, data}}),
            target.path() + ": a tensor name or metadata is not valid UTF-8");
  EXPECT_FALSE(std::filesystem::exists(target.path()));
  EXPECT_EQ(write_safetensors("/nowhere/x", {}),
            "/nowhere/x: can't write: No such file or directory");
  EXPECT_EQ(write_safetensors("/tmp", {}), "/tmp: is a directory");
}

TEST(Safetensors, ViewsAreRowMajor) {
  const auto file = SafetensorsFile::parse(
      bytes(safetensors(R"({"a":{"dtype":"F16","shape":[2,3,4],"data_offsets":[0,48]},)"
                        R"("i":{"dtype":"I64","shape":[1],"data_offsets":[48,56]},)"
                        R"("s":{"dtype":"U8","shape":[],"data_offsets":[56,57]},)"
                        R"("w":{"dtype":"U8","shape":[1,1,1,1,1],"data_offsets":[57,58]}})",
                        58)));
  ASSERT_TRUE(file) << file.error();
  const auto a = view(*file->find("a"));
  ASSERT_TRUE(a) << a.error();
  EXPECT_EQ(a->dtype, DType::f16);
  EXPECT_EQ(a->rank, 3);
  EXPECT_EQ(a->shape, (std::array<std::int64_t, 4>{2, 3, 4, 0}));
  EXPECT_EQ(a->strides, (std::array<std::int64_t, 4>{12, 4, 1, 0}));
  EXPECT_EQ(view(*file->find("i")).error(),
            "tensor 'i' has type I64, which the library does not take");
  EXPECT_EQ(view(*file->find("s")).error(), "tensor 's' has 0 dimensions; 1 to 4 are accepted");
  EXPECT_EQ(view(*file->find("w")).error(), "tensor 'w' has 5 dimensions; 1 to 4 are accepted");
}

}  // namespace
}  // namespace attn::files
