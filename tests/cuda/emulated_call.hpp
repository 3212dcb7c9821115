// A call of the kernels around the main ones on the host (emulated/device.hpp): with the arguments,
// grids and workspace of a plan, on tensors of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/float16.hpp"
#include "core/validate.hpp"
#include "cuda/host/arguments.hpp"
#include "cuda/host/plan.hpp"
#include "emulated/device.hpp"
#include "facts.hpp"

extern "C" {
void attn_bias_gradient_finish(attn::device::Arguments);
void attn_prepare(attn::device::Arguments);
void attn_finish(attn::device::Arguments);
void attn_sink_gradient(attn::device::Arguments);
void attn_uncovered(attn::device::Arguments);
void attn_uncovered_gradients(attn::device::Arguments);
}

namespace attn::cuda::test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr unsigned char kPoison = 0xa5;

inline float load(const char* at, DType dtype) {
  if (dtype == DType::f32) return *reinterpret_cast<const float*>(at);
  const auto bits = *reinterpret_cast<const std::uint16_t*>(at);
  return dtype == DType::bf16 ? core::bf16_to_f32(bits) : core::f16_to_f32(bits);
}
inline void store(char* at, DType dtype, float value) {
  if (dtype == DType::f32) {
    *reinterpret_cast<float*>(at) = value;
  } else {
    *reinterpret_cast<std::uint16_t*>(at) =
        dtype == DType::bf16 ? core::f32_to_bf16(value) : core::f32_to_f16(value);
  }
}

// A call on tensors of its own, hashed values in them.
struct Call {
  attn::Arguments arguments;
  Problem problem;
  DevicePlan plan;
  device::Arguments device;

  TensorView make(DType dtype, std::initializer_list<std::int64_t> shape) {
    std::size_t count = 1;
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    auto& memory = memory_.emplace_back((count + 4) * 4 + 16);
    char* begin = memory.data();
    begin += (16 - reinterpret_cast<std::uintptr_t>(begin) % 16) % 16;
    const auto bytes = static_cast<std::size_t>(size_of(dtype));
    for (std::size_t i = 0; i < count && dtype != DType::i32; ++i) {
      state_ = state_ * 1664525u + 1013904223u;
      store(begin + i * bytes, dtype, static_cast<float>(state_ >> 8) / 8388608.0f - 1.0f);
    }
    return TensorView::contiguous(begin, dtype, shape);
  }
  TensorView integers(const std::vector<int>& values) {
    const TensorView view = make(DType::i32, {static_cast<std::int64_t>(values.size())});
    std::memcpy(view.address(), values.data(), values.size() * 4);
    return view;
  }

  void prepare(Pass pass) {
    const core::Status valid = core::validate(pass, problem, arguments);
    ASSERT_TRUE(valid.ok()) << valid.message;
    const core::Capability capability = check_support(pass, problem, h200());
    ASSERT_TRUE(capability.supported) << capability.reason;
    plan = make_plan(pass, problem, h200());
    device = device_arguments(pass, problem, arguments);
    if (pass != Pass::backward) return;
    const auto bytes = static_cast<std::size_t>(plan.plan.workspace_bytes);
    workspace_ = std::make_unique<float4[]>(bytes / 16 + 8);
    std::memset(workspace_.get(), kPoison, bytes + 128);
    place(plan.workspace, problem, workspace_.get(), device);
  }

  void run(const std::string& entry) {
    static const std::map<std::string, void (*)(device::Arguments)> kKernels{
        {"attn_bias_gradient_finish", attn_bias_gradient_finish},
        {"attn_prepare", attn_prepare},
        {"attn_finish", attn_finish},
        {"attn_sink_gradient", attn_sink_gradient},
        {"attn_uncovered", attn_uncovered},
        {"attn_uncovered_gradients", attn_uncovered_gradients}};
    for (std::size_t i = 0; i < plan.num_kernels; ++i) {
      if (plan.kernels[i].entry != entry) continue;
      emulated::run(kKernels.at(entry), static_cast<unsigned>(plan.blocks[i]),
                    plan.kernels[i].threads, device);
      return;
    }
    FAIL() << "the plan has no " << entry;
  }

  [[nodiscard]] bool workspace_end_is_whole() const {
    const auto* end =
        reinterpret_cast<const unsigned char*>(workspace_.get()) + plan.plan.workspace_bytes;
    return std::all_of(end, end + 128, [](unsigned char byte) { return byte == kPoison; });
  }

 private:
  std::vector<std::vector<char>> memory_;
  std::unique_ptr<float4[]> workspace_;
  std::uint32_t state_ = 1;
};

}  // namespace attn::cuda::test
