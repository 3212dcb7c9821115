// Problems that the CPU's kernels of small problems compute: sizes around vectors and blocks, with
// each option that these kernels have. ATTN_CPU_TARGET selects an instruction set.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "harness/case.hpp"
#include "harness/check.hpp"

namespace attn::harness {
namespace {

ContextOptions cpu_options() {
  ContextOptions options;
  options.backend = "cpu";
  options.threads = 2;
  return options;
}

class SmallCpu : public testing::Test {
 protected:
  void SetUp() override {
    const char* target = std::getenv("ATTN_CPU_TARGET");
    for (const BackendInfo& info : backends(context_)) {
      if (info.name != "cpu") continue;
      has_amx_ = info.detail.find("bf16 by amx_bf16") != std::string::npos;
      has_engine_ = info.detail.find("bf16 by f32") == std::string::npos;
      if (target == nullptr || info.detail.starts_with(std::string(target) + " ")) continue;
      GTEST_SKIP() << target << " is not usable here: " << info.detail;
    }
  }

  // Runs a problem forward and backward in f32 and in 16 bits, batch_ sequences of 4 query heads,
  // with words of a Case before and of a Problem after the colon.
  void Run(const std::string& of_case, const std::string& of_problem) {
    RunPass("forward", of_case, of_problem);
    RunPass("backward", of_case, of_problem);
    Run16Bits(of_case, of_problem);
  }
  void RunPass(const std::string& pass, const std::string& of_case, const std::string& of_problem,
               const std::string& dtype = "f32") {
    const std::string text =
        pass + " name=small seed=5 " + of_case + " : dtype=" + dtype + " " + of_problem;
    EXPECT_EQ(Kernel(text), "cpu_" + pass + "_small") << text;
  }
  void Run16Bits(const std::string& of_case, const std::string& of_problem) {
    for (const char* pass : {"forward", "backward"}) {
      RunPass(pass, of_case, of_problem, "f16");
      // bf16 has f32 arithmetic if no engine multiplies bf16.
      if (!has_engine_) RunPass(pass, of_case, of_problem, "bf16");
    }
    RunBf16(of_case, of_problem);
  }
  void RunBf16(const std::string& of_case, const std::string& of_problem) {
    const std::string text = "forward name=small seed=5 " + of_case + " : dtype=bf16 " + of_problem;
    const std::string kernel = Kernel(text);
    if (has_amx_) {
      EXPECT_EQ(kernel, "cpu_forward_amx_bf16_small") << text;
    }
  }
  // Runs a case and returns its kernel.
  std::string Kernel(const std::string& text) {
    const CheckReport report =
        run_case(context_, parse_case(text + " heads_q=4 batch=" + std::to_string(batch_)));
    EXPECT_TRUE(report.passed && !report.skipped) << report.message << "\n  " << text;
    return report.kernel;
  }
  static std::string Sizes(int heads_kv, int len_q, int len_kv, int dim_qk, int dim_vo) {
    return "heads_kv=" + std::to_string(heads_kv) + " len_q=" + std::to_string(len_q) +
           " len_kv=" + std::to_string(len_kv) + " dim_qk=" + std::to_string(dim_qk) +
           " dim_vo=" + std::to_string(dim_vo);
  }

