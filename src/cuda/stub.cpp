// Stands in for the CUDA backend where it is not built.
#include "core/not_built.hpp"
#include "cuda/backend.hpp"

namespace attn::cuda {

const core::Backend& backend() {
  static const core::NotBuilt instance("cuda", Device::cuda, "this build has no CUDA backend");
  return instance;
}

}  // namespace attn::cuda
