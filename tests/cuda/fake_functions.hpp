// What the files of the fake driver share; see fake_driver.hpp.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "cuda/host/driver_abi.hpp"
#include "fake_driver.hpp"

using namespace attn::cuda;  // NOLINT: as the parameters are written in the list

#define FAKE extern "C" __attribute__((visibility("default")))
#define FAIL_IF_ASKED()                                                        \
  if (state.failing != nullptr && std::strcmp(state.failing, __func__) == 0) { \
    return state.failing_result;                                               \
  }

// Every function has the signature of the list.
#define DECLARE(symbol, parameters) FAKE abi::Result symbol parameters;
ATTN_CUDA_DRIVER_FUNCTIONS(DECLARE)

extern test::FakeDriver state;

// Whether the thread has a current context.
bool has_context();

// What fake_modules.cpp defines, and emulator/driver.cpp for kernels that run.
// A copy of the one parameter, as far as the test said how long it is.
std::vector<unsigned char> parameters_of(abi::Function function, void** parameters);
// A kernel was launched.
void record(const abi::LaunchConfig& config, abi::Function function,
            std::vector<unsigned char> parameters);
