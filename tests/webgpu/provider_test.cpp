// The provider: found, missing, too old, or not one at all.
#include <cstdlib>
#include <set>

#include "support.hpp"

namespace attn::webgpu {
namespace {

std::string reason_of(const Provider::Opened& opened) {
  EXPECT_EQ(opened.provider, nullptr);
  return opened.reason;
}

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Provider, SaysThatThereIsNone) {
  EXPECT_SAYS(reason_of(Provider::open({})), "no WebGPU library: install the pip package wgpu");
  const std::vector<std::string> nowhere{"/nowhere/libwgpu_native.so"};
  EXPECT_SAYS(reason_of(Provider::open(nowhere)), "no WebGPU library (/nowhere/libwgpu_native.so");
}

TEST(Provider, NamesTheFunctionThatALibraryLacks) {
  const std::vector<std::string> other{"libm.so.6"};
  EXPECT_SAYS(reason_of(Provider::open(other)), "(libm.so.6 has no wgpu");
}

TEST(Provider, ComesFromTheFileOrFolderThatIsNamed) {
  setenv("ATTN_WGPU", "/nowhere/libwgpu.so", 1);
  EXPECT_EQ(Provider::candidates(), std::vector<std::string>{"/nowhere/libwgpu.so"});
  setenv("ATTN_WGPU", "/", 1);
  EXPECT_EQ(Provider::candidates(), std::vector<std::string>{"/libwgpu_native-release.so"});
  unsetenv("ATTN_WGPU");
  const std::vector<std::string> list = Provider::candidates();
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list[0], "") << "what the process has loaded comes first";
}

const Provider* opened = nullptr;
std::set<std::string>* asked = nullptr;

void* function_of(const char* name) {
  if (asked != nullptr) asked->insert(name);
  const std::string_view wanted(name);
#define ATTN_FIND(function) \
  if (wanted == #function) return reinterpret_cast<void*>(opened->api().function);  // NOLINT
  ATTN_WEBGPU_FUNCTIONS(ATTN_FIND)
  ATTN_WEBGPU_NATIVE_FUNCTIONS(ATTN_FIND)
  ATTN_WEBGPU_DAWN_FUNCTIONS(ATTN_FIND)
#undef ATTN_FIND
  return nullptr;
}

std::uint32_t version_28() {
  return 0x1c000302;
}

class LookupTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    opened = Provider::get(reason);
    if (opened == nullptr) GTEST_SKIP() << reason;
  }
};

TEST_F(LookupTest, TellsWhatIsMissing) {
  const auto without_submit = [](const char* name) {
    return std::string_view(name) == "wgpuQueueSubmit" ? nullptr : function_of(name);
  };
  EXPECT_EQ(reason_of(Provider::from(without_submit)),
            "the caller's lookup finds no wgpuQueueSubmit");
  std::string reason;
  if (Provider::of(nullptr, reason) == nullptr) {
    EXPECT_SAYS(reason, "no lookup was given, and the process has loaded no wgpu");
  }
}

TEST_F(LookupTest, IsAskedOnce) {
  std::string reason;
  const Provider* first = Provider::of(function_of, reason);
  ASSERT_NE(first, nullptr) << reason;
  EXPECT_EQ(first, Provider::of(function_of, reason));
  EXPECT_EQ(to_string(*first), to_string(*opened));
}

TEST_F(LookupTest, RefusesTooOld) {
  if (!opened->native()) GTEST_SKIP() << "only wgpu-native tells its version";
  const auto old = [](const char* name) {
    return std::string_view(name) == "wgpuGetVersion"
               ? reinterpret_cast<void*>(version_28)  // NOLINT
               : function_of(name);
  };
  EXPECT_SAYS(reason_of(Provider::from(old)), "is wgpu-native 28.0.3.2, 29.0 or later is needed");
}

// Those in which wgpu-native 29 aborts the process.
TEST_F(LookupTest, NeverAsksForWhatAborts) {
  if (!opened->native()) GTEST_SKIP() << "they don't abort on Dawn";
  std::set<std::string> names;
  asked = &names;
  const Provider::Opened opened = Provider::from(function_of);
  asked = nullptr;
  ASSERT_NE(opened.provider, nullptr) << opened.reason;
  for (const char* name : {"wgpuInstanceWaitAny", "wgpuShaderModuleGetCompilationInfo",
                           "wgpuDeviceCreateComputePipelineAsync", "wgpuBufferReadMappedRange",
                           "wgpuBufferWriteMappedRange", "wgpuGetInstanceFeatures",
                           "wgpuHasInstanceFeature", "wgpuGetProcAddress", "wgpuBufferGetMapState",
                           "wgpuDeviceGetLostFuture", "wgpuDeviceGetAdapterInfo"}) {
    EXPECT_FALSE(names.contains(name)) << name;
  }
  for (const std::string& name : names) EXPECT_FALSE(name.ends_with("SetLabel")) << name;
  EXPECT_EQ(opened.provider->api().wgpuInstanceWaitAny, nullptr);
}

// Dawn's table: without what wgpu-native adds.
TEST_F(LookupTest, WithoutWgpuHIsDawn) {
  static const auto wait_any = [](WGPUInstance, std::size_t, WGPUFutureWaitInfo*,
                                  std::uint64_t) -> WGPUWaitStatus { return {}; };
  static const auto get_info = [](WGPUDevice, WGPUAdapterInfo*) -> WGPUStatus { return {}; };
  const auto dawn = [](const char* name) -> void* {
    const std::string_view wanted(name);
    if (wanted == "wgpuInstanceWaitAny") return reinterpret_cast<void*>(+wait_any);       // NOLINT
    if (wanted == "wgpuDeviceGetAdapterInfo") return reinterpret_cast<void*>(+get_info);  // NOLINT
#define ATTN_IS(function) \
  if (wanted == #function) return nullptr;
    ATTN_WEBGPU_NATIVE_FUNCTIONS(ATTN_IS)
#undef ATTN_IS
    return function_of(name);
  };
  const Provider::Opened opened = Provider::from(dawn);
  ASSERT_NE(opened.provider, nullptr) << opened.reason;
  EXPECT_EQ(opened.provider->kind(), ProviderKind::dawn);
  EXPECT_EQ(to_string(*opened.provider), "Dawn");
  EXPECT_EQ(opened.provider->api().wgpuDevicePoll, nullptr);
}

}  // namespace
}  // namespace attn::webgpu