  Context context_{cpu_options()};
  int batch_ = 7;
  bool has_amx_ = false;
  bool has_engine_ = false;
};

TEST_F(SmallCpu, Lengths) {
  for (const int len_q : {8, 17, 31, 32, 33, 64, 128}) {
    for (const int len_kv : {1, 7, 31, 32, 33, 64, 128}) {
      // Long sequences take most of the time.
      batch_ = len_q * len_kv > 33 * 33 ? 3 : 7;
      Run("", Sizes(4, len_q, len_kv, 32, 32));
      RunBf16("", Sizes(4, len_q, len_kv, 64, 64) + " causal");
      if (len_q > 64 || len_kv > 64) continue;
      Run("", Sizes(4, len_q, len_kv, 16, 16) + " causal");
    }
  }
}

TEST_F(SmallCpu, Dims) {
  for (const int dim_qk : {16, 32, 48, 64}) {
    for (const int dim_vo : {16, 32, 48, 64}) Run("", Sizes(4, 32, 41, dim_qk, dim_vo));
  }
}

// In 16 bits any dim is taken. AMX tiles have 32 elements; what follows a row in memory is NaN.
TEST_F(SmallCpu, DimsIn16Bits) {
  for (const int dim_qk : {1, 8, 24, 40, 63}) {
    for (const int dim_vo : {7, 16, 24, 40, 62}) {
      Run16Bits("memory=padded", Sizes(4, 33, 41, dim_qk, dim_vo));
    }
  }
}

TEST_F(SmallCpu, FewQueriesInBf16) {
  for (const int len_q : {2, 3, 15}) {
    for (const int len_kv : {1, 33, 100}) RunBf16("", Sizes(2, len_q, len_kv, 64, 32) + " causal");
  }
}

TEST_F(SmallCpu, QueryHeadsShareKeys) {
  for (const int heads_kv : {1, 2}) {
    Run("", Sizes(heads_kv, 31, 33, 32, 32));
    Run("memory=sliced", Sizes(heads_kv, 48, 64, 64, 64) + " causal");
  }
}

// Strides: heads before rows, a batch inside of a larger tensor, rows at any address.
TEST_F(SmallCpu, Strides) {
  for (const char* memory : {"bhsd", "fused_qkv", "sliced", "padded"}) {
    Run(std::string("memory=") + memory, Sizes(4, 33, 33, 32, 32) + " causal");
  }
  for (const char* expanded : {"heads", "batch"}) {
    Run(std::string("expanded=") + expanded, Sizes(4, 33, 31, 32, 32));
  }
}

// Queries that see a part of the keys, or none.
TEST_F(SmallCpu, Visible) {
  Run("", Sizes(4, 50, 20, 32, 32) + " causal");  // the first 30 queries see no key
  Run("", Sizes(4, 40, 40, 32, 32) + " causal diagonal=top_left");
  Run("diag=-5", Sizes(4, 40, 40, 32, 32) + " causal diagonal=explicit");
  Run("", Sizes(4, 40, 40, 32, 32) + " window_left=3 window_right=2");
  for (const char* ranges : {"documents", "random", "empty"}) {
    Run(std::string("ranges=") + ranges, Sizes(4, 40, 40, 32, 32) + " kv_begin kv_end");
  }
}

TEST_F(SmallCpu, LengthsOfSequences) {
  for (const char* lengths : {"varied", "zero", "hostile"}) {
    Run(std::string("lengths=") + lengths, Sizes(4, 40, 40, 32, 32) + " lengths_q lengths_kv");
    Run(std::string("lengths=") + lengths, Sizes(4, 40, 40, 32, 32) + " causal lengths_kv");
  }
}

// A scale of 0 or less reverses the order of the products; a NaN or an infinity is not hidden.
TEST_F(SmallCpu, Numbers) {
  for (const char* scale : {"-0.3", "0", "2.5"}) {
    Run(std::string("scale=") + scale, Sizes(4, 33, 31, 32, 32));
    Run(std::string("scale=") + scale, Sizes(4, 33, 31, 32, 32) + " causal");
  }
  for (const char* planted : {"nan_q", "nan_v"}) {
    Run(std::string("planted=") + planted, Sizes(4, 33, 31, 32, 32));
  }
  RunPass("forward", "planted=inf_k", Sizes(4, 33, 31, 32, 32));
  RunBf16("planted=inf_k", Sizes(4, 33, 31, 32, 32));
}

// q, k, dq and dk are copies in the workspace.
TEST_F(SmallCpu, Rotated) {
  Run("", Sizes(2, 33, 31, 32, 32) + " rope=half causal");
}

TEST_F(SmallCpu, OptionsOfTheBackward) {
  for (const char* option : {"dlse", "delta", "dq=off", "dk=off", "dv=off causal"}) {
    for (const char* dtype : {"f32", "f16"}) {
      RunPass("backward", "", Sizes(2, 33, 31, 32, 32) + " " + option, dtype);
    }
  }
}

}  // namespace
}  // namespace attn::harness
