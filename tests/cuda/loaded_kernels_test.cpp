// LoadedKernels: a plan's kernels by context, kept and found by several threads at once.
#include "cuda/host/loaded_kernels.hpp"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

namespace attn::cuda::test {
namespace {

class CudaLoadedKernels : public ::testing::Test {
 protected:
  // Kernels that stand for those which `context` has loaded: two addresses that tell contexts
  // apart.
  [[nodiscard]] std::array<const Kernel*, 2> kernels_of(std::uint64_t context) const {
    return {&kernels_[2 * context], &kernels_[2 * context + 1]};
  }
  [[nodiscard]] bool finds(std::uint64_t context) const {
    std::array<const Kernel*, 2> found{};
    if (!loaded.find(modules, context, found)) return false;
    EXPECT_EQ(found, kernels_of(context));
    return true;
  }
  void keep(std::uint64_t context) { loaded.keep(modules, context, kernels_of(context)); }

  Binaries binaries{Cache(""), 13000, nullptr, ""};
  Modules modules{binaries};
  LoadedKernels loaded;

 private:
  std::array<Kernel, 200> kernels_;
};

TEST_F(CudaLoadedKernels, BelongToModulesAndAContext) {
  EXPECT_FALSE(finds(1));
  keep(1);
  keep(2);
  EXPECT_TRUE(finds(1));
  EXPECT_TRUE(finds(2));
  EXPECT_FALSE(finds(3));
  std::array<const Kernel*, 2> found{};
  const Modules others(binaries);
  EXPECT_FALSE(loaded.find(others, 1, found));
}

TEST_F(CudaLoadedKernels, ACopyHasNone) {
  keep(1);
  const LoadedKernels copy = loaded;
  std::array<const Kernel*, 2> found{};
  EXPECT_FALSE(copy.find(modules, 1, found));
}

// A program may make and destroy contexts without end.
TEST_F(CudaLoadedKernels, AreKeptForTheFirstContextsOnly) {
  for (std::uint64_t context = 1; context < 100; ++context) keep(context);
  EXPECT_TRUE(finds(1));
  EXPECT_TRUE(finds(16));
  EXPECT_FALSE(finds(17));
}

TEST_F(CudaLoadedKernels, OfThreadsThatKeepAtOnce) {
  std::vector<std::thread> threads;
  for (std::uint64_t context = 1; context <= 4; ++context) {
    threads.emplace_back([this, context] {
      for (int n = 0; n < 1000; ++n) {
        if (!finds(context)) keep(context);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::uint64_t context = 1; context <= 4; ++context) EXPECT_TRUE(finds(context));
}

}  // namespace
}  // namespace attn::cuda::test
