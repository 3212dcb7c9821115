// The log of ptxas; see ptxas_log.hpp.
#include "cuda/host/ptxas_log.hpp"

#include <algorithm>
#include <charconv>

namespace attn::cuda {
namespace {

// The number before `unit` in the line ("0 bytes spill stores"); 0 if there is none.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t at = line.find(unit);
  if (at == std::string_view::npos) return 0;
  std::size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int value = 0;
  std::from_chars(line.data() + begin, line.data() + at, value);
  return value;
}

bool is_note(std::string_view line) {
  const std::size_t at = line.find("(C75");
  if (at == std::string_view::npos) return false;
  int code = 0;
  std::from_chars(line.data() + at + 2, line.data() + std::min(at + 6, line.size()), code);
  return code >= 7504 && code <= 7517;
}

}  // namespace

ResourceReport read_resources(std::string_view log) {
  constexpr std::string_view kEntry = "Compiling entry function '";
  ResourceReport report;
  while (!log.empty()) {
    const std::size_t end = std::min(log.find('\n'), log.size());
    std::string_view line = log.substr(0, end);
    log.remove_prefix(std::min(end + 1, log.size()));
    if (is_note(line)) report.notes.emplace_back(line);
    if (const std::size_t at = line.find(kEntry); at != std::string_view::npos) {
      line.remove_prefix(at + kEntry.size());
      report.kernels.push_back({std::string(line.substr(0, line.find('\''))), 0, 0, 0, 0, 0});
    }
    if (report.kernels.empty()) continue;
    Resources& kernel = report.kernels.back();
    if (line.find(" bytes stack frame") != std::string_view::npos) {
      // ptxas prints one line for the kernel, then one for each called function that is not
      // inlined.
      kernel.stack_bytes = std::max(kernel.stack_bytes, number_before(line, " bytes stack frame"));
      kernel.spill_stores += number_before(line, " bytes spill stores");
      kernel.spill_loads += number_before(line, " bytes spill loads");
    }
    if (line.find(": Used ") != std::string_view::npos) {
      kernel.registers = number_before(line, " registers");
      kernel.shared_bytes = number_before(line, " bytes smem");
    }
  }
  return report;
}

}  // namespace attn::cuda
