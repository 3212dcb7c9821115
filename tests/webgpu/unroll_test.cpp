// What loops of a source become.
#include "webgpu/assemble/unroll.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "webgpu/host/sources.hpp"

namespace attn::webgpu {
namespace {

constexpr std::string_view kMark = "{  // unrolled";

TEST(Unroll, WritesOutMarkedLoops) {
  EXPECT_EQ(
      unrolled("for (var n = 0u; n < 2u; n += 1u) {  // unrolled\n  a[n] = 1; // one\n}\nb\n"),
      "{ const n = 0u; \n  a[n] = 1; // one\n} { const n = 1u;  a[n] = 1;  }\nb\n");
  EXPECT_EQ(
      unrolled("  for (var r = 0u; r < ROWS; r += 1u) {  // unrolled to 2\n    f(r);\n  }\n"),
      "if (0u < ROWS) { const r = 0u; \n    f(r);\n  } if (1u < ROWS) { const r = 1u;  f(r);  }\n");
}

TEST(Unroll, WritesOutLoopsInLoops) {
  const std::string text = unrolled(
      "for (var n = 0u; n < 2u; n += 1u) {  // unrolled\n"
      "  for (var m = 0u; m < n + 1u; m += 1u) {  // unrolled to 2\n"
      "    a[n][m] = 0;\n"
      "  }\n"
      "}\n"
      "next\n");
  EXPECT_EQ(text.find("for"), std::string::npos) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6) << text;
  std::size_t copies = 0;
  for (std::size_t at = text.find("a[n][m]"); at != std::string::npos;
       at = text.find("a[n][m]", at + 1)) {
    ++copies;
  }
  EXPECT_EQ(copies, 4U) << text;
}

TEST(Unroll, LeavesOtherTextAlone) {
  for (const std::string_view text :
       {"", "for (var n = 0u; n < 2u; n += 1u) {\n}\n", "if (x) {  // unrolled\n}\n",
        "for (var n = 1u; n < 2u; n += 1u) {  // unrolled\n}\n",
        "for (var n = 0u; n < N; n += 1u) {  // unrolled\n}\n"}) {
    EXPECT_EQ(unrolled(text), text);
  }
}

TEST(Unroll, KnowsEveryMarkedLoopOfTheKernels) {
  int marked = 0;
  for (const Source& source : kernel_sources()) {
    if (source.name.starts_with(kUnrolled)) {
      EXPECT_EQ(source.text.find(kMark), std::string_view::npos) << source.name;
      continue;
    }
    const std::string name = std::string(kUnrolled) + std::string(source.name);
    const auto found = std::ranges::find(kernel_sources(), name, &Source::name);
    const bool has_marks = source.text.find(kMark) != std::string_view::npos;
    ASSERT_EQ(found != kernel_sources().end(), has_marks) << source.name;
    if (!has_marks) continue;
    ++marked;
    EXPECT_EQ(found->text, unrolled(source.text)) << source.name;
    EXPECT_EQ(std::ranges::count(found->text, '\n'), std::ranges::count(source.text, '\n'))
        << source.name;
  }
  EXPECT_GT(marked, 3);
}

}  // namespace
}  // namespace attn::webgpu
