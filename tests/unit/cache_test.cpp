// The cache of compiled kernels through C++ and C: what is listed and removed, and what is refused.
// Building is tested in tests/cuda, where there is a compiler.
#include <attn/attn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <attn/attn.hpp>
#include <filesystem>
#include <fstream>

namespace attn {
namespace {

class ApiCache : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "attn-cache-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
    ContextOptions options;
    options.cache_dir = folder;
    context = std::make_unique<Context>(options);
    for (const BackendInfo& backend : backends(*context)) {
      if (backend.name == "cuda" && !backend.built) GTEST_SKIP() << backend.detail;
    }
  }
  void TearDown() override { std::filesystem::remove_all(folder); }

  // A file with the name of a binary, which it is not.
  [[nodiscard]] std::string plant() const {
    std::string path = cache_folder(*context) + "/" + std::string(32, 'a') + "-nvrtc13000.cubin";
    std::filesystem::create_directories(cache_folder(*context));
    std::ofstream(path) << "junk";
    return path;
  }
  template <class Function>
  static std::string refusal(ErrorCode code, Function function) {
    try {
      function();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "accepted";
    return {};
  }

  std::string folder;
  std::unique_ptr<Context> context;
};

TEST_F(ApiCache, ListsAndRemoves) {
  EXPECT_EQ(cache_folder(*context), folder + "/cuda");
  EXPECT_TRUE(cache_list(*context).empty());
  const std::string path = plant();
  const auto entries = cache_list(*context);
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].path, path);
  EXPECT_EQ(entries[0].bytes, 4);
  EXPECT_FALSE(entries[0].valid);
  EXPECT_EQ(entries[0].kernel, "");
  EXPECT_EQ(cache_clear(*context), 1);
  EXPECT_EQ(cache_clear(*context), 0);
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ApiCache, RefusesWithReasons) {
  const auto build = [&](const CacheRequest& request) {
    return refusal(ErrorCode::invalid_argument, [&] { cache_build(*context, request); });
  };
  CacheRequest request;
  EXPECT_EQ(build(request), "cuda: cache_build: calls: found none; accepted at least one");
  request.calls.push_back({Pass::forward, parse_problem("dtype=bf16 len_q=8 len_kv=8")});
  request.architectures = {90, 75};
  EXPECT_NE(build(request).find("architecture: found 75; accepted 80, 86"), std::string::npos);
  request.architectures = {90};
  request.threads = -1;
  EXPECT_EQ(build(request), "cache_build: threads: found -1; accepted 0 and more");
  request.threads = 0;
  request.calls[0].problem.heads_q = 3;
  request.calls[0].problem.heads_kv = 2;
  EXPECT_NE(build(request).find("heads_q is a multiple of heads_kv"), std::string::npos);
  const std::string none = refusal(ErrorCode::unsupported,
                                   [&] { static_cast<void>(cache_list(*context, Device::host)); });
  EXPECT_EQ(none, "cpu: compiles no kernels at run time, so it has no cache of them");
  const std::string stub =
      refusal(ErrorCode::unsupported, [&] { cache_clear(*context, Device::webgpu); });
  for (const BackendInfo& info : backends(*context)) {
    if (info.name != "webgpu") continue;
    const char* why = info.built ? "webgpu: keeps no compiled kernels on disk"
                                 : "webgpu: this build has no WebGPU";
    EXPECT_EQ(stub.find(why), 0u) << stub;
  }
}

TEST_F(ApiCache, TheSameFromC) {
  attn_context_options options;
  ASSERT_EQ(ATTN_INIT(attn_context_options, &options), ATTN_OK);
  options.cache_dir = folder.c_str();
  attn_context* c = nullptr;
  ASSERT_EQ(attn_context_create(&options, &c), ATTN_OK);
  char text[1024];
  size_t needed = 0;
  ASSERT_EQ(attn_cache_folder(c, ATTN_CUDA, text, sizeof text, &needed), ATTN_OK);
  EXPECT_EQ(text, folder + "/cuda");
  EXPECT_EQ(needed, folder.size() + 6);
  const std::string path = plant();
  attn_cache_entry entries[2]{};
  std::int32_t count = 0;
  EXPECT_EQ(attn_cache_list(c, ATTN_CUDA, entries, 2, &count), ATTN_INVALID_ARGUMENT);
  for (attn_cache_entry& entry : entries) entry.struct_size = sizeof entry;
  ASSERT_EQ(attn_cache_list(c, ATTN_CUDA, nullptr, 0, &count), ATTN_OK);
  EXPECT_EQ(count, 1);
  ASSERT_EQ(attn_cache_list(c, ATTN_CUDA, entries, 2, &count), ATTN_OK);
  EXPECT_EQ(entries[0].path, path);
  EXPECT_EQ(entries[0].bytes, 4);
  EXPECT_EQ(entries[0].valid, 0);
  EXPECT_STREQ(entries[1].path, "");
  std::int64_t removed = 0;
  ASSERT_EQ(attn_cache_clear(c, ATTN_CUDA, &removed), ATTN_OK);
  EXPECT_EQ(removed, 1);
  EXPECT_EQ(attn_cache_clear(c, ATTN_HOST, nullptr), ATTN_UNSUPPORTED);

  attn_cache_request request;
  attn_cache_result result{};
  ASSERT_EQ(ATTN_INIT(attn_cache_request, &request), ATTN_OK);
  EXPECT_EQ(attn_cache_build(c, &request, &result), ATTN_INVALID_ARGUMENT) << "struct_size";
  result.struct_size = sizeof result;
  EXPECT_EQ(attn_cache_build(c, &request, &result), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(), "cuda: cache_build: calls: found none; accepted at least one");
  request.num_calls = 1;
  EXPECT_EQ(attn_cache_build(c, &request, &result), ATTN_INVALID_ARGUMENT);
  EXPECT_STREQ(attn_last_error(),
               "attn_cache_request: num_calls: found 1 at NULL; accepted a count and the address "
               "of that many");
  const std::int32_t pass = ATTN_BACKWARD;
  const std::int32_t architecture = 75;
  attn_problem problem;
  ASSERT_EQ(ATTN_INIT(attn_problem, &problem), ATTN_OK);
  problem.len_q = problem.len_kv = 8;
  request.passes = &pass;
  request.problems = &problem;
  request.architectures = &architecture;
  request.num_architectures = 1;
  EXPECT_EQ(attn_cache_build(c, &request, &result), ATTN_INVALID_ARGUMENT);
  EXPECT_NE(std::string(attn_last_error()).find("architecture: found 75"), std::string::npos)
      << attn_last_error();
  attn_context_destroy(c);
}

}  // namespace
}  // namespace attn
