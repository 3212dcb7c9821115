// The peer process, connected by two pipes; see peer.hpp.
#include "bench/peer.hpp"

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/own_folder.hpp"

namespace attn::bench {
namespace {

using nlohmann::json;

// Empty if the process failed.
std::vector<double> seconds_of_answer(const std::string& line) {
  const json answer = json::parse(line, nullptr, false);
  if (!answer.is_object() || !answer.contains("seconds")) return {};
  return answer["seconds"].get<std::vector<double>>();
}

}  // namespace

TorchPeer::TorchPeer(const std::string& python, std::int32_t threads) {
  const std::string script = own_folder() + "/peers/torch_cpu.py";
  process_ = platform::start_child({python, script, std::to_string(threads)});
  const std::string hello = ask("{\"do\":\"hello\"}");
  const json parsed = json::parse(hello, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("version")) {
    throw std::runtime_error(python + " has no working torch (" + script + ")");
  }
  version_ = parsed["version"].get<std::string>();
}

TorchPeer::~TorchPeer() {
  platform::end_child(process_);
}

std::string TorchPeer::ask(const std::string& request) {
  if (std::fprintf(process_.to, "%s\n", request.c_str()) < 0 || std::fflush(process_.to) != 0) {
    return "";
  }
  std::string line;
  for (int c = std::fgetc(process_.from); c != EOF && c != '\n'; c = std::fgetc(process_.from)) {
    line += static_cast<char>(c);
  }
  return line;
}

bool TorchPeer::load(const Cell& cell) {
  const Problem& p = cell.problem;
  if (cell.suite != "plain" || p.len_q != p.len_kv) return false;
  const json request = {{"do", "load"},
                        {"dtype", to_string(p.dtype)},
                        {"batch", p.batch},
                        {"heads_q", p.heads_q},
                        {"heads_kv", p.heads_kv},
                        {"len", p.len_q},
                        {"dim", p.dim_qk},
                        {"causal", p.causal},
                        {"backward", cell.pass == Pass::backward}};
  const json answer = json::parse(ask(request.dump()), nullptr, false);
  return answer.is_object() && answer.value("ok", false);
}

std::vector<double> TorchPeer::sample(double budget, int least) {
  const json request = {{"do", "sample"}, {"budget", budget}, {"least", least}};
  return seconds_of_answer(ask(request.dump()));
}

std::vector<double> TorchPeer::sample_gemm(std::int64_t size, double budget, int least) {
  const json request = {{"do", "gemm"}, {"size", size}, {"budget", budget}, {"least", least}};
  return seconds_of_answer(ask(request.dump()));
}

}  // namespace attn::bench
