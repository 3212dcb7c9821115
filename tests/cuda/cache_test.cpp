// The cache on disk: what it keeps, and what it does not trust.
#include "cuda/host/cache.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "folder.hpp"

namespace attn::cuda::test {
namespace {

const BinaryKey kKey{"passes/bias_gradient_sum.cu dim=64", "aa", "bb", "--std=c++20 -v", "sm_90a"};
const std::string kCubin = std::string(
    "\x7f"
    "ELF\0\n\nbinary\xff",
    15);

std::string only_file(const Cache& cache) {
  const auto entries = cache.list();
  EXPECT_EQ(entries.size(), 1u);
  return entries.empty() ? "" : entries[0].path;
}

TEST(CudaCache, KeepsAndLists) {
  const Folder folder;
  const Cache cache(folder.path() + "/not/yet/there");
  EXPECT_EQ(cache.load(kKey, 13000), std::nullopt);
  EXPECT_TRUE(cache.list().empty());
  ASSERT_TRUE(cache.store(kKey, 13000, kCubin));
  EXPECT_EQ(cache.load(kKey, 13000), kCubin);
  EXPECT_EQ(cache.load(kKey, 12080), std::nullopt) << "another compiler";
  ASSERT_TRUE(cache.store(kKey, 13000, kCubin)) << "again";
  const auto entries = cache.list();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].kernel, kKey.kernel);
  EXPECT_EQ(entries[0].architecture, "sm_90a");
  EXPECT_EQ(entries[0].compiler, "13.0");
  EXPECT_GT(entries[0].bytes, static_cast<std::int64_t>(kCubin.size()));
  EXPECT_TRUE(entries[0].valid);
  struct stat about{};
  ASSERT_EQ(::stat(cache.folder().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
}

TEST(CudaCache, EveryPartOfTheKeyCounts) {
  const Folder folder;
  const Cache cache(folder.path());
  ASSERT_TRUE(cache.store(kKey, 13000, kCubin));
  for (std::string BinaryKey::* part : {&BinaryKey::kernel, &BinaryKey::sources, &BinaryKey::config,
                                        &BinaryKey::options, &BinaryKey::architecture}) {
    BinaryKey other = kKey;
    other.*part += "x";
    EXPECT_EQ(cache.load(other, 13000), std::nullopt) << other.text();
    // A file under a name that is not its own.
    const std::string file = only_file(cache);
    ASSERT_TRUE(cache.store(other, 13000, "other"));
    for (const CacheEntry& entry : cache.list()) {
      const std::string path = entry.path;
      if (path != file)
        std::filesystem::copy_file(file, path, std::filesystem::copy_options::overwrite_existing);
    }
    EXPECT_EQ(cache.load(other, 13000), std::nullopt) << "foreign";
    for (const CacheEntry& entry : cache.list()) {
      const std::string path = entry.path;
      if (path != file) std::filesystem::remove(path);
    }
  }
}

TEST(CudaCache, DamageIsSeen) {
  const Folder folder;
  const Cache cache(folder.path());
  ASSERT_TRUE(cache.store(kKey, 13000, kCubin));
  const std::string path = only_file(cache);
  const std::string good = read_text(path);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    write_text(path, bad);
    ASSERT_EQ(cache.load(kKey, 13000), std::nullopt) << "byte " << at;
    write_text(path, good.substr(0, at));
    ASSERT_EQ(cache.load(kKey, 13000), std::nullopt) << "cut at " << at;
  }
  write_text(path, good + "x");
  EXPECT_EQ(cache.load(kKey, 13000), std::nullopt);
  EXPECT_FALSE(cache.list()[0].valid);
  ASSERT_TRUE(cache.store(kKey, 13000, kCubin)) << "rebuilt in its place";
  EXPECT_EQ(cache.load(kKey, 13000), kCubin);
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(cache.load(kKey, 13000), std::nullopt);
  EXPECT_FALSE(cache.store(kKey, 13000, kCubin));
  std::filesystem::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(cache.load(kKey, 13000), std::nullopt) << "does not wait for a writer";
}

TEST(CudaCache, WithoutACompilerTheLatestThatTheDriverLoads) {
  const Folder folder;
  const Cache cache(folder.path());
  for (const int compiler : {12040, 12080, 13000, 14010}) {
    ASSERT_TRUE(cache.store(kKey, compiler, kCubin + std::to_string(compiler)));
  }
  EXPECT_EQ(cache.load_any(kKey, 13), kCubin + "13000");
  EXPECT_EQ(cache.load_any(kKey, 12), kCubin + "12080");
  EXPECT_EQ(cache.load_any(kKey, 11), std::nullopt);
  BinaryKey other = kKey;
  other.sources = "cc";
  EXPECT_EQ(cache.load_any(other, 13), std::nullopt);
}

TEST(CudaCache, WorksWithoutAFolder) {
  const Cache none("");
  EXPECT_FALSE(none.store(kKey, 13000, kCubin));
  EXPECT_EQ(none.load(kKey, 13000), std::nullopt);
  EXPECT_EQ(none.load_any(kKey, 13), std::nullopt);
  EXPECT_TRUE(none.list().empty());
  std::string failed;
  EXPECT_EQ(none.clear(failed), 0);
  EXPECT_EQ(failed, "");
  EXPECT_NE(none.unwritable().find("no folder is known"), std::string::npos);
  const Folder folder;
  write_text(folder.path() + "/file", "");
  const Cache below_a_file(folder.path() + "/file");
  EXPECT_FALSE(below_a_file.store(kKey, 13000, kCubin));
  EXPECT_EQ(below_a_file.load(kKey, 13000), std::nullopt);
  EXPECT_NE(below_a_file.unwritable().find(below_a_file.folder() + ": "), std::string::npos);
  const Cache good(folder.path() + "/deep/er");
  EXPECT_EQ(good.unwritable(), "");
  EXPECT_TRUE(std::filesystem::is_empty(good.folder()));
}

TEST(CudaCache, AReadOnlyFolderIsRead) {
  const Folder folder;
  const Cache cache(folder.path());
  ASSERT_TRUE(cache.store(kKey, 13000, kCubin));
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  ASSERT_EQ(::chmod(cache.folder().c_str(), 0555), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Root writes everywhere, so it becomes somebody else.
    if (::geteuid() == 0 && ::seteuid(65534) != 0) ::_exit(2);
    std::string failed;
    const bool good = cache.load(kKey, 13000) == kCubin && !cache.store(kKey, 12080, kCubin) &&
                      cache.list().size() == 1 && !cache.unwritable().empty() &&
                      cache.clear(failed) == 0 && !failed.empty();
    ::_exit(good ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ::chmod(cache.folder().c_str(), 0700);
}

TEST(CudaCache, ClearTakesOnlyWhatIsOurs) {
  const Folder folder;
  const Cache cache(folder.path());
  ASSERT_TRUE(cache.store(kKey, 13000, kCubin));
  ASSERT_TRUE(cache.store(kKey, 12080, kCubin));
  for (const char* name : {"/notes.txt", "/x.cubin", "/.attn-1-2-left"}) {
    write_text(cache.folder() + name, "x");
  }
  EXPECT_EQ(cache.list().size(), 2u);
  std::string failed;
  EXPECT_EQ(cache.clear(failed), 2);
  EXPECT_EQ(failed, "");
  EXPECT_TRUE(cache.list().empty());
  EXPECT_TRUE(std::filesystem::exists(cache.folder() + "/notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(cache.folder() + "/x.cubin"));
  EXPECT_FALSE(std::filesystem::exists(cache.folder() + "/.attn-1-2-left"));
}

TEST(CudaCache, WhereItIs) {
  const auto restore = [](const char* name) {
    const char* value = std::getenv(name);
    return [name, kept = std::string(value != nullptr ? value : "")] {
      if (kept.empty())
        ::unsetenv(name);
      else
        ::setenv(name, kept.c_str(), 1);
    };
  };
  const auto home = restore("HOME");
  const auto xdg = restore("XDG_CACHE_HOME");
  const auto asked = restore("ATTN_CACHE_DIR");
  ::setenv("ATTN_CACHE_DIR", "/a", 1);
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  ::setenv("HOME", "/h", 1);
  EXPECT_EQ(Cache::default_root(), "/a");
  ::unsetenv("ATTN_CACHE_DIR");
  EXPECT_EQ(Cache::default_root(), "/x/libattn");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(Cache::default_root(), "/h/.cache/libattn");
  EXPECT_EQ(Cache(Cache::default_root()).folder(), "/h/.cache/libattn/cuda");
  ::unsetenv("HOME");
  EXPECT_EQ(Cache::default_root(), "");
  home(), xdg(), asked();
}

TEST(CudaCache, ProcessesFillItAtOnce) {
  const Folder folder;
  const Cache cache(folder.path());
  const std::string large(300000, 'x');
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    const pid_t id = ::fork();
    ASSERT_GE(id, 0);
    if (id == 0) {
      bool good = true;
      for (int i = 0; i < 20; ++i) {
        good = cache.store(kKey, 13000, large) && good;
        // Whole or not there, never in parts.
        const auto read = cache.load(kKey, 13000);
        good = read.has_value() && *read == large && good;
      }
      ::_exit(good ? 0 : 1);
    }
    children.push_back(id);
  }
  for (const pid_t id : children) {
    int status = -1;
    ASSERT_EQ(::waitpid(id, &status, 0), id);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(cache.load(kKey, 13000), large);
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cache.folder())) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 1u) << "nothing left over";
}

}  // namespace
}  // namespace attn::cuda::test
