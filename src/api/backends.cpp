// The backends, in order of preference.
#include <array>

#include "api/state.hpp"
#include "cpu/backend.hpp"
#include "cuda/backend.hpp"
#include "reference/backend.hpp"
#include "webgpu/backend.hpp"

namespace attn::api {

core::Backends all_backends() {
  static const std::array<const core::Backend*, 4> kAll{&cuda::backend(), &webgpu::backend(),
                                                        &cpu::backend(), &reference::backend()};
  return kAll;
}

}  // namespace attn::api
