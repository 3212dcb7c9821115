// SHA-256, embedded sources, Config and its header.
#include "cuda/host/sources.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "cuda/host/config.hpp"
#include "cuda/host/sha256.hpp"

namespace attn::cuda::test {
namespace {

TEST(CudaSha256, TestVectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // Lengths around the padding, added in two parts.
  for (std::size_t length = 50; length < 130; ++length) {
    Sha256 parts;
    parts.add(std::string(length / 2, 'x'));
    parts.add(std::string(length - length / 2, 'x'));
    EXPECT_EQ(parts.hex(), sha256(std::string(length, 'x'))) << length;
  }
  Sha256 ab_c;
  ab_c.add_field("ab");
  ab_c.add_field("c");
  Sha256 a_bc;
  a_bc.add_field("a");
  a_bc.add_field("bc");
  EXPECT_NE(ab_c.hex(), a_bc.hex());
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
