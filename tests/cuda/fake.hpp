// The fake driver as tests use it: opened once, reset before each test.
#pragma once

#include <gtest/gtest.h>

#include "cuda/host/driver.hpp"
#include "fake_driver.hpp"

namespace attn::cuda::test {

FakeDriver& fake();
const Driver& fake_driver();
// Makes a context of device 0 with this id current on the calling thread; 0: none is.
void own_context(std::uint64_t id);

class WithFakeDriver : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
};

}  // namespace attn::cuda::test
