// .npy: what is written is read back; every way to lie about content is refused in one line.
#include "files/npy.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "content.hpp"

namespace attn::files {
namespace {

using test::bytes;
using test::npy;
using test::TemporaryFile;

std::string npy_error_of(const std::string& content) {
  const auto file = NpyFile::parse(bytes(content));
  return file ? "(accepted)" : file.error();
}

std::string header(const std::string& descr, const std::string& order, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }  \n";
}

TEST(Npy, ReadsWhatNumpyWrites) {
  struct Row {
    std::string text;
    std::size_t data_bytes;
    int major;
    std::string described;
  };
  const Row rows[] = {
      {header("'<f4'", "False", "(2, 3)"), 24, 1, "F32[2, 3]"},
      {header("'<f8'", "False", "(5,)"), 40, 2, "F64[5]"},
      {header("'<f2'", "False", "()"), 2, 3, "F16[]"},
      {header("'|u1'", "False", "(0, 4)"), 0, 1, "U8[0, 4]"},
      {header("'|b1'", "False", "(2,)"), 2, 1, "BOOL[2]"},
      {header("'<i8'", "False", "(1,1,1,)"), 8, 1, "I64[1, 1, 1]"},
      {"{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<i4\"}", 8, 1, "I32[2]"},
  };
  for (const Row& row : rows) {
    const auto file = NpyFile::parse(bytes(npy(row.text, row.data_bytes, row.major)));
    ASSERT_TRUE(file) << row.text << file.error();
    EXPECT_EQ(describe(file->tensor()), row.described);
    EXPECT_EQ(file->tensor().data.size(), row.data_bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file->tensor().data.data()) % kAlignment, 0u);
  }
}

TEST(Npy, RefusesInOneLine) {
  struct Row {
    std::string content;
    std::string error;
  };
  const std::string good = header("'<f4'", "False", "(2,)");
  const auto at = [](const std::string& text) { return npy(text, 8); };
  const std::string at_byte = "the header is not a .npy dictionary at byte ";
  const Row rows[] = {
      {"", "truncated: magic and version needs 8 bytes, 0 are there"},
      {"\x93NUMPY\x01", "truncated: magic and version needs 8 bytes, 7 are there"},
      {"not an array", "not a .npy file"},
      {"PK\x03\x04....", "an .npz archive; save each array with numpy.save"},
      {"\x80\x04......", "a pickle, which is never loaded; save with numpy.save"},
      {npy(good, 8, 4), "format version 4.0; 1.0, 2.0 and 3.0 are accepted"},
      {std::string("\x93NUMPY\x01\x01", 8), "format version 1.1; 1.0, 2.0 and 3.0 are accepted"},
      {std::string("\x93NUMPY\x01\x00\x05", 9),
       "truncated: the header's length needs 2 bytes, 1 are there"},
      {npy(good, 8).substr(0, 20),
       "truncated: the header needs " + std::to_string(good.size()) + " bytes, 10 are there"},
      {std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14),
       "the header is to have 4294967295 bytes; at most 65536 are accepted"},
      {npy(good, 7), "truncated: the data needs 8 bytes, 7 are there"},
      {npy(good, 9), "1 bytes follow the 8 bytes of the array"},
      {at(header("'>f4'", "False", "(2,)")),
       "type '>f4' is big-endian; only little-endian files are accepted"},
      {at(header("'|O'", "False", "(2,)")),
       "type '|O' means pickled Python objects, which are never loaded"},
      {at(header("'<V2'", "False", "(4,)")),
       "type '<V2' is raw bytes; .npy has no bfloat16 and no f8, use .safetensors for them"},
      {at(header("'<U4'", "False", "(2,)")),
       "type '<U4' is not one of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1, little-endian"},
      {at(header("'|f4'", "False", "(2,)")),
       "type '|f4' is not one of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1, little-endian"},
      {at(header("''", "False", "(2,)")),
       "type '' is not one of f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 b1, little-endian"},
      {at(header("[('x', '<f4')]", "False", "(2,)")), "structured types are not accepted"},
      {at(header("'<f4'", "True", "(2,)")),
       "Fortran order is not accepted; save numpy.ascontiguousarray(x)"},
      {at(header("'<f4'", "0", "(2,)")), at_byte + "34"},
      {at(header("'<f4'", "False", "2")), "shape is not a tuple"},
      {at(header("'<f4'", "False", "(2)")), "shape is not a tuple"},
      {at(header("'<f4'", "False", "(2 3)")), "shape is not a tuple"},
      {at(header("'<f4'", "False", "(2,,)")), "a dimension is not an integer in [0, 2^63)"},
      {at(header("'<f4'", "False", "(-2,)")), "a dimension is not an integer in [0, 2^63)"},
      {at(header("'<f4'", "False", "(2L,)")), "shape is not a tuple"},
      {at(header("'<f4'", "False", "(9223372036854775808,)")),
       "a dimension is not an integer in [0, 2^63)"},
      {at(header("'<f4'", "False", "(9223372036854775807,)")),
       "a shape whose size in bytes overflows"},
      {at(header("'<f4'", "False", "(4294967296, 4294967296, 0)")),
       "a shape whose size in bytes overflows"},
      {at(header("'<f4'", "False",
                 "(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1)")),
       "more than 32 dimensions"},
      {at("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}"),
       "the header has descr twice"},
      {at("{'descr': '<f4', 'fortran_order': False, 'fortran_order': False, 'shape': (2,)}"),
       "the header has fortran_order twice"},
      {at("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (2,)}"),
       "the header has shape twice"},
      {at("{'fortran_order': False, 'shape': (2,)}"), "the header lacks descr"},
      {at("{'descr': '<f4', 'shape': (2,)}"), "the header lacks fortran_order"},
      {at("{'descr': '<f4', 'fortran_order': False}"), "the header lacks shape"},
      {at("{'x\n': 1}"), "the header has the unknown key 'x\\x0a'"},
      {at(""), at_byte + "0"},
      {at("{"), at_byte + "1"},
      {at("{'descr"), at_byte + "1"},
      {at("{'descr' '<f4'}"), at_byte + "9"},
      {at("{'descr': '<f\\x34', }"), at_byte + "18"},
      {at("{'descr': '<f4' 'shape': (2,)}"), at_byte + "16"},
      {at(good + "\xc3\xa9"), at_byte + std::to_string(good.size())},
      {at(good + std::string(1, '\0')), at_byte + std::to_string(good.size())},
  };
  for (const Row& row : rows) {
    const std::string error = npy_error_of(row.content);
    EXPECT_EQ(error, row.error);
    EXPECT_EQ(error.find('\n'), error.npos);
  }
}

