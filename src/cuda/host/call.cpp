// Calls; see call.hpp.
#include "cuda/host/call.hpp"

#include <string>

#include "core/signature.hpp"

namespace attn::cuda {

core::Status check_pointers(const Driver& driver, Pass pass, const Problem& problem,
                            const Arguments& arguments, int ordinal) {
  core::Status status;
  const auto check = [&](const char* name, const void* pointer) {
    if (status.ok() && pointer != nullptr) status = check_pointer(driver, name, pointer, ordinal);
  };
  for (const core::Slot& slot : core::slots_of(pass, problem)) {
    const TensorView& view = arguments.*slot.view;
    if (slot.use == core::Use::ignored || !view.given()) continue;
    bool empty = false;  // the pointer of an empty tensor is never followed
    for (int d = 0; d < view.rank; ++d)
      empty = empty || view.shape[static_cast<std::size_t>(d)] == 0;
    if (!empty) check(slot.name, view.address());
  }
  check("workspace", arguments.workspace);
  if (problem.dropout) {
    check("seed", arguments.seed.device);
    check("offset", arguments.offset.device);
  }
  return status;
}

core::Status run(const DeviceCall& call) {
  return core::Status::unsupported(std::string("cuda: no kernel for the ") + to_string(call.pass) +
                                   " on CUDA yet");
}

}  // namespace attn::cuda
