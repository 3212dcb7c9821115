// SHA-256, embedded sources, Config and its header.
#include "cuda/host/sources.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "cuda/host/config.hpp"
#include "cuda/host/hash.hpp"

namespace attn::cuda::test {
namespace {

// The digits that the program xxhsum -H2 (0.8.1) prints. Caches are kept across versions of the
// library.
TEST(CudaHash, TestVectors) {
  EXPECT_EQ(hash(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hash("abc"), "06b05ab6733a618578af5f94892f3950");
  EXPECT_EQ(hash(std::string(1000000, 'a')), "a545df8e384a9579b1fd6fae5285c4eb");
}

TEST(CudaHash, FieldsDoNotRunTogether) {
  std::string ab_c, a_bc;
  append_field(ab_c, "ab");
  append_field(ab_c, "c");
  append_field(a_bc, "a");
  append_field(a_bc, "bc");
  EXPECT_NE(hash(ab_c), hash(a_bc));
}

TEST(CudaSources, AreEmbedded) {
  const auto sources = kernel_sources();
  ASSERT_GE(sources.size(), 2u);
  for (std::size_t i = 0; i < sources.size(); ++i) {
    EXPECT_TRUE(sources[i].text.starts_with("//")) << sources[i].name;
    EXPECT_EQ(sources[i].text.data()[sources[i].text.size()], '\0');
    if (i > 0) {
      EXPECT_LT(sources[i - 1].name, sources[i].name);
    }
    if (!sources[i].name.ends_with(".cu")) continue;
    const Unit* unit = nullptr;
    const core::Status status = find_unit(sources[i].name, unit);
    EXPECT_TRUE(status.ok()) << status.message;
  }
  const Unit* unit = nullptr;
  const Unit* again = nullptr;
  ASSERT_TRUE(find_unit("passes/bias_gradient_sum.cu", unit).ok());
  ASSERT_TRUE(find_unit("passes/bias_gradient_sum.cu", again).ok());
  EXPECT_EQ(unit, again);
  EXPECT_TRUE(std::any_of(unit->headers.begin(), unit->headers.end(), [](const Source& header) {
    return header.name == "shared/element.cuh";
  }));
  EXPECT_EQ(find_unit("sm80/nothing.cu", unit).message,
            "cuda: no kernel source is called sm80/nothing.cu");
}

TEST(CudaSources, UnitsFollowIncludes) {
  const std::vector<Source> sources{
      {"a.cu",
       "// a\n#include \"config.cuh\"\n  #  include \"b.cuh\"  // why\n#include <x>\nint a;"},
      {"b.cuh", "#include \"c.cuh\"\n#include \"b.cuh\""},
      {"c.cuh", "#include \"b.cuh\"\n"},
      {"d.cuh", "// #include \"nothing\"\n"},
      {"e.cu", "#include \"missing.cuh\""}};
  Unit unit;
  ASSERT_TRUE(make_unit(sources, "a.cu", unit).ok());
  ASSERT_EQ(unit.headers.size(), 2u);
  EXPECT_EQ(unit.headers[0].name, "b.cuh");
  EXPECT_EQ(unit.headers[1].name, "c.cuh");
  const auto hash_with = [&](std::size_t changed) {
    std::vector<Source> other = sources;
    other[changed].text = "#include \"c.cuh\"\n#include \"b.cuh\" ";
    Unit made;
    EXPECT_TRUE(make_unit(other, "a.cu", made).ok());
    return made.hash;
  };
  EXPECT_NE(hash_with(1), unit.hash);
  EXPECT_EQ(hash_with(3), unit.hash) << "is not included";
  EXPECT_EQ(make_unit(sources, "e.cu", unit).message,
            "cuda: e.cu includes missing.cuh, which is not among the kernel sources");
}

TEST(CudaConfig, IsAValue) {
  Config a("passes/bias_gradient_sum.cu");
  a.set("has_dlse", true).set("dim", 64).set("dtype_out", 3);
  Config b("passes/bias_gradient_sum.cu");
  b.set("dtype_out", 3).set("dim", 128).set("has_dlse", true);
  EXPECT_FALSE(a == b);
  b.set("dim", 64);
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_EQ(to_string(a), "passes/bias_gradient_sum.cu dim=64 dtype_out=3 has_dlse=1");
  EXPECT_EQ(a.get("dim"), 64);
  EXPECT_EQ(a.get("di"), std::nullopt);
  EXPECT_FALSE(a == Config("sm80/other.cu"));
  std::unordered_set<std::size_t> hashes;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) hashes.insert(Config("x.cu").set("i", i).set("j", j).hash());
  }
  EXPECT_EQ(hashes.size(), 64u * 64u);
}

TEST(CudaConfig, HeaderText) {
  Config config("x.cu");
  config.set("tile_q", 128).set("far", std::int64_t{1} << 40).set("left", -1);
  const std::string text = header_text(config);
  for (const char* line :
       {"#pragma once\n", "namespace config {\n", "inline constexpr int bf16 = 3;\n",
        "inline constexpr int none = 0;\n", "inline constexpr int tile_q = 128;\n",
        "inline constexpr int left = -1;\n", "inline constexpr long long far = 1099511627776;\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  }
}

}  // namespace
}  // namespace attn::cuda::test
