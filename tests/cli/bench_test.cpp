// attn bench --problem and attn check: right results pass, lost rows are errors.
#include "command.hpp"

namespace attn::cli::test {
namespace {

TEST_F(Cli, BenchPassesRightResults) {
  const std::string packed = "batch=2 len_q=64 len_kv=64 layout_q=packed layout_kv=packed";
  for (const std::string& line : std::vector<std::string>{
           "'len_q=4 len_kv=64 rope=half' --pass decode",
           "'batch=2 len_q=2 len_kv=37 lengths_kv len_new=2 rope=half' --pass decode",
           "'len_q=64 len_kv=64 layout_q=packed' --pass fwd,bwd",
           "'" + packed + " total_q=100 total_kv=100 causal kv_end bias=hqk dbias' --pass fwd,bwd",
           "'batch=4 len_q=37 len_kv=2 layout_kv=packed total_kv=5' --pass fwd,bwd",
           "'batch=4 len_q=9 len_kv=2 layout_kv=packed total_kv=3 sink dsink dlse' --pass bwd",
           "'batch=4 len_q=2 len_kv=9 layout_q=packed total_q=3 sink dsink dlse' --pass bwd",
           "'len_q=9 len_kv=9 nonfinite_zero' --pass fwd,bwd,decode",
           "'len_q=9 len_kv=9 accumulate' --pass bwd --no-verify",
           "'len_q=9 len_kv=9 page_size=4'",
       }) {
    const Result result = run("bench --seconds 0 --threads 1 --problem " + line);
    EXPECT_EQ(result.code, 0) << line << "\n" << result.err;
    EXPECT_NE(result.err.find(" 0 failed"), std::string::npos) << line << "\n" << result.err;
  }
}

TEST_F(Cli, BenchSaysWhichPassIsLeftOut) {
  const Result result = run("bench --seconds 0 --problem 'len_q=9 len_kv=9 page_size=4'");
  EXPECT_NE(result.err.find("left out: backward: paged k and v"), std::string::npos) << result.err;
}

TEST_F(Cli, LostRowsAreErrors) {
  const std::string line = "bench --seconds 0 --problem 'len_q=9 len_kv=9' --pass fwd";
  const Result full = run(line + " --out /dev/full");
  EXPECT_EQ(full.code, 2);
  EXPECT_NE(full.err.find("/dev/full: can't write: No space left"), std::string::npos) << full.err;
  EXPECT_EQ(full.err.find("rows: "), std::string::npos) << full.err;
  const Result missing = run(line + " --out /dev/null/x");
  EXPECT_EQ(missing.code, 2);
  const Result kept = run(line + " --out " + path("rows.jsonl"));
  EXPECT_EQ(kept.code, 0) << kept.err;
  EXPECT_GT(std::filesystem::file_size(path("rows.jsonl")), 100u);
}

TEST_F(Cli, FullStdoutIsAnError) {
  // The comment hides the redirections that run() adds.
  EXPECT_EQ(run("info --backend cpu >/dev/full 2>/dev/null #").code, 2);
}

TEST_F(Cli, CheckOfExtremeCases) {
  for (const char* text :
       {"forward seed=1 planted=nan_v : batch=0 len_q=1 len_kv=1",
        "backward seed=1 planted=nan_dout : batch=0 len_q=1 len_kv=1",
        "forward memory=fused_qkv : batch=2 len_q=5 len_kv=5 lengths_kv",
        "forward memory=fused_qkv : batch=2 len_q=3 len_kv=5 page_size=4",
        "forward seed=3 : batch=2 len_q=20 len_kv=30 window_left=9223372036854775807 "
        "window_right=9223372036854775807"}) {
    const Result result = run(std::string("check --case '") + text + "'");
    EXPECT_EQ(result.code, 0) << text << "\n" << result.out << result.err;
  }
}

TEST_F(Cli, InfoListsOnlyTheBackend) {
  const auto names = [](const std::string& flags) {
    std::vector<std::string> out;
    const auto report = run_json("info " + flags);
    for (const auto& one : report["backends"]) out.push_back(one["name"]);
    return out;
  };
  EXPECT_EQ(names("--backend reference"), std::vector<std::string>{"reference"});
  EXPECT_EQ(names("--device webgpu"), std::vector<std::string>{"webgpu"});
  for (const std::string& name : names("--device host")) {
    EXPECT_TRUE(name != "cuda" && name != "webgpu") << name;
  }
}

}  // namespace
}  // namespace attn::cli::test
