// The attn command: runs a subcommand; reports an error as one line and an exit code.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <attn/attn.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/failure.hpp"
#include "core/suggest.hpp"

namespace {

using namespace attn::cli;  // NOLINT: this file is the command

constexpr const char* kFooter = R"(
attn COMMAND --help lists a command's flags, with examples. The Python package adds attn doctor (what
runs on this machine, why the rest does not, how to get it), attn plot (pictures of attention) and
attn bench --plot FOLDER (pictures of what it measured).

Exit codes:
  0  ok
  1  a check failed: a result differs from what is expected
  2  bad input or usage: one line on stderr says what
  3  unsupported: valid, but no usable backend does it; the line gives each backend's reason
  4  internal: out of memory, a device error, a bug

Environment: ATTN_NUM_THREADS (threads of the CPU backend), ATTN_CACHE_DIR (compiled kernels),
ATTN_WGPU (the WebGPU library), ATTN_WEBGPU_ADAPTER (a part of the name of the GPU it is to use).)";

int fail(int code, std::string message) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  while (!message.empty() && message.back() == ' ') message.pop_back();
  fmt::print(stderr, "attn: {}\n", message);
  return code;
}

int exit_code(attn::ErrorCode code) {
  switch (code) {
    case attn::ErrorCode::ok: return kOk;
    case attn::ErrorCode::invalid_argument: return kBadInput;
    case attn::ErrorCode::unsupported: return kUnsupported;
    default: return kInternal;
  }
}

int run_command(const std::function<int()>& command) {
  try {
    return command();
  } catch (const BadInput& error) {
    return fail(kBadInput, error.what());
  } catch (const attn::Error& error) {
    return fail(exit_code(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(kInternal, "out of memory");
  } catch (const std::exception& error) {
    return fail(kInternal, error.what());
  }
}

// Message for an unknown argument or a missing command, with suggestions.
std::string unknown_argument(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string path;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += (path.empty() ? "" : " ") + command->get_name();
  }
  std::vector<std::string> flags;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  std::vector<std::string> commands;
  for (const CLI::App* one : command->get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(one->get_name());
  }
  const std::vector<std::string> extras = command->remaining();
  if (extras.empty()) {
    return fmt::format("{}: found no command; accepted {}", path, fmt::join(commands, ", "));
  }
  const std::string word = extras.front().substr(0, extras.front().find('='));
  const bool is_flag = word.starts_with('-');
  return fmt::format("{}: found {} '{}'; accepted {}{}", path,
                     is_flag ? "the unknown flag" : "the argument", word,
                     is_flag || commands.empty() ? "the flags of attn " + path + " --help"
                                                 : fmt::format("{}", fmt::join(commands, ", ")),
                     attn::core::did_you_mean(word, is_flag ? flags : commands));
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("Exact softmax attention: forward, backward and decode, in linear memory.", "attn");
  app.set_version_flag("--version", std::string("attn ") + attn::version());
  app.footer(kFooter);
  app.get_formatter()->column_width(34);
  const std::vector<std::pair<std::string, Command>> commands = {
      {"run", add_run(app)},   {"check", add_check(app)}, {"bench", add_bench(app)},
      {"info", add_info(app)}, {"cache", add_cache(app)}, {"tune", add_tune(app)}};
  std::vector<std::string> names;
  for (const auto& [name, command] : commands) names.push_back(name);
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.empty() || (first[0] != '-' && std::ranges::count(names, first) == 0)) {
    const std::string found = argc > 1 ? "found '" + first + "'" : "found none";
    return fail(kBadInput,
                fmt::format("command: {}; accepted {} (see attn --help){}", found,
                            fmt::join(names, ", "), attn::core::did_you_mean(first, names)));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answer) {  // --help, --version
    return app.exit(answer);
  } catch (const CLI::ExtrasError&) {
    return fail(kBadInput, unknown_argument(app));
  } catch (const CLI::RequiredError&) {  // a missing command: no flag is required
    return fail(kBadInput, unknown_argument(app));
  } catch (const CLI::ParseError& error) {
    return fail(kBadInput, fmt::format("{} (see attn {} --help)", error.what(), first));
  }
  for (const auto& [name, command] : commands) {
    if (app.got_subcommand(name)) return run_command(command);
  }
  return kBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  const int code = run_command([&] { return parse_and_run(argc, argv); });
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  return written || code != kOk ? code : fail(kBadInput, "stdout: can't write");
}
