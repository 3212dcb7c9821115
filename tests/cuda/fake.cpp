// The fake driver as tests use it; see fake.hpp.
#include "fake.hpp"

#include <dlfcn.h>

namespace attn::cuda::test {
namespace {

void* symbol(const char* name) {
  static void* const library = dlopen(ATTN_FAKE_DRIVER, RTLD_NOW);
  EXPECT_NE(library, nullptr) << dlerror();
  return dlsym(library, name);
}

}  // namespace

FakeDriver& fake() {
  static const auto get = reinterpret_cast<FakeDriverGetter>(symbol("attn_fake_driver"));
  return *get();
}

const Driver& fake_driver() {
  static const Driver::Opened opened = Driver::open(ATTN_FAKE_DRIVER);
  EXPECT_NE(opened.driver, nullptr) << opened.reason;
  return *opened.driver;
}

void own_context(std::uint64_t id) {
  static const auto set =
      reinterpret_cast<void (*)(std::uint64_t)>(symbol("attn_fake_own_context"));
  set(id);
}

void WithFakeDriver::SetUp() {
  FakeDriver& state = fake();
  state.version = 13000;
  state.num_devices = 2;
  state.init_result = 0;
  state.failing = nullptr;
  state.capturing = 0;
  state.foreign_streams = false;
  state.misused_graphs = 0;
  state.parameter_bytes = 0;
  state.parameter_bytes_of.clear();
  state.maps.clear();
  state.launched.clear();
  state.major = 9;
  state.minor = 0;
  own_context(0);
}

void WithFakeDriver::TearDown() {
  SetUp();
}

}  // namespace attn::cuda::test
