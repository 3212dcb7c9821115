// attn cache: what it lists, removes and refuses; it compiles where there is an NVRTC.
#include "command.hpp"

namespace attn::cli::test {
namespace {

constexpr const char* kProblem =
    " --problem 'dtype=bf16 heads_q=2 heads_kv=2 len_q=300 len_kv=300 dim_qk=64 dim_vo=64'";

class CliCache : public Cli {
 protected:
  void SetUp() override {
    const auto info = run_json("info");
    for (const auto& backend : info["backends"]) {
      if (backend["name"] == "cuda" && backend["built"] == false) GTEST_SKIP();
    }
  }
  [[nodiscard]] std::string folder() const { return " --cache-dir " + path("cache"); }
};

TEST_F(CliCache, ListsAndClears) {
  const auto empty = run_json("cache list" + folder());
  EXPECT_EQ(empty["folder"], path("cache") + "/cuda");
  EXPECT_TRUE(empty["entries"].empty());
  std::filesystem::create_directories(path("cache") + "/cuda");
  const std::string name = "cache/cuda/" + std::string(32, 'a') + "-nvrtc13000.cubin";
  write(name, "junk");
  const auto damaged = run_json("cache list" + folder());
  ASSERT_EQ(damaged["entries"].size(), 1u);
  EXPECT_EQ(damaged["entries"][0]["valid"], false);
  EXPECT_EQ(damaged["entries"][0]["path"], path(name));
  const Result text = run("cache list" + folder());
  EXPECT_NE(text.out.find("damaged, rebuilt when it is needed: " + path(name)), std::string::npos);
  EXPECT_NE(text.out.find("1 binaries, 4 bytes, 1 damaged"), std::string::npos) << text.out;
  const Result cleared = run("cache clear" + folder());
  EXPECT_EQ(cleared.code, 0);
  EXPECT_EQ(cleared.out, "1 binaries removed from " + path("cache") + "/cuda\n");
  EXPECT_FALSE(std::filesystem::exists(path(name)));
}

TEST_F(CliCache, Refuses) {
  const std::string build = "cache build" + folder();
  expect_refused(2, "cache", "cache: found no command; accepted build, list, clear");
  expect_refused(2, build + " --arch 75", "architecture: found 75; accepted 80, 86");
  expect_refused(2, build + " --arch ninety", "--arch");
  expect_refused(2, build + " --arch 90 --jobs -1", "--jobs");
  expect_refused(2, build + " --arch 90 --problem words", "'words'");
  expect_refused(2, build + " --arch 90 --pass up", "--pass is forward, backward or decode");
  expect_refused(2, build + " --arch 90 --problem 'heads_q=3 heads_kv=2 len_q=1 len_kv=1'",
                 "heads_q is a multiple of heads_kv");
  EXPECT_FALSE(std::filesystem::exists(path("cache")));
}

TEST_F(CliCache, Builds) {
  const std::string build = "cache build --arch 90 --pass forward" + folder() + kProblem;
  const Result first = run(build + " --json");
  if (first.err.find("no NVRTC") != std::string::npos) GTEST_SKIP() << first.err;
  ASSERT_EQ(first.code, 0) << first.err;
  const auto made = nlohmann::json::parse(first.out);
  EXPECT_EQ(made["compiled"], made["binaries"]);
  EXPECT_GE(made["binaries"], 1);
  EXPECT_EQ(made["refused"], 0);
  const auto again = nlohmann::json::parse(run(build + " --json").out);
  EXPECT_EQ(again["compiled"], 0);
  EXPECT_EQ(again["binaries"], made["binaries"]);
  const auto list = run_json("cache list" + folder());
  ASSERT_EQ(list["entries"].size(), made["binaries"]);
  for (const auto& entry : list["entries"]) {
    EXPECT_EQ(entry["valid"], true);
    EXPECT_EQ(entry["architecture"], "sm_90a");
  }
  // A call without a kernel is reported, even if another call of the line has one.
  const Result refused = run(build + " --problem 'dtype=f64 len_q=8 len_kv=8'");
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("no kernel for f64 on CUDA"), std::string::npos) << refused.err;
  write("file", "");
  const Result unwritable = run("cache build --arch 90 --cache-dir " + path("file"));
  EXPECT_EQ(unwritable.code, 2);
  EXPECT_NE(unwritable.err.find("folder: found " + path("file") + "/cuda: Not a directory"),
            std::string::npos)
      << unwritable.err;
}

}  // namespace
}  // namespace attn::cli::test
