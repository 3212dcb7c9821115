// The peer process, connected by two pipes; see peer.hpp.
#include "bench/peer.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bench/own_folder.hpp"

namespace attn::bench {
namespace {

using nlohmann::json;

// Runs in the child between fork and exec, where only system calls are allowed.
[[noreturn]] void become(char* const* arguments, int in, int out) {
  if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0) {
    execvp(arguments[0], arguments);
  }
  _exit(127);
}

}  // namespace

TorchPeer::TorchPeer(const std::string& python, std::int32_t threads) {
  std::array<int, 2> request{}, answer{};
  if (pipe2(request.data(), O_CLOEXEC) != 0) throw std::runtime_error(std::strerror(errno));
  if (pipe2(answer.data(), O_CLOEXEC) != 0) {
    close(request[0]);
    close(request[1]);
    throw std::runtime_error(std::strerror(errno));
  }
  std::string program = python;
  std::string script = own_folder() + "/peers/torch_cpu.py";
  std::string count = std::to_string(threads);
  std::array<char*, 4> arguments{program.data(), script.data(), count.data(), nullptr};
  process_ = fork();
  if (process_ == 0) become(arguments.data(), request[0], answer[1]);
  close(request[0]);
  close(answer[1]);
  to_ = fdopen(request[1], "w");
  from_ = fdopen(answer[0], "r");
  if (process_ < 0 || to_ == nullptr || from_ == nullptr) {
    throw std::runtime_error("starting " + python + " failed: " + std::strerror(errno));
  }
  // A peer that dies shows as a missing answer, not as a signal to this process.
  signal(SIGPIPE, SIG_IGN);
  const std::string hello = ask("{\"do\":\"hello\"}");
  const json parsed = json::parse(hello, nullptr, false);
  if (!parsed.is_object() || !parsed.contains("version")) {
    throw std::runtime_error(python + " has no working torch (" + script + ")");
  }
  version_ = parsed["version"].get<std::string>();
}

TorchPeer::~TorchPeer() {
  if (to_ != nullptr) std::fclose(to_);
  if (from_ != nullptr) std::fclose(from_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

std::string TorchPeer::ask(const std::string& request) {
  if (std::fprintf(to_, "%s\n", request.c_str()) < 0 || std::fflush(to_) != 0) return "";
  char* line = nullptr;
  std::size_t size = 0;
  const ssize_t length = getline(&line, &size, from_);
  std::string out = length > 0 ? std::string(line, static_cast<std::size_t>(length)) : "";
  std::free(line);
  return out;
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
  const json answer = json::parse(ask(request.dump()), nullptr, false);
  if (!answer.is_object() || !answer.contains("seconds")) return {};
  return answer["seconds"].get<std::vector<double>>();
}

}  // namespace attn::bench
