// Help, attn info, attn check and attn bench as a script would call them.
#include <sstream>

#include "command.hpp"

namespace attn::cli::test {
namespace {

TEST_F(Cli, HelpNeedsNoManual) {
  for (const char* command : {"", "run", "check", "bench", "info", "cache", "tune"}) {
    const Result result = run(std::string(command) + " --help");
    EXPECT_EQ(result.code, 0) << command;
    EXPECT_EQ(result.err, "");
    EXPECT_NE(result.out.find("-h,--help"), std::string::npos) << command;
    if (*command != '\0') {
      EXPECT_NE(result.out.find("Examples:"), std::string::npos) << command;
    }
  }
  EXPECT_NE(run("--help").out.find("Exit codes:"), std::string::npos);
  EXPECT_EQ(run("--version").out.substr(0, 5), "attn ");
}

TEST_F(Cli, InfoSaysWhatIsThere) {
  const auto info = run_json("info");
  EXPECT_TRUE(info["version"].is_string());
  bool cpu = false;
  for (const auto& backend : info["backends"]) {
    cpu = cpu || (backend["name"] == "cpu" && backend["usable"] == true);
    EXPECT_NE(backend["detail"], "") << backend.dump();
  }
  EXPECT_TRUE(cpu);
  EXPECT_GT(info["support"]["cpu"].size(), 20u);
  const Result text = run("info --backend cpu");
  EXPECT_EQ(text.code, 0);
  for (const char* word : {"Backends", "cpu", "Support", "forward ", "backward"}) {
    EXPECT_NE(text.out.find(word), std::string::npos) << word << "\n" << text.out;
  }
  const Result table = run("info --support --backend cpu");
  EXPECT_EQ(table.code, 0);
  for (const char* word : {"Support of backend cpu", "softcap", "backward"}) {
    EXPECT_NE(table.out.find(word), std::string::npos) << word << "\n" << table.out;
  }
}

TEST_F(Cli, InfoExplainsAProblem) {
  const auto chain =
      run_json("info --explain 'dtype=bf16 heads_q=4 heads_kv=2 len_q=64 len_kv=64 causal'");
  EXPECT_EQ(chain["supported"], true);
  EXPECT_EQ(chain["backend"], "cpu");
  EXPECT_NE(chain["kernel"], "");
  EXPECT_EQ(run("info --pass decode --explain 'len_q=1 len_kv=64 page_size=16'").code, 0);
}

TEST_F(Cli, CheckRunsCases) {
  const Result text = run("check --limit 20");
  EXPECT_EQ(text.code, 0) << text.out;
  EXPECT_NE(text.out.find("20 passed, 0 failed"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find(": cpu "), std::string::npos) << text.out;  // which kernels ran
  const Result list = run("check --limit 5 --list --dtype f32 --pass backward");
  EXPECT_EQ(list.code, 0);
  std::istringstream lines(list.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    // What is listed can be run as it stands.
    EXPECT_EQ(run("check --case '" + line + "' --threads 1").code, 0) << line;
  }
  EXPECT_EQ(count, 5);
  const Result json = run("check --limit 3 --json --backend reference");
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(nlohmann::json::parse(json.out.substr(0, json.out.find('\n')))["result"], "passed");
}

TEST_F(Cli, FailedCasesSayHowToRepeatThem) {
  const std::string line =
      "check --case 'forward seed=9 dropout_p=2 : len_q=3 len_kv=3 dropout' --threads 1";
  const Result text = run(line);
  EXPECT_EQ(text.code, 1) << text.out << text.err;
  EXPECT_NE(text.out.find("dropout_p: found 2"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("  attn " + line), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("0 passed, 1 failed"), std::string::npos) << text.out;
  const Result json = run(line + " --json");
  EXPECT_EQ(json.code, 1);
  EXPECT_EQ(nlohmann::json::parse(json.out)["result"], "failed");
}

TEST_F(Cli, CheckWithoutABackendThatCanIsThree) {
  EXPECT_EQ(run("check --limit 3 --backend webgpu --dtype f64").code, 3);
  const Result there = run("check --limit 3 --device webgpu --dtype f64");
  EXPECT_EQ(there.code, 3);
  // WebGPU's reason alone.
  EXPECT_EQ(there.out.find("cpu: "), std::string::npos) << there.out;
  EXPECT_NE(there.out.find(": webgpu: "), std::string::npos) << there.out;
}

TEST_F(Cli, BenchListsItsCells) {
  const Result list = run("bench --suite quick --list");
  EXPECT_EQ(list.code, 0) << list.err;
  EXPECT_NE(list.out, "");
  EXPECT_EQ(run("bench --suite none").code, 2);
}

}  // namespace
}  // namespace attn::cli::test
