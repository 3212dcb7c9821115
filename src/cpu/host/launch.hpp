// Runs a planned call on the executor's threads.
#pragma once

#include <attn/arguments.hpp>

#include "core/backend.hpp"
#include "cpu/host/plan.hpp"

namespace attn::cpu {

void launch(const CpuPlan& plan, const Arguments& arguments, const core::Executor& executor);
void launch_merge(const MergeArguments& arguments, const core::Executor& executor);
void launch_merge_backward(const MergeBackwardArguments& arguments, const core::Executor& executor);
void launch_rope(const RopeArguments& arguments, const core::Executor& executor);

}  // namespace attn::cpu
