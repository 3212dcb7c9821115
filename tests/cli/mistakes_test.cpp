// Mistakes on the command line: each ends with its exit code and one line that names the rule, what
// was found and what is accepted; a typo is answered with the word that it is near to.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "command.hpp"

namespace attn::cli::test {
namespace {

struct Mistake {
  int code;
  std::string line;
  std::vector<std::string> says;
};

// Lines that need no files.
const std::vector<Mistake> kMistakes = {
    // Commands
    {2, "", {"command: found none", "accepted run, check, bench, info, cache, tune"}},
    {2, "rnu", {"found 'rnu'", "did you mean 'run'?"}},
    {2, "chekc --limit 3", {"found 'chekc'", "did you mean 'check'?"}},
    {2, "inof", {"did you mean 'info'?"}},
    {2, "benhc", {"did you mean 'bench'?"}},
    {2, "cahce list", {"did you mean 'cache'?"}},
    {2, "walk", {"found 'walk'", "accepted run, check"}},
    {2, "cache", {"cache: found no command", "accepted build, list, clear"}},
    {2, "cache lsit", {"'lsit'", "accepted build, list, clear", "did you mean 'list'?"}},
    // Flags
    {2, "run --casual", {"run: found the unknown flag", "'--casual'", "did you mean '--causal'?"}},
    {2, "run --windowleft 3", {"did you mean '--window-left'?"}},
    {2, "run --window 3", {"did you mean '--window-"}},
    {2, "run --bakcward", {"did you mean '--backward'?"}},
    {2, "run --imput x", {"did you mean '--input'?"}},
    {2, "run --dytpe bf16", {"did you mean '--dtype'?"}},
    {2, "run --softcaps=3", {"'--softcaps'", "did you mean '--softcap'?"}},
    {2, "run --nosuchflag", {"'--nosuchflag'", "attn run --help"}},
    {2, "run file.safetensors", {"argument 'file.safetensors'", "attn run --help"}},
    {2, "check --opton alibi", {"did you mean '--option'?"}},
    {2, "check --lmit 3", {"did you mean '--limit'?"}},
    {2, "info --explian x", {"did you mean '--explain'?"}},
    {2, "info --suport", {"did you mean '--support'?"}},
    {2, "bench --siute quick", {"did you mean '--suite'?"}},
    {2, "tune --dryrun", {"did you mean '--dry-run'?"}},
    // Names of values
    {2, "check --option nosuch", {"found 'nosuch'", "accepted", "alibi", "softcap", "dropout"}},
    {2, "check --option alibl", {"did you mean 'alibi'?"}},
    {2, "check --pass forwrad", {"accepted forward, backward, decode", "mean 'forward'?"}},
    {2, "check --dtype bf61", {"found 'bf61'", "f32", "bf16", "did you mean 'bf16'?"}},
    {2, "check --name no-such-case", {"no case matches", "--list"}},
    {2, "check --shard 4/4", {"found '4/4'", "accepted I/N"}},
    {2, "check --device cdua --limit 1", {"found 'cdua'", "host, cuda, cuda:N or webgpu"}},
    {2, "check --backend cpuu --limit 1", {"found 'cpuu'", "cpu"}},
    {2, "info --backend nosuch", {"found 'nosuch'", "accepted", "cpu"}},
    {2, "info --device gpu", {"found 'gpu'", "accepted host, cuda"}},
    {2, "run --layout bsdh", {"--layout", "bsdh", "bshd"}},
    {2, "run --input x.npy --name qq=x", {"found 'qq'", "accepted"}},
    {2, "run --input x.npy --name q", {"'q'", "NAME=TENSOR"}},
    {2, "bench --suite quik", {"'quik'", "quick"}},
    {2, "bench --dtype f31 --suite quick", {"'f31'", "f32"}},
    {2, "bench --pass forward --suite quick", {"'forward'", "fwd"}},
    {2, "bench --dtype bf16 --problem 'len_q=4'", {"--dtype", "'dtype=bf16"}},
    // Keys and values of problems and cases
    {2, "info --explain 'casual=on'", {"'casual=on'", "did you mean 'causal'?"}},
    {2, "info --explain 'heads=2'", {"'heads=2'", "not a field of Problem"}},
    {2, "info --explain 'head_q=2'", {"did you mean 'heads_q'?"}},
    {2, "info --explain 'dtype=bf61'", {"'dtype=bf61'", "accepted none, f32, f16, bf16"}},
    {2, "info --explain 'rope=haf'", {"'rope=haf'", "interleaved, half"}},
    {2, "info --explain 'len_q=many'", {"'len_q=many'", "a whole number"}},
    {2, "info --explain causal --pass up", {"--pass: found 'up'", "accepted forward"}},
    {2, "check --case x", {"parse_case"}},
    {2, "check --case 'forward sed=3 : len_q=1'", {"sed=3", "did you mean 'seed'?"}},
    {2, "check --case 'forwards : len_q=1'", {"forwards", "forward, backward or decode"}},
    // Numbers
    {2, "run --threads -1", {"--threads", "-1", "0"}},
    {2, "run --repeat 0", {"--repeat", "0"}},
    {2, "run --scale much", {"--scale", "'much'"}},
    {2, "run --seed 18446744073709551616", {"--seed", "18446744073709551616"}},
    {2, "run --origin 1,2", {"--origin"}},
    {2, "run --window-left", {"--window-left"}},
    {2, "run --saved-forward", {"--saved-forward", "--backward"}},
    {2, "run --backward --decode", {"--backward", "--decode"}},
    {2, "check --limit -1", {"--limit", "-1"}},
    {2, "bench --suite quick --seconds nan", {"--seconds", "nan is not a number"}},
    {2, "tune --seconds nan", {"--seconds", "nan is not a number"}},
    // Flags that nothing would read
    {2, "run --k-new x.npy", {"found --k-new without --decode"}},
    {2, "run --do x.npy", {"found --do without --backward"}},
    {2, "run --o x.npy", {"found --o without", "--saved-forward", "--check"}},
    {2, "run --backward --dq0 x.npy", {"found --dq0 without --backward --accumulate"}},
    {2, "run --dsink", {"found --dsink without --backward"}},
    {2, "run --dbias", {"found --dbias without --backward"}},
    {2, "run --accumulate", {"found --accumulate without --backward"}},
    {2, "run --name q=x", {"found --name without --input", "accepted --name with --input"}},
    {2, "run --ignore x", {"found --ignore without --input"}},
    // Problems that can't be timed, or that the library refuses
    {2,
     "bench --problem 'batch=0 len_q=4 len_kv=4'",
     {"without work", "found batch=0", "accepted"}},
    {2, "bench --problem 'len_q=64 kv_end' --pass fwd", {"without work", "found len_kv=0"}},
    {2, "tune --device host --problem 'len_q=64 kv_end'", {"without work", "found len_kv=0"}},
    {2,
     "bench --problem 'len_q=4 len_kv=4 layout_q=packed total_q=5'",
     {"found total_q=5", "1 to 4"}},
    {2, "bench --problem 'len_q=4 len_kv=4 delta' --pass bwd", {"bench has no delta"}},
    {2, "bench --problem 'len_q=4 len_kv=4 rope=half rope_tables'", {"bench has no rope_tables"}},
    {2, "bench --problem 'len_q=4 len_kv=4 rope=half rope_positions'", {"no rope_positions"}},
    {2, "bench --problem 'len_q=4 len_kv=4 accumulate'", {"accumulate", "--no-verify"}},
    {2, "bench --problem 'heads_q=3 heads_kv=2 len_q=4 len_kv=4'", {"multiple of heads_kv"}},
    {2, "check --case 'forward : heads_q=3 heads_kv=2 len_q=4'", {"multiple of heads_kv"}},
    {3, "check --case 'backward : dtype=f8e4m3 len_q=4 len_kv=4'", {"8-bit inputs"}},
    // Valid, but nothing does it
    {3, "check --limit 3 --backend webgpu --dtype f64 --threads 1 >/dev/null", {}},
};

TEST_F(Cli, EveryMistakeIsNamed) {
  EXPECT_GE(kMistakes.size(), 50u);
  for (const Mistake& mistake : kMistakes) {
    const Result result = run(mistake.line);
    EXPECT_EQ(result.code, mistake.code) << "attn " << mistake.line << "\n" << result.err;
    if (mistake.says.empty()) continue;
    EXPECT_EQ(result.out, "") << "attn " << mistake.line;
    EXPECT_EQ(result.err.substr(0, 4), "attn") << "attn " << mistake.line;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << mistake.line << "\n" << result.err;
    for (const std::string& words : mistake.says) {
      EXPECT_NE(result.err.find(words), std::string::npos)
          << "attn " << mistake.line << "\n  lacks: " << words << "\n  says:  " << result.err;
    }
  }
}

TEST_F(Cli, LayoutsThatCannotBeRight) {
  const auto refused = [&](const TensorFile& tensors, const std::string& flags,
                           const std::string& what) {
    expect_refused(2, "run --input " + tensors.save(path("in.safetensors")) + flags, what);
  };
  TensorFile swapped;
  swapped.attention(1, 4, 4, 64, 64, 8);  // really [batch, heads, len, dim]: 4 heads, 64 rows
  refused(swapped, "", "layout: found 64 heads and 4 rows in q, 64 and 4 in k");
  refused(swapped, "", "--layout bhsd if they are");
  expect_checked("run --layout bshd --input " + path("in.safetensors"));
  expect_checked("run --layout bhsd --input " + path("in.safetensors"));
  refused(
      TensorFile().random("q", {1, 4, 9, 8}).random("k", {1, 2, 7, 8}).random("v", {1, 2, 7, 8}),
      "", "found 9 and 7 in [batch, len, heads, dim]; accepted --layout bhsd");
  // One query against a cache has more heads than rows, rightly.
  TensorFile decode;
  decode.attention(1, 1, 64, 8, 8, 8);
  expect_checked("run --decode --input " + decode.save(path("decode.safetensors")));
  // What a run writes names its layout.
  TensorFile wide;
  wide.attention(1, 16, 16, 2, 2, 8);
  const std::string wide_file = wide.save(path("wide.safetensors"));
  EXPECT_EQ(
      run("run --layout bhsd --input " + wide_file + " --output " + path("out.safetensors")).code,
      0);
  expect_refused(
      2, "run --name q=o --name k=o --name v=o --ignore lse --input " + path("out.safetensors"),
      "names 'bhsd'; accepted --layout bhsd");
  EXPECT_EQ(run("run --layout bhsd --name q=o --name k=o --name v=o --ignore lse --input " +
                path("out.safetensors"))
                .code,
            0);
}

TEST_F(Cli, LengthsPastTheirTensors) {
  TensorFile tensors;
  tensors.attention(2, 4, 6, 2, 2, 8);
  const std::string line = "run --input " + tensors.save(path("in.safetensors")) + " ";
  expect_refused(2, line + "--len-kv 6,7", "len_kv: found 7 for sequence 1; accepted 0 to 6");
  expect_refused(2, line + "--len-kv=-1,3", "len_kv: found -1 for sequence 0; accepted 0 to 6");
  expect_refused(2, line + "--len-q 5,1", "len_q: found 5 for sequence 0; accepted 0 to 4");
  EXPECT_EQ(run(line + "--len-kv 6,0 --len-q 0,4").code, 0);
  TensorFile packed;
  packed.random("q", {9, 2, 8}).random("k", {9, 2, 8}).random("v", {9, 2, 8});
  const std::string packed_line =
      "run --layout packed --input " + packed.save(path("packed.safetensors")) + " ";
  expect_refused(2, packed_line + "--cu-len-q 0,5,10 --cu-len-kv 0,5,9", "cu_len_q: found 10 at 2");
  expect_refused(2, packed_line + "--cu-len-q 0,5,9 --cu-len-kv 0,5,4", "cu_len_kv: found 4 at 2");
}

TEST_F(Cli, CheckCountsRowsOfNaN) {
  TensorFile tensors;
  tensors.random("q", {1, 4, 2, 8}).random("v", {1, 4, 2, 8});
  std::vector<double> k(64, 0.5);
  k[3] = std::numeric_limits<double>::quiet_NaN();  // key 0 of head 0: its 4 queries are NaN
  tensors.add("k", {1, 4, 2, 8}, k, "F32");
  const std::string file = tensors.save(path("in.safetensors"));
  const Result text = run("run --check --input " + file);
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("4 of 8 rows NaN in both"), std::string::npos) << text.out;
  const auto report = expect_checked("run --input " + file);
  EXPECT_EQ(report["checks"][0]["nan_rows"], 4);
  EXPECT_EQ(report["checks"][0]["rows"], 8);
}

TEST_F(Cli, CheckOfNoCases) {
  const Result none = run("check --limit 0");
  EXPECT_EQ(none.code, 0) << none.err;
  EXPECT_NE(none.out.find("0 passed, 0 failed, 0 skipped"), std::string::npos) << none.out;
  const Result list = run("check --limit 0 --list");
  EXPECT_EQ(list.code, 0);
  EXPECT_EQ(list.out, "");
}

TEST_F(Cli, InfoIsOneScreen) {
  const Result info = run("info");
  EXPECT_EQ(info.code, 0);
  EXPECT_EQ(info.err, "");
  const auto lines = std::count(info.out.begin(), info.out.end(), '\n');
  EXPECT_GE(lines, 10);
  EXPECT_LE(lines, 20) << info.out;
  const Result table = run("info --support --backend cpu");
  EXPECT_EQ(table.code, 0);
  EXPECT_NE(table.out.find("Support of backend cpu"), std::string::npos) << table.out;
  EXPECT_GT(std::count(table.out.begin(), table.out.end(), '\n'), 20);
}

// A driver that writes to stderr while it is loaded.
TEST_F(Cli, InfoHidesWhatDriversWrite) {
  ASSERT_EQ(setenv("ATTN_WGPU", ATTN_NOISY_LIBRARY, 1), 0);
  const Result info = run("info");
  unsetenv("ATTN_WGPU");
  EXPECT_EQ(info.code, 0);
  EXPECT_EQ(info.err, "");
}

}  // namespace
}  // namespace attn::cli::test
