// Every option of attn run reaches the library: the result is checked against the reference, and
// the printed problem names the option.
#include <cmath>

#include "command.hpp"

namespace attn::cli::test {
namespace {

// Runs with the flags, checks, and expects the words in the printed problem.
class Options : public Cli {
 protected:
  void expect_option(const TensorFile& tensors, const std::string& flags,
                     const std::string& words) {
    const auto report =
        expect_checked("run --input " + tensors.save(path("in.safetensors")) + " " + flags);
    const std::string problem = " " + report["problem"].get<std::string>() + " ";
    EXPECT_NE(problem.find(" " + words + " "), std::string::npos) << flags << "\n" << problem;
  }

  static TensorFile plain() {
    TensorFile tensors;
    tensors.attention(2, 6, 9, 4, 2, 16);
    return tensors;
  }
};

TEST_F(Options, Switches) {
  const TensorFile tensors = plain();
  expect_option(tensors, "--backward --causal", "causal");
  expect_option(tensors, "--backward --diagonal top_left --causal", "diagonal=top_left");
  expect_option(tensors, "--backward --causal --diag 2", "diagonal=explicit");
  expect_option(tensors, "--backward --window-left 2 --window-right 1",
                "window_left=2 window_right=1");
  expect_option(tensors, "--backward --scale -0.5 --softcap 3", "softcap");
  expect_option(tensors, "--backward --dropout 0.25 --seed 7 --offset 3", "dropout");
  expect_option(
      tensors, "--backward --dropout 0.25 --seed 7 --origin 1,2,3,4,8 --diagonal explicit --causal",
      "dropout");
  expect_option(tensors, "--backward --rope half --rot-dim 8 --rope-base 500 --rope-pos-offset 9",
                "rope=half rot_dim=8");
  expect_option(tensors, "--backward --rope interleaved", "rope=interleaved");
  expect_option(tensors, "--backward --deterministic", "deterministic");
  expect_option(tensors, "--backward --no-dk --no-dv", "dk=off dv=off");
  expect_option(tensors, "--no-lse", "lse=off");
  expect_option(tensors, "--precision ieee", "precision=ieee");
  expect_option(tensors, "--backward --dtype bf16 --dtype-out f32 --dtype-grad f32",
                "dtype_out=f32 dtype_grad=f32");
  expect_option(tensors, "--backward --alibi-slopes 0.5,0.25,0.125,0 --repeat 3", "alibi");
  expect_option(tensors, "--backward --sinks=-inf,0,1,2 --dsink", "sink");
  expect_option(tensors, "--backward --len-q 6,3 --len-kv 9,0", "lengths_q lengths_kv");
  expect_option(tensors, "--threads 1 --decode --len-kv 9,4 --split-keys 4", "split_keys=4");
}

TEST_F(Options, BiasAndMask) {
  TensorFile tensors = plain();
  tensors.random("bias", {1, 4, 6, 9});
  std::vector<double> mask(6 * 9);
  for (std::size_t n = 0; n < mask.size(); ++n) mask[n] = n % 3 != 0 ? 1.0 : 0.0;
  tensors.add("mask", {1, 1, 6, 9}, mask, "BOOL");
  expect_option(tensors, "--backward --dbias --output " + path("out.safetensors"), "bias=hqk");
  EXPECT_EQ(values_of(path("out.safetensors"), "dbias").size(), 4u * 6 * 9);
  TensorFile i64 = plain();
  i64.add("mask", {1, 1, 6, 9}, mask, "I64");
  expect_option(i64, "--backward", "mask=qk");
}

TEST_F(Options, KeyRangesOfOtherIntegerTypes) {
  TensorFile tensors = plain();
  tensors.add("kv_begin", {1, 6}, {0, 0, 1, 2, 3, 9}, "I64");
  tensors.add("kv_end", {1, 6}, {1, 4, 9, 3, 8, 9}, "U8");
  expect_option(tensors, "--backward", "kv_begin kv_end");
}

TEST_F(Options, RotaryTablesAndPositions) {
  TensorFile tensors = plain();
  tensors.random("rope_cos", {20, 8}).random("rope_sin", {20, 8});
  tensors.add("rope_pos_q", {1, 6}, {5, 4, 3, 2, 1, 0}, "I32");
  tensors.add("rope_pos_k", {1, 9}, {0, 2, 4, 6, 8, 10, 12, 14, 16}, "I32");
  expect_option(tensors, "--backward --rope half", "rope_tables rope_positions");
}

TEST_F(Options, GradientOfLseAndGivenDelta) {
  TensorFile with_dlse = plain();
  with_dlse.random("dlse", {2, 4, 6});
  expect_option(with_dlse, "--backward", "dlse");
  TensorFile with_delta = plain();
  with_delta.random("delta", {2, 4, 6});
  expect_option(with_delta, "--backward", "delta");
}

TEST_F(Options, SavedForwardGivesTheSameGradients) {
  TensorFile tensors = plain();
  run_json("run --backward --input " + tensors.save(path("in.safetensors")) + " --output " +
           path("out.safetensors"));
  for (const char* name : {"o", "lse"}) {
    const auto values = values_of(path("out.safetensors"), name);
    tensors.add(name,
                name == std::string("o") ? std::vector<std::int64_t>{2, 6, 4, 16}
                                         : std::vector<std::int64_t>{2, 4, 6},
                values, "F32");
  }
  const auto report = expect_checked("run --backward --saved-forward --input " +
                                     tensors.save(path("saved.safetensors")) + " --output " +
                                     path("again.safetensors"));
  EXPECT_EQ(report["passes"].size(), 1u);
  for (const char* name : {"dq", "dk", "dv"}) {
    EXPECT_EQ(values_of(path("again.safetensors"), name), values_of(path("out.safetensors"), name));
  }
  expect_refused(2, "run --saved-forward --input " + path("saved.safetensors"), "--backward");
}

TEST_F(Options, AccumulateAddsToWhatTheFileHolds) {
  TensorFile tensors = plain();
  const std::string in = tensors.save(path("in.safetensors"));
  run_json("run --backward --input " + in + " --output " + path("plain.safetensors"));
  tensors.random("dq0", {2, 6, 4, 16});
  const std::string with = tensors.save(path("with.safetensors"));
  expect_checked("run --backward --accumulate --input " + with + " --output " +
                 path("sum.safetensors"));
  const auto start = values_of(tensors["dq0"]);
  const auto plain_dq = values_of(path("plain.safetensors"), "dq");
  const auto sum = values_of(path("sum.safetensors"), "dq");
  for (std::size_t n = 0; n < sum.size(); ++n) EXPECT_NEAR(sum[n], start[n] + plain_dq[n], 1e-6);
  expect_refused(2, "run --backward --accumulate --repeat 2 --input " + with, "add more than once");
  TensorFile wrong = plain();
  wrong.random("dq0", {2, 6, 4, 15});
  expect_refused(2, "run --backward --accumulate --input " + wrong.save(path("wrong.safetensors")),
                 "tensor 'dq0' is F32[2, 6, 4, 15]; dq is F32[2, 6, 4, 16]");
}

TEST_F(Options, NonFiniteElementsAreCounted) {
  TensorFile tensors = plain();
  std::vector<double> v(2 * 9 * 2 * 16, 0.5);
  v[0] = NAN;
  TensorFile with_nan;
  for (const char* name : {"q", "k", "do"}) {
    with_nan.add(name, tensors[name].shape, values_of(tensors[name]), "F32");
  }
  with_nan.add("v", {2, 9, 2, 16}, v, "F32");
  const auto report =
      expect_checked("run --nonfinite-zero --input " + with_nan.save(path("in.safetensors")));
  EXPECT_GT(report["nonfinite_count"].get<int>(), 0);
  // Without it the NaN is in o, here and in the reference alike.
  expect_checked("run --input " + path("in.safetensors"));
}

TEST_F(Options, DecodeAppendsToAPagedCache) {
  TensorFile tensors;
  tensors.random("q", {2, 1, 4, 16}).random("k", {5, 4, 2, 16}).random("v", {5, 4, 2, 16});
  tensors.add("block_table", {2, 2}, {3, 0, 1, 4}, "I32");
  tensors.add("lengths", {2}, {5, 2}, "I32");
  tensors.random("k_new", {2, 1, 2, 16}).random("v_new", {2, 1, 2, 16});
  const std::string in = tensors.save(path("in.safetensors"));
  const auto report = expect_checked("run --decode --causal --input " + in + " --output " +
                                     path("out.safetensors"));
  EXPECT_GT(report["passes"][0]["kv_bytes"].get<double>(), 0.0);
  // Entry 0 wrote row 5, in its page 1 (page 0 of the pool), slot 1; the rest of k is untouched.
  const auto before = values_of(tensors["k"]);
  const auto after = values_of(path("out.safetensors"), "k");
  const auto added = values_of(tensors["k_new"]);
  const std::size_t row = 2 * 16;
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t n = 0; n < after.size(); ++n) {
    const std::size_t at = n / row;
    const double expected = at == 1       ? added[n % row]
                            : at == 4 + 2 ? added[row + n % row]
                                          : before[n];
    EXPECT_EQ(after[n], expected) << n;
  }
  expect_refused(2, "run --decode --backward --input " + in, "excludes");
}

}  // namespace
}  // namespace attn::cli::test
