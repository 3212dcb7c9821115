// Config -> binary: from the process, the disk or the compiler, and by many threads at once.
#include "cuda/host/binaries.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "folder.hpp"

namespace attn::cuda::test {
namespace {

// A small kernel; constants that it does not read make binaries of their own all the same.
Config small_config(int dim) {
  Config config("passes/bias_gradient_sum.cu");
  config.set("dtype_out", 3).set("dim", dim).set("has_dlse", true);
  return config;
}

class CudaBinaries : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    nvrtc = Nvrtc::get(0, reason);
    if (nvrtc == nullptr) GTEST_SKIP() << reason;
  }
  [[nodiscard]] Binaries with_compiler() const {
    return Binaries(Cache(folder.path()), nvrtc->version(), nvrtc, "");
  }
  [[nodiscard]] Binaries without_compiler() const {
    return Binaries(Cache(folder.path()), nvrtc->version(), nullptr, "no NVRTC");
  }

  Folder folder;
  const Nvrtc* nvrtc = nullptr;
};

TEST_F(CudaBinaries, CompilesOnceThenReads) {
  Binaries first = with_compiler();
  const Binary* compiled = nullptr;
  ASSERT_TRUE(first.get(small_config(64), 90, compiled).ok());
  EXPECT_EQ(compiled->from, Binary::From::compiler);
  EXPECT_EQ(compiled->architecture, "sm_90a");
  EXPECT_NE(compiled->log.find("registers"), std::string::npos) << compiled->log;
  const Binary* again = nullptr;
  ASSERT_TRUE(first.get(small_config(64), 90, again).ok());
  EXPECT_EQ(again, compiled);

  Binaries second = with_compiler();
  const Binary* read = nullptr;
  ASSERT_TRUE(second.get(small_config(64), 90, read).ok());
  EXPECT_EQ(read->from, Binary::From::disk);
  EXPECT_EQ(read->cubin, compiled->cubin);
  EXPECT_LT(read->seconds, 0.5);
  ASSERT_TRUE(second.get(small_config(64), 80, read).ok());
  EXPECT_EQ(read->from, Binary::From::compiler);
  EXPECT_EQ(read->architecture, "sm_80");

  Binaries third = without_compiler();
  ASSERT_TRUE(third.get(small_config(64), 90, read).ok());
  EXPECT_EQ(read->cubin, compiled->cubin);
  // What was made for 8.0 runs on 8.6.
  ASSERT_TRUE(third.get(small_config(64), 86, read).ok());
  EXPECT_EQ(read->architecture, "sm_80");
  const core::Status none = third.get(small_config(65), 90, read);
  EXPECT_EQ(none.code, ErrorCode::unsupported);
  EXPECT_EQ(none.message,
            "cuda: no binary of passes/bias_gradient_sum.cu dim=65 dtype_out=3 has_dlse=1 in " +
                folder.path() + "/cuda, and no NVRTC");
}

TEST_F(CudaBinaries, DamagedEntriesAreMadeAnew) {
  const Binary* binary = nullptr;
  ASSERT_TRUE(with_compiler().get(small_config(64), 90, binary).ok());
  const Cache cache(folder.path());
  ASSERT_EQ(cache.list().size(), 1u);
  const std::string path = cache.list()[0].path;
  write_text(path, read_text(path).substr(0, 500));
  Binaries again = with_compiler();
  ASSERT_TRUE(again.get(small_config(64), 90, binary).ok());
  EXPECT_EQ(binary->from, Binary::From::compiler);
  EXPECT_TRUE(cache.list()[0].valid);
}

TEST_F(CudaBinaries, ManyAtOnce) {
  std::vector<Config> configs;
  for (int dim = 1; dim <= 6; ++dim) configs.push_back(small_config(dim));
  Binaries binaries = with_compiler();
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { EXPECT_TRUE(binaries.get_all(configs, 80, 2).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(binaries.cache().list().size(), configs.size());
  for (const CacheEntry& entry : binaries.cache().list()) EXPECT_TRUE(entry.valid);
}

TEST_F(CudaBinaries, Reasons) {
  Binaries binaries = with_compiler();
  const Binary* binary = nullptr;
  Config wrong("sm80/forward.cu");  // with most constants missing
  wrong.set("dim", 64);
  const core::Status status = binaries.get(wrong, 80, binary);
  EXPECT_EQ(status.code, ErrorCode::internal);
  EXPECT_NE(status.message.find("\nConfig: sm80/forward.cu dim=64"), std::string::npos)
      << status.message;
  EXPECT_EQ(binaries.get(Config("nothing.cu"), 80, binary).code, ErrorCode::invalid_argument);
  const core::Status old = binaries.get(small_config(64), 35, binary);
  EXPECT_EQ(old.code, ErrorCode::unsupported);
  EXPECT_NE(old.message.find("does not compile for compute capability 3.5"), std::string::npos);
  const std::vector<Config> both{small_config(8), wrong};
  EXPECT_EQ(binaries.get_all(both, 80, 0).code, ErrorCode::internal);
}

}  // namespace
}  // namespace attn::cuda::test
