// The bf16 engines that run on this processor, for their tests.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "cpu/kernels/tile_ops/bf16_engine.hpp"

namespace attn::cpu {

inline std::vector<const Bf16Engine*> engines() {
  std::vector<const Bf16Engine*> usable;
  for (const Bf16Engine* engine : {amx_bf16_engine(), bf16_dot_engine(), bf16_mmla_engine()}) {
    if (engine != nullptr) usable.push_back(engine);
  }
  return usable;
}

class Bf16Engines : public testing::Test {
 protected:
  void SetUp() override {
    if (engines().empty()) GTEST_SKIP() << "no bf16 engine runs on this processor";
  }
};

}  // namespace attn::cpu
