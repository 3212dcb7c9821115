// See covering.hpp.
#include "covering.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

namespace attn::webgpu::test {
namespace {

constexpr std::size_t kManyValues = 5;

using Setting = std::tuple<std::string, std::string, double>;  // entry, constant, value

// Those that a kernel covers; its entry point is one itself.
std::vector<Setting> settings_of(const KernelSpec& spec) {
  const std::string entry = std::string(spec.source) + " " + spec.entry;
  std::vector<Setting> settings{{entry, "", 0.0}};
  for (std::size_t n = 0; n < static_cast<std::size_t>(spec.num_constants); ++n) {
    settings.emplace_back(entry, spec.constants[n].name, spec.constants[n].value);
  }
  return settings;
}

std::set<Setting> wanted_of(const std::vector<KernelSpec>& all) {
  std::map<std::pair<std::string, std::string>, std::set<double>> values;
  for (const KernelSpec& spec : all) {
    for (const auto& [entry, name, value] : settings_of(spec)) values[{entry, name}].insert(value);
  }
  std::set<Setting> wanted;
  for (const auto& [of, list] : values) {
    for (const double value : list) {
      const bool extreme = value == *list.begin() || value == *list.rbegin();
      if (extreme || list.size() < kManyValues) wanted.emplace(of.first, of.second, value);
    }
  }
  return wanted;
}

}  // namespace

std::vector<KernelSpec> covering(const std::vector<KernelSpec>& all,
                                 const std::vector<KernelSpec>& chosen) {
  std::set<Setting> wanted = wanted_of(all);
  const auto cover = [&](const KernelSpec& spec) {
    for (const Setting& setting : settings_of(spec)) wanted.erase(setting);
  };
  for (const KernelSpec& spec : chosen) cover(spec);
  std::vector<KernelSpec> more;
  while (!wanted.empty()) {
    const auto gain = [&](const KernelSpec& spec) {
      return std::ranges::count_if(settings_of(spec),
                                   [&](const Setting& s) { return wanted.contains(s); });
    };
    more.push_back(*std::ranges::max_element(all, {}, gain));
    cover(more.back());
  }
  return more;
}

}  // namespace attn::webgpu::test
