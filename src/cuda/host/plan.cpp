// The CUDA plan; see plan.hpp.
#include "cuda/host/plan.hpp"

#include <string>

namespace attn::cuda {
namespace {

// Ampere: cp.async and mma.sync of bf16.
constexpr int kLeastCapability = 80;

bool is_f8(DType dtype) {
  return dtype == DType::f8e4m3 || dtype == DType::f8e5m2;
}

std::string refusal(const Problem& p, const DeviceFacts& facts) {
  if (facts.capability() < kLeastCapability) {
    return "needs compute capability 8.0 or later, cuda:" + std::to_string(facts.ordinal) + " is " +
           to_string(facts);
  }
  if (is_f8(p.dtype) || is_f8(p.kv_type())) return "no kernel for f8 types on CUDA yet";
  if (p.dtype == DType::f64) return "no kernel for f64 on CUDA; f16 and bf16 are supported";
  if (p.dtype == DType::f32) return "no kernel for f32 on CUDA yet; f16 and bf16 are supported";
  if (p.kv_type() != p.dtype) return "no kernel for k and v of another type than q on CUDA yet";
  if (p.page_size > 0) return "no kernel for paged caches on CUDA yet";
  if (p.len_new > 0) return "no kernel that appends to a cache on CUDA yet";
  if (p.rope != Rope::none) return "no kernel with rotary embedding on CUDA yet";
  return {};
}

}  // namespace

core::Capability check_support(Pass pass, const Problem& problem, const DeviceFacts& facts) {
  if (std::string reason = refusal(problem, facts); !reason.empty()) {
    return {false, std::move(reason)};
  }
  return {false, std::string("no kernel for the ") + to_string(pass) + " on CUDA yet"};
}

DevicePlan make_plan(Pass, const Problem&, const DeviceFacts&) {
  return {};
}

}  // namespace attn::cuda