TEST(Npy, EveryPrefixOfAFileIsRefused) {
  const std::string content = npy(header("'<f4'", "False", "(2,)"), 8);
  for (std::size_t n = 0; n < content.size(); ++n) {
    EXPECT_NE(npy_error_of(content.substr(0, n)), "(accepted)") << n;
  }
  EXPECT_EQ(npy_error_of(content), "(accepted)");
}

TEST(Npy, NamesTheFileThatCantBeRead) {
  EXPECT_EQ(NpyFile::read("/nowhere/x.npy").error(), "/nowhere/x.npy: no such file");
  EXPECT_EQ(NpyFile::read("/dev/zero").error(), "/dev/zero: not a regular file");
}

TEST(Npy, WritesWhatItReads) {
  const std::vector<float> values = {1.5f, -2.0f, 3.0f, 0.0f, 1e-30f, 7.0f};
  const std::vector<std::vector<std::int64_t>> shapes = {{6}, {2, 3}, {1, 2, 1, 3}};
  for (const auto& shape : shapes) {
    const TemporaryFile target("written.npy");
    const auto data = std::as_bytes(std::span(values));
    ASSERT_EQ(write_npy(target.path(), {"", "F32", shape, data}), "");
    const auto file = NpyFile::read(target.path());
    ASSERT_TRUE(file) << file.error();
    EXPECT_EQ(file->tensor().shape, shape);
    EXPECT_TRUE(std::equal(data.begin(), data.end(), file->tensor().data.begin()));
    EXPECT_EQ((target.read().size() - data.size()) % 64, 0u);
  }
}

TEST(Npy, WriterRefuses) {
  const std::array<std::byte, 4> data{};
  EXPECT_EQ(write_npy("/tmp/x.npy", {"", "BF16", {2}, data}),
            "/tmp/x.npy: .npy has no type BF16; use .safetensors");
  EXPECT_EQ(write_npy("/tmp/x.npy", {"", "F32", {2}, data}),
            "/tmp/x.npy: F32[2] has 4 bytes, which don't fit its type and shape");
}

}  // namespace
}  // namespace attn::files
