// Reports of kernels, from the record or the assembler; see kernel_reports.hpp.
#include "kernel_reports.hpp"

#include <cstdlib>
#include <string>

#include "cuda/host/binaries.hpp"
#include "folder.hpp"
#include "resource_record.hpp"

namespace attn::cuda::test {

core::Status kernel_reports(const Nvrtc& nvrtc, const std::vector<Config>& configs, int capability,
                            std::vector<ResourceReport>& reports) {
  ResourceRecord record;
  if (!record.read(ATTN_TESTED_KERNELS)) {
    return core::Status{ErrorCode::internal, ATTN_TESTED_KERNELS " has a line that is no kernel's"};
  }
  std::vector<std::string> keys(configs.size());
  std::vector<Config> missing;
  for (std::size_t i = 0; i < configs.size(); ++i) {
    const core::Status status = record_key(nvrtc, configs[i], capability, keys[i]);
    if (!status.ok()) return status;
    if (!record.find(keys[i])) missing.push_back(configs[i]);
  }
  const Folder folder;
  Binaries binaries(Cache(folder.path()), nvrtc.version(), &nvrtc, "");
  const core::Status all = binaries.get_all(missing, capability, 0);
  if (!all.ok()) return all;
  reports.clear();
  for (std::size_t i = 0; i < configs.size(); ++i) {
    if (const auto recorded = record.find(keys[i])) {
      reports.push_back(*recorded);
      continue;
    }
    const Binary* binary = nullptr;
    const core::Status status = binaries.get(configs[i], capability, binary);
    if (!status.ok()) return status;
    record.add(keys[i], reports.emplace_back(read_resources(binary->log)));
  }
  if (!missing.empty() && std::getenv("ATTN_WRITE_RECORD") != nullptr &&
      !record.write(ATTN_TESTED_KERNELS)) {
    return core::Status{ErrorCode::internal, "cannot write " ATTN_TESTED_KERNELS};
  }
  return {};
}

}  // namespace attn::cuda::test
