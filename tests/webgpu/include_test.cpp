// The assembler of kernels: parts, their order, and the errors it reports.
#include "webgpu/assemble/include.hpp"

#include <gtest/gtest.h>

#include <map>

#include "webgpu/host/sources.hpp"

namespace attn::webgpu {
namespace {

const std::map<std::string, std::string, std::less<>> kParts{
    {"leaf", "leaf\n"},
    {"left", "//! include leaf\nleft\n"},
    {"right", "right\n//! include leaf\n"},
    {"no_newline", "last"},
    {"round", "//! include round\nround\n"},
    {"wrong", "first\n//! include missing\n"}};

std::string assemble(std::string_view source, std::string& error) {
  const auto read_part = [](std::string_view name) {
    const auto found = kParts.find(name);
    return found == kParts.end() ? std::nullopt : std::optional(found->second);
  };
  return assembled("kernel", source, read_part, error);
}

std::string result_of(std::string_view source) {
  std::string error;
  const std::string text = assemble(source, error);
  EXPECT_EQ(error, "");
  return text;
}

std::string error_of(std::string_view source) {
  std::string error;
  EXPECT_EQ(assemble(source, error), "");
  return error;
}

TEST(Include, ReplacesALineByThePartsText) {
  EXPECT_EQ(result_of("a\n//! include leaf\nb\n"), "a\nleaf\nb\n");
  EXPECT_EQ(result_of("no include"), "no include");
  EXPECT_EQ(result_of(""), "");
  EXPECT_EQ(result_of("//! include leaf"), "leaf\n");
}

TEST(Include, GoesDepthFirstAndTakesEachPartOnce) {
  EXPECT_EQ(result_of("//! include left\n//! include right\n//! include leaf\n"),
            "leaf\nleft\nright\n");
  EXPECT_EQ(result_of("//! include right\n//! include left\n"), "right\nleaf\nleft\n");
  EXPECT_EQ(result_of("//! include round\n"), "round\n");
}

TEST(Include, LeavesOtherCommentsAlone) {
  EXPECT_EQ(result_of("// include leaf\n  //! include leaf\n"),
            "// include leaf\n  //! include leaf\n");
}

TEST(Include, ReportsTheLineOfAnError) {
  EXPECT_EQ(error_of("a\n//! include missing\n"),
            "kernel.wgsl:2: there is no part include/missing.wgsl");
  EXPECT_EQ(error_of("//! include wrong\n"),
            "include/wrong.wgsl:2: there is no part include/missing.wgsl");
  EXPECT_EQ(error_of("//! define X\n"),
            "kernel.wgsl:1: '//! define X' is no directive; '//! include NAME' is one");
  EXPECT_EQ(error_of("//! include \n"),
            "kernel.wgsl:1: '//! include ' is no directive; '//! include NAME' is one");
}

TEST(Include, LeavesNoDirectiveInTheKernels) {
  for (const Source& source : kernel_sources()) {
    EXPECT_EQ(source.text.find("//!"), std::string_view::npos) << source.name;
  }
}

}  // namespace
}  // namespace attn::webgpu
