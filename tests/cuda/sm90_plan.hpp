// Plans of the family sm90 for an H200, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "core/validate.hpp"
#include "cuda/families/make_plan.hpp"
#include "facts.hpp"

namespace attn::cuda::test {

// `problem` in bf16, unless it says otherwise.
inline CudaPlan plan_of(const std::string& problem, core::Access access = core::Access::tma,
                        FamilyChoice choice = FamilyChoice::sm90, Pass pass = Pass::forward) {
  const Problem parsed = parse_problem("dtype=bf16 " + problem);
  const core::Status status = core::validate_problem(pass, parsed);
  EXPECT_TRUE(status.ok()) << status.message;
  core::Result<CudaPlan> plan = make_plan(pass, parsed, h200(), access, choice);
  EXPECT_TRUE(plan.ok()) << plan.reason();
  return std::move(plan).value();
}

inline const std::string kLong = "batch=2 heads_q=16 heads_kv=16 len_q=4096 len_kv=4096 ";
inline const std::string kShort = "batch=2 heads_q=16 heads_kv=16 len_q=512 len_kv=512 ";

}  // namespace attn::cuda::test
