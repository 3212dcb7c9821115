// validate: checks every rule of docs/semantics.md, "What is refused", once, before anything runs.
//
// A refusal reads "<function>: <rule>: found <what>; accepted <what>". Nothing is allocated unless
// something is refused. Capability (what a backend lacks) is not checked here.
#pragma once

#include <attn/arguments.hpp>
#include <attn/problem.hpp>
#include <cstdint>
#include <span>

#include "core/signature.hpp"
#include "core/status.hpp"

namespace attn::core {

// The largest head dim of q, k, v and o, and of the rows of merge and rope.
inline constexpr std::int64_t kMaxDim = 512;
// The largest magnitude of an offset of rotary positions. Keeps positions exact in f64.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 53;

// All rules on the problem alone.
Status validate_problem(Pass pass, const Problem& problem);
// The rules on a call's tensors and numbers, for a problem that validate_problem() accepted.
Status validate_arguments(Pass pass, const Problem& problem, const Arguments& arguments);
// The same, with the cached slots_of(pass, problem).
Status validate_arguments(Pass pass, const Problem& problem, std::span<const Slot> slots,
                          const Arguments& arguments);
// Checks both.
Status validate(Pass pass, const Problem& problem, const Arguments& arguments);

Status validate(const MergeArguments& arguments);
Status validate(const MergeBackwardArguments& arguments);
Status validate(const RopeArguments& arguments);

}  // namespace attn::core
