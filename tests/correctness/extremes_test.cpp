// Numbers at the ends of their accepted range: they have the meaning of docs/semantics.md, though
// backends compute in f32.
#include <gtest/gtest.h>

#include <string>

#include "harness/case.hpp"
#include "harness/check.hpp"

namespace attn::harness {
namespace {

// Runs a pass in every type, with words of a Case before the colon and of a Problem after it.
void run_types(const char* pass, const std::string& of_case, const std::string& of_problem) {
  ContextOptions options;
  options.backend = "cpu";
  options.threads = 2;
  Context context(options);
  for (const char* dtype : {"f32", "f16", "bf16", "f64"}) {
    const Case c =
        parse_case(std::string(pass) + " name=extremes seed=5 " + of_case + " : dtype=" + dtype +
                   " heads_q=2 heads_kv=2 len_q=70 len_kv=90 dim_qk=32 dim_vo=32 " + of_problem);
    const CheckReport report = run_case(context, c);
    EXPECT_TRUE(report.passed && !report.skipped) << report.message << "\n  " << to_string(c);
  }
}

// A small softcap leaves scores of 0. Its gradient is not tested: it is 0, and 1 - tanh^2 has the
// rounding error of tanh.
TEST(Extremes, SmallSoftcap) {
  for (const char* cap : {"1e-300", "1e-40", "1e-25"}) {
    run_types("forward", std::string("softcap=") + cap, "softcap");
  }
}

// A large softcap is no cap.
TEST(Extremes, LargeSoftcap) {
  for (const char* cap : {"1e25", "1e38", "1e39", "1e300"}) {
    run_types("forward", std::string("softcap=") + cap, "softcap");
    run_types("backward", std::string("softcap=") + cap, "softcap");
  }
}

// With queries and keys of 0, scores are 0 whatever the scale.
TEST(Extremes, Scale) {
  for (const char* scale : {"1e39", "-1e300", "1e-300"}) {
    run_types("forward", std::string("value_scale=0 scale=") + scale, "");
    run_types("backward", std::string("value_scale=0 scale=") + scale, "");
  }
}

}  // namespace
}  // namespace attn::harness
