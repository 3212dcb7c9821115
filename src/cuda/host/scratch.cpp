// Memory of one call; see scratch.hpp.
#include "cuda/host/scratch.hpp"

#include <string>

#include "cuda/host/apart_from_captures.hpp"

namespace attn::cuda {

Scratch::Scratch(const CurrentContext& context, std::int64_t bytes, abi::Stream stream)
    : driver_(context.driver()), stream_(stream) {
  if (bytes <= 0) return;
  const ApartFromCaptures apart(driver_.api());
  const abi::Result result =
      driver_.api().cuMemAllocAsync(&pointer_, static_cast<std::size_t>(bytes), stream);
  if (result == abi::kSuccess) return;
  pointer_ = 0;
  status_ = driver_.status(result, "cuMemAllocAsync",
                           "taking a workspace of " + std::to_string(bytes) +
                               " bytes on cuda:" + std::to_string(context.ordinal()));
}

Scratch::~Scratch() {
  if (pointer_ == 0) return;
  const ApartFromCaptures apart(driver_.api());
  driver_.api().cuMemFreeAsync(pointer_, stream_);
}

}  // namespace attn::cuda
