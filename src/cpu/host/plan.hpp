// The CPU plan: a pure function of pass, problem and threads. What a result's bits depend on
// (tiles, splits) never depends on the threads.
#pragma once

#include <attn/problem.hpp>

#include "core/plan.hpp"
#include "cpu/host/config.hpp"

namespace attn::cpu {

core::Plan make_plan(Pass pass, const Problem& problem, std::int32_t threads);
// The tile sizes that a plan carries.
Config config_of(const core::Plan& plan);

}  // namespace attn::cpu
