// Backwards of query heads that share key heads and have tasks of their own on the CPU: rows that
// are long enough, several blocks of keys, and more threads than heads.
#include <gtest/gtest.h>

#include <string>

#include "harness/case.hpp"
#include "harness/check.hpp"
#include "harness/inputs.hpp"

namespace attn::harness {
namespace {

class GroupsCpu : public testing::Test {
 protected:
  // Runs a problem in every type, with words of a Case before and of a Problem after the colon.
  static void Run(const std::string& of_case, const std::string& of_problem) {
    for (const char* dtype : {"f32", "bf16", "f16", "f64"}) {
      const Case c =
          parse_case("backward name=groups seed=5 " + of_case + " : dtype=" + dtype +
                     " heads_q=4 heads_kv=2 len_q=260 len_kv=150 dim_qk=16 dim_vo=8 " + of_problem);
      ContextOptions options;
      options.backend = "cpu";
      options.threads = 9;
      Context context(options);
      const CheckReport report = run_case(context, c);
      EXPECT_TRUE(report.passed && !report.skipped) << report.message << "\n  " << to_string(c);
      const std::string config = plan(context, Pass::backward, c.problem).config;
      EXPECT_NE(config.find("dkv_terms"), std::string::npos) << to_string(c);
    }
  }
};

TEST_F(GroupsCpu, Rows) {
  Run("", "");
  Run("memory=sliced", "causal deterministic dlse sink dsink accumulate");
  Run("lengths=zero", "batch=3 lengths_q lengths_kv causal");
  Run("lengths=gaps",
      "batch=2 len_q=550 layout_q=packed layout_kv=packed total_q=1082 total_kv=198 causal");
}

TEST_F(GroupsCpu, Options) {
  Run("dropout_p=0.25 rope_pos_offset=3 memory=bhsd", "batch=2 rope=half dropout");
  Run("softcap=20", "mask=bhqk softcap nonfinite_zero");
  Run("", "bias=bhqk window_left=200");
}

// Tasks compute several short sequences. A packed tensor with many uncovered rows does not make its
// sequences long, so it does not give their query heads tasks of their own.
TEST_F(GroupsCpu, ShortSequencesAmongUncoveredRows) {
  ContextOptions options;
  options.backend = "cpu";
  options.threads = 1;
  Context context(options);
  for (const std::string numbers :
       {"dtype=f32 dim_qk=128 dim_vo=80", "dtype=f32 dim_qk=64 dim_vo=64",
        "dtype=bf16 dim_qk=128 dim_vo=80 accumulate", "dtype=f16 dim_qk=72 dim_vo=80",
        "dtype=f64 dim_qk=128 dim_vo=80"}) {
    Case c = parse_case(
        "backward name=groups seed=4 lengths=gaps : batch=16 heads_q=4 heads_kv=1 "
        "len_q=16 len_kv=16 layout_q=packed layout_kv=packed " +
        numbers);
    set_totals(c);
    ASSERT_GT(c.problem.total_q, 256 * c.problem.batch) << "another seed draws many rows";
    const CheckReport report = run_case(context, c);
    EXPECT_TRUE(report.passed && !report.skipped) << report.message << "\n  " << to_string(c);
    const std::string config = plan(context, Pass::backward, c.problem).config;
    EXPECT_NE(config.find("pairs_of_task"), std::string::npos) << to_string(c);
    EXPECT_EQ(config.find("dkv_terms"), std::string::npos) << to_string(c);
  }
}

TEST_F(GroupsCpu, SomeGradients) {
  Run("", "dv=off heads_kv=1 heads_q=3");
  Run("", "dq=off heads_kv=1 heads_q=2 alibi causal");
}

}  // namespace
}  // namespace attn::harness
