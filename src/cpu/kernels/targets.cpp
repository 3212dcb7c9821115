// The instruction sets that the kernels were compiled for, and the one in use.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/targets.cpp"
#include <hwy/foreach_target.h>
// foreach_target comes first.
#include <hwy/highway.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "cpu/kernels/gemm_softmax-inl.h"
#include "cpu/kernels/kernels.hpp"

HWY_BEFORE_NAMESPACE();
namespace attn::cpu::HWY_NAMESPACE {
namespace {
const char* CompiledTarget() {
  return hwy::TargetName(HWY_TARGET);
}
bool FusesSoftmax() {
  return kHasFusedSoftmax;
}
}  // namespace
}  // namespace attn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attn::cpu {
HWY_EXPORT(CompiledTarget);
HWY_EXPORT(FusesSoftmax);

const std::string& usable_target_names() {
  static const std::string names = [] {
    std::string text;
    for (std::int64_t bits = hwy::SupportedTargets() & HWY_TARGETS; bits != 0; bits &= bits - 1) {
      if (!text.empty()) text += ' ';
      text += hwy::TargetName(bits & -bits);
    }
    return text;
  }();
  return names;
}

// ATTN_CPU_TARGET (for example AVX2) selects an instruction set. It is read once, before the first
// kernel is chosen. A name that is not usable here is ignored.
const char* target_name() {
  static const char* const name = [] {
    usable_target_names();
    const char* wanted = std::getenv("ATTN_CPU_TARGET");
    for (std::int64_t bits = HWY_TARGETS; wanted != nullptr && bits != 0; bits &= bits - 1) {
      const std::int64_t target = bits & -bits;
      const bool usable = (hwy::SupportedTargets() & target) != 0;
      if (usable && std::strcmp(hwy::TargetName(target), wanted) == 0) {
        hwy::SetSupportedTargetsForTest(target);
        break;
      }
    }
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    return HWY_DYNAMIC_DISPATCH(CompiledTarget)();
  }();
  return name;
}

bool fuses_softmax() {
  target_name();  // chooses the instruction set
  return HWY_DYNAMIC_DISPATCH(FusesSoftmax)();
}
}  // namespace attn::cpu
#endif
